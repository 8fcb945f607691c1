//! Arguments of `plan --serve`, and their conversion to a request.

use std::path::PathBuf;

use clap::Args;
use model::config::Dtype;
use scheduler::hybrid::SchedulingPolicy;

use super::values::parse_serving_policy;
use lab::load::arrivals::{Rate, parse_rate};
use lab::request::{LengthsChoice, LoadChoice, ServingWorkload, TimedReplay};
use session::request::ModelChoice;

/// Arguments of `plan --serve`.
#[derive(Debug, Args)]
pub struct PlanServeArgs {
    /// Simulate requests that arrive one by one instead of a batch job, under every policy:
    /// attention on the device (gpu-only), on the host (fastdecode), on both (neo, apex), and the
    /// best choice for each iteration (auto); requires --machine or --costs
    #[arg(long, requires = "served_on", help_heading = "Serving")]
    #[arg(conflicts_with_all = [
        "compress", "batches", "policy", "prompt_len", "gen_len", "split_chunks",
    ])]
    pub serve: bool,
    /// Iteration costs measured by a server, as written by `serve --host-attention POLICY --costs
    /// FILE`; replaces --machine and --model
    #[arg(long, value_name = "FILE", requires = "serve", help_heading = "Serving")]
    #[arg(conflicts_with_all = ["machine", "model", "timed", "step_rows"])]
    pub costs: Option<PathBuf>,
    /// Table of requests to replay row by row: arrival time (in seconds, or as 2023-11-16
    /// 18:17:03.98), prompt tokens, answer tokens; the first line may contain names
    #[arg(long, value_name = "FILE.csv", requires = "serve", help_heading = "Serving")]
    #[arg(conflicts_with_all = ["input_len", "output_len"])]
    pub trace: Option<PathBuf>,
    /// Number of requests [default: 1000; with --trace, all of the trace]
    #[arg(long, value_name = "N", requires = "serve", help_heading = "Serving")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// Number of tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Serving")]
    #[arg(requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    pub input_len: u32,
    /// Number of tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Serving")]
    #[arg(requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    pub output_len: u32,
    /// Average number of requests per second, with Poisson arrivals, or with the times of a trace
    /// stretched or compressed; inf sends all at once [default: inf; with --trace, the trace's own
    /// times]
    #[arg(long, value_name = "R", requires = "serve", help_heading = "Serving")]
    #[arg(value_parser = parse_rate)]
    pub rate: Option<Rate>,
    /// Seed of the arrival times
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Serving")]
    #[arg(requires = "serve")]
    pub seed: u64,
    /// Maximum number of rows in an iteration; raised to the number of tokens of the longest
    /// request if that is larger
    #[arg(long, value_name = "N", default_value_t = 2048, help_heading = "Serving")]
    #[arg(requires = "serve", value_parser = clap::value_parser!(u32).range(1..))]
    pub step_rows: u32,
    /// Also replay the requests under POLICY on the real processes and programs without computing
    /// anything, and compare the time of each iteration with the simulated one; --chart then writes
    /// two layers of an iteration
    #[arg(long, value_name = "POLICY", requires = "serve", help_heading = "Serving")]
    #[arg(value_parser = parse_serving_policy)]
    pub timed: Option<SchedulingPolicy>,
    /// Number of sequences with caches in device memory during the replay [default: as many of the
    /// longest sequences as fit]
    #[arg(long, value_name = "N", requires = "timed", help_heading = "Serving")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub device_slots: Option<u16>,
}

/// Converts the arguments to a request.
pub(super) fn plan_serve(model: ModelChoice, dtype: Dtype, args: PlanServeArgs) -> ServingWorkload {
    ServingWorkload {
        model,
        dtype,
        load: load_choice(&args),
        step_rows: args.step_rows,
        timed: args.timed.map(|policy| TimedReplay { policy, device_slots: args.device_slots }),
    }
}

/// Returns the requests to simulate.
pub(super) fn load_choice(args: &PlanServeArgs) -> LoadChoice {
    let lengths = match &args.trace {
        Some(trace) => LengthsChoice::Trace(trace.clone()),
        None => {
            LengthsChoice::Fixed { prompt_tokens: args.input_len, answer_tokens: args.output_len }
        }
    };
    LoadChoice {
        lengths,
        rate: args.rate,
        requests: args.requests.map(|requests| requests as usize),
        seed: args.seed,
    }
}
