//! Life of a server, from its first connection to its last.

use std::collections::hash_map::RandomState;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine_api::codec::{CodecError, TextCodec};
use engine_api::serving::{Engine, EngineState};
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::chats::ChatRules;
use openai::grammar_cache::GrammarCache;
use openai::prompt_bounds::PromptBounds;
use shm::sync::AtomicU64;
use tokio::runtime::{self, Runtime};
use tokio::sync::watch;
use tokio::time::sleep;

use super::admission::{Admission, AdmissionLimits};
use super::answer_memory::AnswerMemory;
use super::background_task::BackgroundResponses;
use super::batches::runner::run_batches;
use super::batches::service::BatchService;
use super::blocking::{BlockingPools, FILE_THREADS, READING_THREADS_MAX};
use super::body_reader::BodyReader;
use super::config::{ModelCard, ResponseStorage, ServerOptions};
use super::connections::{CLOSE_TIMEOUT, Connections};
use super::detokenizer_pool::DetokenizerPool;
use super::metrics::Metrics;
use super::request_log::RequestLog;
use super::response_store::ResponseStore;
use super::routes::router;
use super::state::{ServerPhase, ServerState};

/// Number of threads that serve sockets.
const SOCKET_THREADS: usize = 2;

/// Interval between two checks of whether the server must stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(200);
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Reason for which a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the system has no more threads or descriptors: {0}")]
    System(io::Error),
    #[error("cannot determine the chat format of the model: {0}")]
    ChatFormat(CodecError),
    #[error("cannot open the request log: {0}")]
    Log(io::Error),
    #[error("cannot open the directory of stored responses {}: {error}", .path.display())]
    ResponseStorage { path: PathBuf, error: io::Error },
    #[error("cannot open the directory of batches {}: {error}", .path.display())]
    BatchStorage { path: PathBuf, error: io::Error },
    #[error("the engine has stopped")]
    EngineEnded,
}

/// Result of a server that was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownSummary {
    /// Number of requests whose answers were cut off.
    pub aborted_requests: u64,
}

/// A server that does not accept connections yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    runtime: Runtime,
    shared: Arc<ServerState>,
    phase: watch::Sender<ServerPhase>,
}

