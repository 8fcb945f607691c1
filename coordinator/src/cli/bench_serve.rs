//! Arguments of `bench-serve`, and their conversion to a request.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::header::HeaderValue;

use super::request::{BenchServeRequest, LengthsChoice};
use crate::load::api::Api;
use crate::load::arrivals::{Rate, parse_rate};
use crate::load::client::parse_key;
use crate::load::slo::{Slo, parse_ms};
use crate::load::target::{Target, parse_target};

/// Arguments of `bench-serve`.
#[derive(Debug, Args)]
pub struct LowBenchServe {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    #[arg(value_parser = parse_target, help_heading = "Server")]
    pub url: Target,
    /// In what form it is asked: /v1/completions, or /completion of llama.cpp's server
    #[arg(long, value_enum, default_value = "openai", help_heading = "Server")]
    pub api: Api,
    /// The model's name, for a server that wants one [default: none is sent]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub model: Option<String>,
    /// Key that is sent as "Authorization: Bearer KEY" [default: none]. Other users of this machine
    /// see arguments: the variable is safer
    #[arg(long, value_name = "KEY", env = "TANDEM_API_KEY", hide_env_values = true)]
    #[arg(value_parser = parse_key, help_heading = "Server")]
    pub api_key: Option<HeaderValue>,
    /// Longest time for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, help_heading = "Server")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,

    /// Requests a second on average, at the arrivals of a Poisson process; inf sends all at once
    /// [default: inf, and a trace's own]
    #[arg(long, value_name = "R", value_parser = parse_rate, help_heading = "Load")]
    pub rate: Option<Rate>,
    /// How many requests [default: 64; of a trace all]
    #[arg(long, value_name = "N", help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub input_len: u32,
    /// Tokens of each answer; it goes on where it would have ended
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub output_len: u32,
    /// Lengths out of a table, a row drawn for each request: tokens of a prompt, tokens of an
    /// answer. A column of times before them is passed over, and so is a first line of names
    #[arg(long, value_name = "FILE.csv", help_heading = "Load")]
    #[arg(conflicts_with_all = ["input_len", "output_len"])]
    pub lengths: Option<PathBuf>,
    /// Such a table row by row at its own times, in seconds or as 2023-11-16 18:17:03.98; with
    /// --rate they are stretched or pressed together
    #[arg(long, value_name = "FILE.csv", help_heading = "Load")]
    #[arg(conflicts_with_all = ["lengths", "input_len", "output_len"])]
    pub trace: Option<PathBuf>,
    /// Prompts are of random tokens below N, which the model must have
    #[arg(long, value_name = "N", default_value_t = 20_000, help_heading = "Load")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub vocab_size: u32,
    /// Of prompts, lengths and arrivals
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Load")]
    pub seed: u64,

    /// A good answer's time to its first token, from its scheduled arrival
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = parse_ms)]
    #[arg(help_heading = "Goodput")]
    pub slo_ttft: Duration,
    /// More of it for each token of the prompt
    #[arg(long, value_name = "MS", default_value = "3", value_parser = parse_ms)]
    #[arg(help_heading = "Goodput")]
    pub slo_ttft_per_token: Duration,
    /// A good answer's time between two tokens, on average
    #[arg(long, value_name = "MS", default_value = "100", value_parser = parse_ms)]
    #[arg(help_heading = "Goodput")]
    pub slo_tpot: Duration,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,
}

/// Converts the arguments to a request.
pub(super) fn bench_serve(low: LowBenchServe) -> BenchServeRequest {
    let lengths = match (low.trace, low.lengths) {
        (Some(trace), _) => LengthsChoice::Trace(trace),
        (None, Some(rows)) => LengthsChoice::Rows(rows),
        (None, None) => {
            LengthsChoice::Alike { prompt_tokens: low.input_len, answer_tokens: low.output_len }
        }
    };
    BenchServeRequest {
        target: low.url,
        api: low.api,
        model: low.model,
        authorization: low.api_key,
        timeout: Duration::from_secs(low.timeout.into()),
        lengths,
        rate: low.rate,
        requests: low.requests.map(|requests| requests as usize),
        vocab_size: low.vocab_size,
        seed: low.seed,
        slo: Slo {
            first_token: low.slo_ttft,
            per_prompt_token: low.slo_ttft_per_token,
            per_token: low.slo_tpot,
        },
        json: low.json,
    }
}
