//! Arguments of `bench-serve`, and their conversion to a request.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::header::HeaderValue;

use super::values::NamedChoice;
use lab::load::api::Api;
use lab::load::arrivals::{Rate, parse_rate};
use lab::load::client::parse_key;
use lab::load::server_url::{ServerUrl, parse_server_url};
use lab::load::slo::{Slo, parse_ms};
use lab::request::{BenchServeRequest, LengthsChoice};

/// Arguments of `bench-serve`.
#[derive(Debug, Args)]
pub struct BenchServeArgs {
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    #[arg(value_parser = parse_server_url, help_heading = "Server")]
    pub url: ServerUrl,
    /// API of the server: /v1/completions, or /completion of llama.cpp's server
    #[arg(long, value_enum, default_value = "openai", help_heading = "Server")]
    pub api: NamedChoice<Api>,
    /// Name of the model to send, for a server that requires one [default: none]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub model: Option<String>,
    /// Key to send as "Authorization: Bearer KEY" [default: none]. Arguments are visible to other
    /// users of this machine; prefer the environment variable
    #[arg(long, value_name = "KEY", env = "TANDEM_API_KEY", hide_env_values = true)]
    #[arg(value_parser = parse_key, help_heading = "Server")]
    pub api_key: Option<HeaderValue>,
    /// Maximum time for an answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, help_heading = "Server")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,

    /// Average number of requests per second, with Poisson arrivals; inf sends all at once
    /// [default: inf; with --trace, the trace's own times]
    #[arg(long, value_name = "R", value_parser = parse_rate, help_heading = "Load")]
    pub rate: Option<Rate>,
    /// Number of requests [default: 64; with --trace, all of the trace]
    #[arg(long, value_name = "N", help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Number of tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub input_len: u32,
    /// Number of tokens of each answer; end-of-sequence tokens do not end it
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub output_len: u32,
    /// Table of lengths to draw from, one row per request: prompt tokens, answer tokens. A
    /// preceding column of times and a first line of names are ignored
    #[arg(long, value_name = "FILE.csv", help_heading = "Load")]
    #[arg(conflicts_with_all = ["input_len", "output_len"])]
    pub lengths: Option<PathBuf>,
    /// Table of requests to replay row by row: arrival time (in seconds, or as 2023-11-16
    /// 18:17:03.98), prompt tokens, answer tokens; --rate stretches or compresses the times
    #[arg(long, value_name = "FILE.csv", help_heading = "Load")]
    #[arg(conflicts_with_all = ["lengths", "input_len", "output_len"])]
    pub trace: Option<PathBuf>,
    /// Draw the random tokens of prompts from the ids below N, all of which the model must have
    #[arg(long, value_name = "N", default_value_t = 20_000, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub vocab_size: u32,
    /// Seed of prompts, lengths and arrival times
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Load")]
    pub seed: u64,

    /// Maximum time to first token of a good answer, in milliseconds from its scheduled arrival
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = parse_ms)]
    #[arg(help_heading = "Goodput")]
    pub slo_ttft: Duration,
    /// Additional time to first token allowed per prompt token, in milliseconds
    #[arg(long, value_name = "MS", default_value = "3", value_parser = parse_ms)]
    #[arg(help_heading = "Goodput")]
    pub slo_ttft_per_token: Duration,
    /// Maximum average time between two tokens of a good answer, in milliseconds
    #[arg(long, value_name = "MS", default_value = "100", value_parser = parse_ms)]
    #[arg(help_heading = "Goodput")]
    pub slo_tpot: Duration,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Converts the arguments to a request.
pub(super) fn bench_serve(args: BenchServeArgs) -> BenchServeRequest {
    let lengths = match (args.trace, args.lengths) {
        (Some(trace), _) => LengthsChoice::Trace(trace),
        (None, Some(rows)) => LengthsChoice::Rows(rows),
        (None, None) => {
            LengthsChoice::Fixed { prompt_tokens: args.input_len, answer_tokens: args.output_len }
        }
    };
    BenchServeRequest {
        target: args.url,
        api: args.api.0,
        model: args.model,
        authorization: args.api_key,
        timeout: Duration::from_secs(args.timeout.into()),
        lengths,
        rate: args.rate,
        requests: args.requests.map(|requests| requests as usize),
        vocab_size: args.vocab_size,
        seed: args.seed,
        slo: Slo {
            first_token: args.slo_ttft,
            per_prompt_token: args.slo_ttft_per_token,
            per_token: args.slo_tpot,
        },
        json: args.json,
    }
}