impl Server {
    /// Prepares a server that does not accept connections yet.
    ///
    /// # Errors
    /// The system lacks resources, the log cannot be opened, or the chat template cannot be
    /// examined.
    pub fn new(
        listener: TcpListener,
        engine: Arc<dyn Engine>,
        model: ModelCard,
        options: ServerOptions,
    ) -> Result<Server, ServerError> {
        listener.set_nonblocking(true).map_err(ServerError::System)?;
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(SOCKET_THREADS)
            .max_blocking_threads(READING_THREADS_MAX + FILE_THREADS + SOCKET_THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(ServerError::System)?;
        let (phase, phase_receiver) = watch::channel(ServerPhase::Serving);
        let admission = Arc::new(Admission::new(AdmissionLimits {
            slots: u64::from(engine.limits().slots.max(1)),
            waiting: u64::from(options.max_queue),
            prompt_tokens: options.max_queue_tokens,
        }));
        let metrics = Arc::new(Metrics::new(Arc::clone(&engine), Arc::clone(&admission)));
        let detokenizer_pool =
            DetokenizerPool::start(model.codec.as_ref(), &metrics).map_err(ServerError::System)?;
        let codec = model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        let chats = ChatRules::new(&options.chats, codec).map_err(ServerError::ChatFormat)?;
        let context = (engine.limits().context as usize).min(model.max_positions);
        let prompt_bounds = PromptBounds::new(context, model.vocab_size, codec);
        let batches = open_batches(&options, &metrics)?;
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shared = ServerState {
            engine,
            unread: UnknownFieldPolicy::new(options.ignore_unknown_fields),
            admission,
            body_reader: BodyReader::new(options.limits),
            detokenizer_pool,
            metrics,
            request_log: RequestLog::open(options.log.as_ref()).map_err(ServerError::Log)?,
            grammars: GrammarCache::default(),
            blocking_pools: BlockingPools::default(),
            answer_memory: AnswerMemory::new(options.answer_memory_bytes),
            prompt_bounds,
            chats,
            responses: open_responses(&options)?,
            background_responses: BackgroundResponses::default(),
            batches,
            phase: phase_receiver,
            id_key: RandomState::new(),
            id_prefix: format!("{}-{}", began.as_nanos(), std::process::id()),
            requests: AtomicU64::new(0),
            model,
            options,
        };
        Ok(Server { listener, runtime, shared: Arc::new(shared), phase })
    }

    /// Serves requests until `stop` returns true, and then waits for the answers in progress,
    /// within the time limit for draining.
    ///
    /// # Errors
    /// The engine has ended by itself.
    pub fn run(self, stop: &dyn Fn() -> bool) -> Result<ShutdownSummary, ServerError> {
        let Server { listener, runtime, shared, phase } = self;
        let (close, closing) = watch::channel(false);
        let connections = Connections::new(shared.options.limits, closing);
        let batches = start_batches(&shared)?;
        let served = runtime.block_on(async {
            let listener =
                tokio::net::TcpListener::from_std(listener).map_err(ServerError::System)?;
            let routes = router(Arc::clone(&shared));
            tokio::spawn(connections.clone().accept(listener, routes));
            let ended = wait_for_stop(&shared, stop).await;
            let aborted_requests = if ended.is_ok() { drain(&shared, &phase).await } else { 0 };
            phase.send_replace(ServerPhase::Ending);
            close.send_replace(true);
            wait_until(CLOSE_TIMEOUT, || connections.open() == 0).await;
            ended.map(|()| ShutdownSummary { aborted_requests })
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        if let Some(batches) = batches {
            // The answers so far are written. After a panic, a restart continues with them.
            let _ = batches.join();
        }
        served
    }
}

/// Starts the thread that computes batches, if the server runs any.
fn start_batches(shared: &Arc<ServerState>) -> Result<Option<JoinHandle<()>>, ServerError> {
    if shared.batches.is_none() {
        return Ok(None);
    }
    let (builder, state) = (Builder::new().name("batches".to_owned()), Arc::clone(shared));
    let thread = builder.spawn(move || run_batches(&state));
    thread.map(Some).map_err(ServerError::System)
}

fn open_batches(
    options: &ServerOptions,
    metrics: &Metrics,
) -> Result<Option<BatchService>, ServerError> {
    let Some(storage) = &options.batch_storage else { return Ok(None) };
    let service = BatchService::open(storage, metrics.batches.clone());
    let path = storage.path.clone();
    service.map(Some).map_err(|error| ServerError::BatchStorage { path, error })
}

fn open_responses(options: &ServerOptions) -> Result<Option<ResponseStore>, ServerError> {
    let Some(ResponseStorage { path, max_bytes }) = &options.response_storage else {
        return Ok(None);
    };
    let store = ResponseStore::open(path, *max_bytes, options.limits.body_bytes as u64);
    store.map(Some).map_err(|error| ServerError::ResponseStorage { path: path.clone(), error })
}

/// Waits until the server must stop.
async fn wait_for_stop(shared: &ServerState, stop: &dyn Fn() -> bool) -> Result<(), ServerError> {
    while !stop() {
        if shared.engine.status().state == EngineState::Ended {
            return Err(ServerError::EngineEnded);
        }
        sleep(STOP_POLL_INTERVAL).await;
    }
    Ok(())
}

/// Waits for answers in progress; returns the number of requests that did not end in time.
async fn drain(shared: &ServerState, phase: &watch::Sender<ServerPhase>) -> u64 {
    phase.send_replace(ServerPhase::Draining);
    shared.engine.drain();
    wait_until(shared.options.drain_timeout, || shared.admission.requests() == 0).await;
    shared.admission.requests()
}

/// Waits until `holds` returns true, for at most the given time.
async fn wait_until(timeout: Duration, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() && began.elapsed() < timeout {
        sleep(DRAIN_POLL_INTERVAL).await;
    }
}
