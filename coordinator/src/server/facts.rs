//! What a server is told when it starts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::api_key::ApiKey;
use super::cross_site::CrossSiteRules;
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Sampling;
use crate::openai::chats::ChatOptions;

/// A codec that all threads of a server share.
pub type SharedCodec = Arc<dyn TextCodec + Send + Sync>;

/// The model as clients see it.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// The name that answers bear, and behind it others that a request may name.
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub created: u64,
    pub system_fingerprint: String,
    pub vocab_size: usize,
    /// Positions that the model was made for; the engine may have fewer.
    pub max_positions: usize,
    /// What a request draws by that does not say.
    pub sampling: Sampling,
    /// `None` where the model has no tokenizer.
    pub codec: Option<SharedCodec>,
}

impl ModelCard {
    /// The name that answers bear.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// How a server treats its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Without it everybody may ask.
    pub api_key: Option<ApiKey>,
    /// Answers that may wait beside those that are computed.
    pub max_queue: u32,
    /// Tokens of prompts that may wait to be computed.
    pub max_queue_tokens: u64,
    /// New tokens of requests that do not say, at least 1.
    pub max_tokens: Option<u32>,
    pub chats: ChatOptions,
    /// Of requests that name no seed.
    pub seed: u64,
    /// Fields that are not implemented are left out instead of refused.
    pub ignore_unknown_fields: bool,
    /// From a request's arrival to the end of its answer.
    pub timeout: Option<Duration>,
    /// How long answers may go on once the server is asked to end.
    pub drain_timeout: Duration,
    /// Where a line for each request goes.
    pub log: Option<LogPlace>,
    pub limits: SocketLimits,
    /// Memory for answers that are computed or written, in bytes.
    pub answer_memory_bytes: u64,
    pub cross_site: CrossSiteRules,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            api_key: None,
            max_queue: 1024,
            max_queue_tokens: 1_000_000,
            max_tokens: None,
            chats: ChatOptions::default(),
            seed: 0,
            ignore_unknown_fields: false,
            timeout: None,
            drain_timeout: Duration::from_secs(30),
            log: None,
            limits: SocketLimits::default(),
            answer_memory_bytes: 1 << 30,
            cross_site: CrossSiteRules::default(),
        }
    }
}

/// Bounds on what a connection can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketLimits {
    /// Connections at a time; for a further one the one that has been idle for longest is closed.
    pub connections: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of all bodies that are being read or looked at.
    pub bodies_bytes: usize,
    /// For the head of a request, also between two on one connection.
    pub header_timeout: Duration,
    /// For the next part of a body.
    pub body_timeout: Duration,
    /// For a reader to take what was written.
    pub write_timeout: Duration,
}

impl Default for SocketLimits {
    fn default() -> SocketLimits {
        SocketLimits {
            connections: 4096,
            body_bytes: 32 << 20,
            bodies_bytes: 256 << 20,
            header_timeout: Duration::from_mins(1),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
        }
    }
}

/// Where a line for each request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPlace {
    StandardError,
    File(PathBuf),
}
