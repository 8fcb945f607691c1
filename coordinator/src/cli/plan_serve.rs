//! Arguments of `plan --serve`, and their conversion to a request.

use std::path::PathBuf;

use clap::Args;
use model::config::Dtype;
use schedule::hybrid::Policy;

use super::request::{LengthsChoice, LoadChoice, ModelChoice, ServingPlan, TimedReplay};
use super::values::parse_serving;
use crate::load::arrivals::{Rate, parse_rate};

/// Arguments of `plan --serve`.
#[derive(Debug, Args)]
pub struct LowPlanServe {
    /// With --machine or --costs: serve requests that come one by one instead of a batch job, under
    /// every policy: attention on the device (gpu-only), on the host (fastdecode), on both (neo,
    /// apex), and what each iteration makes best (auto)
    #[arg(long, requires = "served_on", help_heading = "Serving")]
    #[arg(conflicts_with_all = [
        "compress", "batches", "policy", "prompt_len", "gen_len", "split_chunks",
    ])]
    pub serve: bool,
    /// Instead of a machine and a model: what a server measured, as `serve --host-attention POLICY
    /// --costs FILE` wrote it
    #[arg(long, value_name = "FILE", requires = "serve", help_heading = "Serving")]
    #[arg(conflicts_with_all = ["machine", "model", "timed", "step_rows"])]
    pub costs: Option<PathBuf>,
    /// Lengths and arrivals out of a table, row by row: a time in seconds or as 2023-11-16
    /// 18:17:03.98, tokens of a prompt, tokens of an answer; the first line may be names
    #[arg(long, value_name = "FILE.csv", requires = "serve", help_heading = "Serving")]
    #[arg(conflicts_with_all = ["input_len", "output_len"])]
    pub trace: Option<PathBuf>,
    /// How many requests [default: 1000; of a trace all]
    #[arg(long, value_name = "N", requires = "serve", help_heading = "Serving")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Serving")]
    #[arg(requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    pub input_len: u32,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Serving")]
    #[arg(requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    pub output_len: u32,
    /// Requests a second on average, at the arrivals of a Poisson process; a trace's own are
    /// stretched or pressed together; inf: all at once [default: inf, and a trace's own]
    #[arg(long, value_name = "R", requires = "serve", help_heading = "Serving")]
    #[arg(value_parser = parse_rate)]
    pub rate: Option<Rate>,
    /// Of arrivals
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Serving")]
    #[arg(requires = "serve")]
    pub seed: u64,
    /// Most rows of an iteration; at least as many as the longest request has tokens
    #[arg(long, value_name = "N", default_value_t = 2048, help_heading = "Serving")]
    #[arg(requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    pub step_rows: u32,
    /// Replay the requests under a policy on the real processes and programs, in which nothing but
    /// time passes, and tell each iteration's time beside the simulated one; --chart then has two
    /// layers of an iteration
    #[arg(long, value_name = "POLICY", requires = "serve", help_heading = "Serving")]
    #[arg(value_parser = parse_serving)]
    pub timed: Option<Policy>,
    /// In the replay, sequences whose caches are in device memory [default: as many of the longest
    /// as it has room for]
    #[arg(long, value_name = "N", requires = "timed", help_heading = "Serving")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub device_slots: Option<u16>,
}

/// Converts the arguments to a request.
pub(super) fn plan_serve(model: ModelChoice, dtype: Dtype, low: LowPlanServe) -> ServingPlan {
    ServingPlan {
        model,
        dtype,
        load: load(&low),
        step_rows: low.step_rows,
        timed: low.timed.map(|policy| TimedReplay { policy, device_slots: low.device_slots }),
    }
}

/// Returns the requests to simulate.
pub(super) fn load(low: &LowPlanServe) -> LoadChoice {
    let lengths = match &low.trace {
        Some(trace) => LengthsChoice::Trace(trace.clone()),
        None => {
            LengthsChoice::Alike { prompt_tokens: low.input_len, answer_tokens: low.output_len }
        }
    };
    LoadChoice {
        lengths,
        rate: low.rate,
        requests: low.requests.map(|requests| requests as usize),
        seed: low.seed,
    }
}
