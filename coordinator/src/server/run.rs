//! Life of a server, from its first connection to its last.

use std::collections::hash_map::RandomState;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use shm::sync::AtomicU64;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::time::sleep;

use super::admission::{Admission, AdmissionLimits};
use super::answer_memory::AnswerMemory;
use super::blocking::{self, BlockingThreads};
use super::connections::{CLOSING_TIME, Connections};
use super::facts::{ModelCard, ServerOptions};
use super::inbound::Inbound;
use super::log::Log;
use super::metrics::Metrics;
use super::routes::router;
use super::shared::{Phase, Shared};
use super::tellers::Tellers;
use crate::boundary::codec::{CodecError, TextCodec};
use crate::boundary::serving::{Serving, State};
use crate::openai::body::unread::Unread;
use crate::openai::chats::ChatRules;
use crate::openai::grammar_cache::GrammarCache;
use crate::openai::prompt_bounds::PromptBounds;

/// Number of threads that serve sockets.
const SOCKET_THREADS: usize = 2;

/// Interval between two checks of whether the server must stop.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_EVERY_DRAINING: Duration = Duration::from_millis(20);

/// Reason for which a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the system has no more threads or descriptors: {0}")]
    System(io::Error),
    #[error("cannot determine the chat format of the model: {0}")]
    Chats(CodecError),
    #[error("cannot open the request log: {0}")]
    Log(io::Error),
    #[error("the engine has stopped")]
    EngineEnded,
}

/// Result of a server that was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Number of requests whose answers were cut off.
    pub cut: u64,
}

/// A server that does not accept connections yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    runtime: Runtime,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
}

impl Server {
    /// Prepares a server that does not accept connections yet.
    ///
    /// # Errors
    /// The system lacks resources, the log cannot be opened, or the chat template cannot be
    /// examined.
    pub fn new(
        listener: TcpListener,
        engine: Arc<dyn Serving>,
        model: ModelCard,
        options: ServerOptions,
    ) -> Result<Server, ServerError> {
        listener.set_nonblocking(true).map_err(ServerError::System)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(SOCKET_THREADS)
            .max_blocking_threads(blocking::THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(ServerError::System)?;
        let (phase, of_phase) = watch::channel(Phase::Serving);
        let admission = Arc::new(Admission::new(AdmissionLimits {
            slots: u64::from(engine.limits().slots.max(1)),
            waiting: u64::from(options.max_queue),
            prompt_tokens: options.max_queue_tokens,
        }));
        let metrics = Arc::new(Metrics::new(Arc::clone(&engine), Arc::clone(&admission)));
        let tellers =
            Tellers::start(model.codec.as_ref(), &metrics).map_err(ServerError::System)?;
        let codec = model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        let chats = ChatRules::new(&options.chats, codec).map_err(ServerError::Chats)?;
        let context = (engine.limits().context as usize).min(model.max_positions);
        let prompt_bounds = PromptBounds::new(context, model.vocab_size, codec);
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shared = Shared {
            engine,
            unread: Unread::new(options.ignore_unknown_fields),
            admission,
            inbound: Inbound::new(options.limits),
            tellers,
            metrics,
            log: Log::open(options.log.as_ref()).map_err(ServerError::Log)?,
            grammars: GrammarCache::default(),
            blocking: BlockingThreads::default(),
            answer_memory: AnswerMemory::new(options.answer_memory_bytes),
            prompt_bounds,
            chats,
            phase: of_phase,
            id_key: RandomState::new(),
            salt: format!("{}-{}", began.as_nanos(), std::process::id()),
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
    pub fn run(self, stop: &dyn Fn() -> bool) -> Result<Served, ServerError> {
        let Server { listener, runtime, shared, phase } = self;
        let (close, closing) = watch::channel(false);
        let connections = Connections::new(shared.options.limits, closing);
        let served = runtime.block_on(async {
            let listener =
                tokio::net::TcpListener::from_std(listener).map_err(ServerError::System)?;
            let routes = router(Arc::clone(&shared));
            tokio::spawn(connections.clone().accept(listener, routes));
            let ended = watch_over(&shared, stop).await;
            let cut = if ended.is_ok() { drain(&shared, &phase).await } else { 0 };
            phase.send_replace(Phase::Ending);
            close.send_replace(true);
            until(CLOSING_TIME, || connections.open() == 0).await;
            ended.map(|()| Served { cut })
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        served
    }
}

/// Waits until the server must stop.
async fn watch_over(shared: &Shared, stop: &dyn Fn() -> bool) -> Result<(), ServerError> {
    while !stop() {
        if shared.engine.status().state == State::Ended {
            return Err(ServerError::EngineEnded);
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Waits for answers in progress; returns the number of requests that did not end in time.
async fn drain(shared: &Shared, phase: &watch::Sender<Phase>) -> u64 {
    phase.send_replace(Phase::Draining);
    shared.engine.drain();
    until(shared.options.drain_timeout, || shared.admission.requests() == 0).await;
    shared.admission.requests()
}

/// Waits until `holds` returns true, for at most the given time.
async fn until(most: Duration, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() && began.elapsed() < most {
        sleep(LOOK_EVERY_DRAINING).await;
    }
}
