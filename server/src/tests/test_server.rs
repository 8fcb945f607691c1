//! A server with its engine, for use by one test.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_api::request::{Pooling, Sampling};
use engine_api::serving::EngineState;
use openai::embeddings::model::EmbeddingModel;
use serde_json::Value;
use shm::sync::{AtomicBool, Ordering};
use testkit::byte_codec::{BOS, ByteCodec, EOS};

use super::fake_engine::{FakeEngine, FakeEngineOptions};
use super::http::{self, Reply, WATCHDOG};
use crate::config::{ModelCard, ServerOptions};
use crate::{Server, ServerError, ShutdownSummary};

pub(super) const COMPLETIONS: &str = "/v1/completions";
pub(super) const CHAT: &str = "/v1/chat/completions";

/// A running server and its engine.
pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    pub(super) engine: Arc<FakeEngine>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<Result<ShutdownSummary, ServerError>>>,
    steps: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(super) fn new() -> TestServer {
        TestServer::with_options(FakeEngineOptions::default(), ServerOptions::default())
    }

    pub(super) fn with_options(
        engine_options: FakeEngineOptions,
        options: ServerOptions,
    ) -> TestServer {
        let model = ModelCard {
            names: vec!["echo".to_owned(), "org/echo".to_owned()],
            created: 1_700_000_000,
            system_fingerprint: "fp_test".to_owned(),
            vocab_size: 300,
            max_positions: 4096,
            sampling: Sampling::GREEDY,
            embeddings: EmbeddingModel {
                pooling: Ok(Pooling::LastToken),
                hidden_size: 4,
                is_matryoshka: true,
            },
            codec: Some(Arc::new(ByteCodec::CHAT)),
            unsupported_tokenizer: None,
            bos_token_id: Some(BOS),
            eos_token_ids: vec![EOS],
            placement: Vec::new(),
        };
        TestServer::with_model(engine_options, options, model)
    }

    pub(super) fn with_model(
        engine_options: FakeEngineOptions,
        options: ServerOptions,
        model: ModelCard,
    ) -> TestServer {
        let (engine, steps) = FakeEngine::start(engine_options);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let serving = Arc::clone(&engine);
        let server = Server::new(listener, serving, model, options).expect("a server");
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let server = std::thread::spawn(move || server.run(&move || stops.load(Ordering::Relaxed)));
        TestServer { address, engine, stop, server: Some(server), steps: Some(steps) }
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        http::get(self.address, path)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        http::post(self.address, path, body)
    }

    /// Requests a shutdown, like a first signal.
    pub(super) fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until the server has ended.
    pub(super) fn join(mut self) -> Result<ShutdownSummary, ServerError> {
        let server = self.server.take().expect("once");
        server.join().expect("no panic")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.request_stop();
        self.engine.hold(false);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        self.engine.set_state(EngineState::Ended);
        if let Some(steps) = self.steps.take() {
            let _ = steps.join();
        }
    }
}

/// Waits until `holds` returns true; panics with `what` if it takes too long.
pub(super) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WATCHDOG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
