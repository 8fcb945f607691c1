//! Arguments of `serve`.

use std::path::PathBuf;

use clap::Args;

use super::chats::LowChats;
use super::prompt_cache::LowPrompts;
use super::shared::{LowModel, LowPlacement};
use super::stage::LowNvme;
use super::values::{parse_body_size, parse_serving, parse_size};
use crate::server::cross_site::AllowedOrigin;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct LowServe {
    #[command(flatten)]
    pub of_model: LowModel,
    /// Another name by which requests may call the model; more than once for several. The first
    /// stands in answers [default: the model's own]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub served_model_name: Vec<String>,

    /// Address to listen at; 0.0.0.0 is every one of this machine
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Clients")]
    pub host: String,
    /// Port to listen at; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8000, help_heading = "Clients")]
    pub port: u16,
    /// Key that clients show as "Authorization: Bearer KEY" [default: none]. Other users of this
    /// machine see arguments: the variable is safer
    #[arg(long, value_name = "KEY", help_heading = "Clients")]
    #[arg(env = "TANDEM_API_KEY", hide_env_values = true)]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub api_key: Option<String>,
    /// Accept requests for this host name too. A server on a loopback address otherwise answers
    /// only for localhost and for addresses, so that no site can reach it by a name of its own;
    /// more than once for several
    #[arg(long, value_name = "NAME", help_heading = "Clients")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub allowed_host: Vec<String>,
    /// Allow pages of this origin, such as http://localhost:3000, to send requests from a browser
    /// and read the answers (CORS); * allows every site. More than once for several [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = AllowedOrigin::parse)]
    #[arg(help_heading = "Clients")]
    pub cors: Vec<AllowedOrigin>,
    /// Maximum number of open connections, as far as the limit on open files allows; for a further
    /// one the one that has been idle for longest is closed
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = "Clients")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Maximum size of a request's body; larger ones get 413
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_body_size)]
    #[arg(help_heading = "Clients")]
    pub max_body_size: u64,
    /// Memory for the answers of all requests until they are written; most of it goes to
    /// log-probabilities. A request that may need more gets 400, and 429 while others have it
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_size)]
    #[arg(help_heading = "Clients")]
    pub max_answer_memory: u64,
    /// Answers that may wait beside those that are computed; further requests get 429
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Clients")]
    pub max_queue: u32,
    /// Tokens of prompts that may wait to be computed
    #[arg(long, value_name = "N", default_value_t = 1_000_000, help_heading = "Clients")]
    pub max_queue_tokens: u64,
    /// Longest time for an answer, from the request's arrival [default: none]
    #[arg(long, value_name = "SECONDS", help_heading = "Clients")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: Option<u32>,
    /// How long answers may go on after SIGTERM or Ctrl-C; a second one ends at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Clients")]
    pub drain_timeout: u32,
    #[command(flatten)]
    pub chats: LowChats,
    /// New tokens, at most, for requests that do not say [default: 16; chats: the rest of the
    /// context]
    #[arg(long, value_name = "N", help_heading = "Clients")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Key of sampling for requests that name no seed, and of dummy weights
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Clients")]
    pub seed: u64,
    /// Leave out fields of requests that are not implemented, or not known, instead of refusing
    #[arg(long, help_heading = "Clients")]
    pub ignore_unknown_fields: bool,

    /// Sequences that are computed at a time [default: as many as memory has room for, at most 32]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub slots: Option<u16>,
    /// Positions of a sequence, prompt and answer, at most [default: the model's own]
    #[arg(long, value_name = "N", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub context: Option<u32>,
    /// How long a step may be predicted to take, so that prompts hold up other answers no longer
    /// [default: 100, or 3 times what a token of every slot takes, where that is more]
    #[arg(long, value_name = "MS", help_heading = "Placement")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub step_ms: Option<u32>,
    /// Keep the caches of sequences that the device has no room for in host memory, and let the CPU
    /// attend for them beside the device. Who decides: auto (what is measured to be most), neo,
    /// apex, fastdecode (all attention of answers on the CPU) or gpu-only (whoever has no room
    /// waits). All linears are the device's
    #[arg(long, value_name = "POLICY", help_heading = "Placement", value_parser = parse_serving)]
    #[arg(conflicts_with_all = ["policy", "split", "split_chunks", "nvme"])]
    pub host_attention: Option<schedule::hybrid::Policy>,
    /// Sequences whose caches are in device memory [default: as many as it has room for]
    #[arg(long, value_name = "N", help_heading = "Placement", requires = "host_attention")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub device_slots: Option<u16>,
    /// Write what iterations were measured to take, for plan --serve --costs FILE, which tells how
    /// many tokens a second every policy makes of requests
    #[arg(long, value_name = "FILE", help_heading = "Placement", requires = "host_attention")]
    pub costs: Option<PathBuf>,
    #[command(flatten)]
    pub placement: LowPlacement,
    #[command(flatten)]
    pub nvme: LowNvme,
    #[command(flatten)]
    pub prompts: LowPrompts,

    /// End as on SIGTERM once stdin ends: for programs that start this one and must not leave it
    /// behind
    #[arg(long, help_heading = "Clients")]
    pub stop_at_eof: bool,

    /// Write a line of JSON for each request; - is stderr
    #[arg(long, value_name = "FILE", help_heading = "Verbosity")]
    pub log: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short, help_heading = "Verbosity")]
    pub quiet: bool,
}
