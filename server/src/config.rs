//! Configuration of a server: the model it serves and its options.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine_api::codec::TextCodec;
use engine_api::request::Sampling;
use openai::chats::ChatOptions;
use openai::embeddings::model::EmbeddingModel;
use serde::Serialize;

use super::api_key::ApiKey;
use super::cross_site::CrossSiteRules;

/// A codec that is shared by all threads of a server.
pub type SharedCodec = Arc<dyn TextCodec + Send + Sync>;

/// The model as clients see it.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Name of the model in answers, followed by other names that a request may use.
    pub names: Vec<String>,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    pub system_fingerprint: String,
    pub vocab_size: usize,
    /// Maximum number of positions that the model supports; the engine may support fewer.
    pub max_positions: usize,
    /// Sampling parameters for requests that do not specify them.
    pub sampling: Sampling,
    pub embeddings: EmbeddingModel,
    /// `None` if the model has no tokenizer that can be read.
    pub codec: Option<SharedCodec>,
    /// Name of the tokenizer file if it cannot be read.
    pub unsupported_tokenizer: Option<&'static str>,
    /// Token that the tokenizer designates for the beginning of a text.
    pub bos_token_id: Option<u32>,
    /// Tokens that end an answer, beginning with the one that the tokenizer designates for the end
    /// of a text.
    pub eos_token_ids: Vec<u32>,
    /// Description of where the model is stored and computed, for the page.
    pub placement: Vec<PlacementEntry>,
}

/// A part of the description of a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacementEntry {
    pub name: String,
    pub value: String,
}

impl ModelCard {
    /// Returns the name of the model in answers.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}

/// Options of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Key that requests must send; `None` if no key is required.
    pub api_key: Option<ApiKey>,
    /// Maximum number of queued answers, in addition to those that are computed.
    pub max_queue: u32,
    /// Maximum number of prompt tokens that wait to be computed.
    pub max_queue_tokens: u64,
    /// Number of new tokens for requests that do not specify it, at least 1; `None` for the default
    /// of each endpoint.
    pub max_tokens: Option<u32>,
    pub chats: ChatOptions,
    /// Seed for requests that do not specify one.
    pub seed: u64,
    /// Fields that are not implemented are ignored instead of refused.
    pub ignore_unknown_fields: bool,
    /// Maximum time from a request's arrival to the end of its answer; `None` for no limit.
    pub timeout: Option<Duration>,
    /// Time for which answers may continue once the server is asked to shut down.
    pub drain_timeout: Duration,
    /// Destination of the request log; `None` for no log.
    pub log: Option<LogTarget>,
    pub limits: SocketLimits,
    /// Memory for answers that are computed or written, in bytes.
    pub answer_memory_bytes: u64,
    pub cross_site: CrossSiteRules,
    /// Directory in which responses are stored, and its maximum size; `None` to store none.
    pub response_storage: Option<ResponseStorage>,
    /// Directory of files and batches, and its limits; `None` to run no batches.
    pub batch_storage: Option<BatchStorageOptions>,
}

/// Directory in which responses are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseStorage {
    pub path: PathBuf,
    /// Maximum size in bytes; the least recently used responses are removed beyond it.
    pub max_bytes: u64,
}

/// Directory of files and batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchStorageOptions {
    pub path: PathBuf,
    /// Maximum size of all files in bytes.
    pub max_bytes: u64,
    /// Maximum size of an uploaded file in bytes.
    pub max_file_bytes: u64,
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
            response_storage: None,
            batch_storage: None,
        }
    }
}

/// Limits on the resources that connections may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketLimits {
    /// Maximum number of connections; a new one beyond it replaces the one that has been idle for
    /// longest.
    pub connections: usize,
    /// Maximum size of a request's body, in bytes.
    pub body_bytes: usize,
    /// Maximum size of all bodies that are being received or parsed, in bytes.
    pub bodies_bytes: usize,
    /// Maximum time to receive the head of a request, including the idle time before it.
    pub header_timeout: Duration,
    /// Maximum time to receive the next part of a body.
    pub body_timeout: Duration,
    /// Maximum time for a client to accept written bytes.
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

/// Destination of the request log, which has a line for each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    StandardError,
    File(PathBuf),
}
