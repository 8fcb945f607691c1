//! Arguments of `serve`.

use std::path::PathBuf;

use clap::Args;
use engine_api::request::Pooling;
use server::cross_site::AllowedOrigin;

use super::chats::ChatArgs;
use super::prompt_cache::PromptCacheArgs;
use super::shared::{ModelArgs, PlacementArgs};
use super::speculation::SpeculationArgs;
use super::stage::NvmeArgs;
use super::values::{parse_body_size, parse_pooling, parse_serving_policy, parse_size};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub of_model: ModelArgs,
    /// Additional name of the model in requests; can be repeated. Answers contain the first one
    /// [default: the model's own name]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub served_model_name: Vec<String>,

    /// Address to listen on; 0.0.0.0 selects all addresses of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Clients")]
    pub host: String,
    /// Port to listen on; 0 selects a free port
    #[arg(long, value_name = "PORT", default_value_t = 8000, help_heading = "Clients")]
    pub port: u16,
    /// Key that clients must send as "Authorization: Bearer KEY" or "X-Api-Key: KEY" [default:
    /// none]. Arguments are visible to other users of this machine; prefer the environment variable
    #[arg(long, value_name = "KEY", help_heading = "Clients")]
    #[arg(env = "TANDEM_API_KEY", hide_env_values = true)]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub api_key: Option<String>,
    /// Additional host name to accept requests for; can be repeated. By default, a server on a
    /// loopback address answers only for localhost and for addresses, so that no website can reach
    /// it by a name of its own
    #[arg(long, value_name = "NAME", help_heading = "Clients")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub allowed_host: Vec<String>,
    /// Allow pages of this origin, such as http://localhost:3000, to send requests from a browser
    /// and read the answers (CORS); * allows every site. Can be repeated [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = AllowedOrigin::parse)]
    #[arg(help_heading = "Clients")]
    pub cors: Vec<AllowedOrigin>,
    /// Maximum number of open connections, within the limit on open files; a connection beyond it
    /// replaces the one that has been idle longest
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = "Clients")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Maximum size of a request's body; larger ones get 413
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_body_size)]
    #[arg(help_heading = "Clients")]
    pub max_body_size: u64,
    /// Maximum memory for the answers of all requests until they are written, most of it for
    /// log-probabilities. A request that could exceed it gets 400, or 429 while other requests hold
    /// the memory
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    #[arg(help_heading = "Clients")]
    pub max_answer_memory: u64,
    /// Store responses of /v1/responses in this directory, so that requests can continue them with
    /// `previous_response_id` [default: none are stored]
    #[arg(long, value_name = "DIR", help_heading = "Clients")]
    pub store_responses: Option<PathBuf>,
    /// Maximum size of that directory; the least recently used responses are removed
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    #[arg(help_heading = "Clients", requires = "store_responses")]
    pub store_responses_size: u64,
    /// Run batches (/v1/files and /v1/batches) while slots are idle, and keep their files in this
    /// directory, so that they continue after a restart [default: no batches]
    #[arg(long, value_name = "DIR", help_heading = "Clients")]
    pub store_batches: Option<PathBuf>,
    /// Maximum size of that directory; uploads beyond it get 400
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    #[arg(help_heading = "Clients", requires = "store_batches")]
    pub store_batches_size: u64,
    /// Maximum size of an uploaded file; larger ones get 413
    #[arg(long, value_name = "SIZE", default_value = "200MiB", value_parser = parse_size)]
    #[arg(help_heading = "Clients", requires = "store_batches")]
    pub max_file_size: u64,
    /// Maximum number of queued answers, in addition to running ones; further requests get 429
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Clients")]
    pub max_queue: u32,
    /// Maximum number of prompt tokens waiting to be computed
    #[arg(long, value_name = "N", default_value_t = 1_000_000, help_heading = "Clients")]
    pub max_queue_tokens: u64,
    /// Maximum time for an answer, in seconds from the request's arrival [default: none]
    #[arg(long, value_name = "SECONDS", help_heading = "Clients")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// Time for running answers to complete after SIGTERM or Ctrl-C, in seconds; a second signal
    /// stops the server at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Clients")]
    pub drain_timeout: u32,
    #[command(flatten)]
    pub chats: ChatArgs,
    /// Pooling of embeddings: last (the last token's hidden state) or mean (over all tokens)
    /// [default: as the model's files specify, or else last]
    #[arg(long, value_name = "HOW", value_parser = parse_pooling, help_heading = "Clients")]
    pub pooling: Option<Pooling>,
    /// Maximum number of new tokens for requests that do not set it [default: 16; chats: the rest
    /// of the context]
    #[arg(long, value_name = "N", help_heading = "Clients")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Seed of sampling for requests without a seed, and of dummy weights
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Clients")]
    pub seed: u64,
    /// Ignore unknown and unimplemented request fields instead of rejecting the request
    #[arg(long, help_heading = "Clients")]
    pub ignore_unknown_fields: bool,

    /// Maximum number of sequences computed at a time [default: as many as fit in memory, at most
    /// 32]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub slots: Option<u16>,
    /// Maximum number of positions of a sequence, prompt and answer together [default: the model's
    /// own maximum]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub context: Option<u32>,
    /// Maximum predicted time of a step, in milliseconds, which bounds how long prompts delay other
    /// answers [default: 100, or 3 times the time to decode a token in every slot, if longer]
    #[arg(long, value_name = "MS", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub step_ms: Option<u32>,
    /// Keep KV caches that do not fit in device memory in host memory, and run their attention on
    /// the CPU, concurrently with the device, which computes all linears. Policy: auto (fastest as
    /// measured), neo, apex, fastdecode (all attention of answers on the CPU) or gpu-only
    /// (sequences that do not fit wait)
    #[arg(long, value_name = "POLICY", help_heading = "Placement")]
    #[arg(value_parser = parse_serving_policy)]
    #[arg(conflicts_with_all = ["policy", "split", "split_chunks", "nvme"])]
    pub host_attention: Option<scheduler::hybrid::SchedulingPolicy>,
    /// Number of sequences with KV caches in device memory [default: as many as fit]
    #[arg(long, value_name = "N", help_heading = "Placement", requires = "host_attention")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub device_slots: Option<u16>,
    /// Write the measured costs of iterations, for plan --serve --costs FILE, which predicts the
    /// tokens per second of every policy for a load of requests
    #[arg(long, value_name = "FILE", help_heading = "Placement", requires = "host_attention")]
    pub costs: Option<PathBuf>,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub nvme: NvmeArgs,
    #[command(flatten)]
    pub prompts: PromptCacheArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,

    /// Stop as on SIGTERM when stdin reaches its end, so that this process does not outlive the
    /// program that started it
    #[arg(long, help_heading = "Clients")]
    pub stop_at_eof: bool,

    /// Write a line of JSON for each request; - is stderr
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub log: Option<PathBuf>,
    /// Print only errors
    #[arg(long, short, help_heading = "Verbosity")]
    pub quiet: bool,
}
