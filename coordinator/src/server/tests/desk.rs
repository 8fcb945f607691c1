//! A server with its engine, for use by one test.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use shm::sync::{AtomicBool, Ordering};

use super::engine::{Fake, Manner};
use super::http::{self, Reply, WATCHDOG};
use crate::boundary::engine::Sampling;
use crate::boundary::serving::State;
use crate::job::tests::fake::{BOS, Bytes, EOS};
use crate::server::facts::{ModelCard, ServerOptions};
use crate::server::{Served, Server, ServerError};

pub(super) const COMPLETIONS: &str = "/v1/completions";
pub(super) const CHAT: &str = "/v1/chat/completions";

/// A running server and its engine.
pub(super) struct Desk {
    pub(super) address: SocketAddr,
    pub(super) engine: Arc<Fake>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<Result<Served, ServerError>>>,
    steps: Option<JoinHandle<()>>,
}

impl Desk {
    pub(super) fn new() -> Desk {
        Desk::with(Manner::default(), ServerOptions::default())
    }

    pub(super) fn with(manner: Manner, options: ServerOptions) -> Desk {
        let model = ModelCard {
            names: vec!["echo".to_owned(), "org/echo".to_owned()],
            created: 1_700_000_000,
            system_fingerprint: "fp_test".to_owned(),
            vocab_size: 300,
            max_positions: 4096,
            sampling: Sampling::GREEDY,
            codec: Some(Arc::new(Bytes::CHAT)),
            unread_tokenizer: None,
            bos_token_id: Some(BOS),
            eos_token_ids: vec![EOS],
        };
        Desk::of(manner, options, model)
    }

    pub(super) fn of(manner: Manner, options: ServerOptions, model: ModelCard) -> Desk {
        let (engine, steps) = Fake::start(manner);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let serving = Arc::clone(&engine);
        let server = Server::new(listener, serving, model, options).expect("a server");
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let server = std::thread::spawn(move || server.run(&move || stops.load(Ordering::Relaxed)));
        Desk { address, engine, stop, server: Some(server), steps: Some(steps) }
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        http::get(self.address, path)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        http::post(self.address, path, body)
    }

    /// Requests a shutdown, like a first signal.
    pub(super) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until the server has ended.
    pub(super) fn join(mut self) -> Result<Served, ServerError> {
        let server = self.server.take().expect("once");
        server.join().expect("no panic")
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.ask_to_stop();
        self.engine.hold(false);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        self.engine.set_state(State::Ended);
        if let Some(steps) = self.steps.take() {
            let _ = steps.join();
        }
    }
}

/// Waits until `holds` returns true; panics with `what` if it takes too long.
pub(super) fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WATCHDOG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
