//! Validated requests of the tools, with defaults filled in.

use std::path::PathBuf;
use std::time::Duration;

use hyper::header::HeaderValue;
use model::config::Dtype;
use scheduler::hybrid::SchedulingPolicy;
use session::request::{ModelChoice, PlanWorkload, Verbosity};
use workers::device::RateSizes;

use crate::load::api::Api;
use crate::load::arrivals::Rate;
use crate::load::server_url::ServerUrl;
use crate::load::slo::Slo;

/// Request of `bench-serve`: a server to measure, and its load.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchServeRequest {
    pub target: ServerUrl,
    pub api: Api,
    /// Name of the model in requests; `None`: requests name no model.
    pub model: Option<String>,
    /// `Bearer` and the key; never printed.
    pub authorization: Option<HeaderValue>,
    /// Time limit of each answer.
    pub timeout: Duration,
    pub lengths: LengthsChoice,
    /// Rate of arrivals; `None`: all at once, or a trace's own times.
    pub rate: Option<Rate>,
    /// Number of requests; `None`: the default, or all of a trace.
    pub requests: Option<usize>,
    /// Exclusive upper bound of the prompts' token ids.
    pub vocab_size: u32,
    pub seed: u64,
    pub slo: Slo,
    pub json: bool,
}

/// Lengths of prompts and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LengthsChoice {
    Fixed {
        prompt_tokens: u32,
        answer_tokens: u32,
    },
    /// Rows drawn at random from a table.
    Rows(PathBuf),
    /// Rows of a table in order, at their own times.
    Trace(PathBuf),
}

/// A model and requests for a described machine that serves.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingWorkload {
    pub model: ModelChoice,
    pub dtype: Dtype,
    pub load: LoadChoice,
    /// Maximum number of rows in an iteration.
    pub step_rows: u32,
    /// Additional replay in timed emulation, if requested.
    pub timed: Option<TimedReplay>,
}

/// Load of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadChoice {
    pub lengths: LengthsChoice,
    /// Rate of arrivals; `None`: all at once, or a trace's own times.
    pub rate: Option<Rate>,
    /// Number of requests; `None`: the default, or all of a trace.
    pub requests: Option<usize>,
    pub seed: u64,
}

/// Replay of requests in timed emulation: on the real processes, without computing anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimedReplay {
    pub policy: SchedulingPolicy,
    /// Number of sequences with caches in device memory; `None`: as many as fit.
    pub device_slots: Option<u16>,
}

/// Request of timed emulation: programs to run without computing anything, and the output.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedRequest {
    pub source: TimedSource,
    /// Number of new tokens; one step less is measured.
    pub gen_len: u32,
    pub json: bool,
    pub report: Option<PathBuf>,
    pub trace: Option<PathBuf>,
    pub verbosity: Verbosity,
}

/// Source of the times.
#[derive(Debug, Clone, PartialEq)]
pub enum TimedSource {
    /// A table of one layer's times, used for each of `layers` layers.
    Tables { tables: PathBuf, layers: usize },
    /// A described machine, as a file or the name of one, with a model.
    Machine { machine: String, workload: Box<PlanWorkload> },
}

/// Hidden request: measurements of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RatesRequest {
    pub device: u32,
    pub kind: RateKind,
}

/// Rates to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateKind {
    /// Only the amounts of free and total memory.
    Memory,
    /// Copies and matrix products.
    Basic(RateSizes),
    /// Kernels whose names contain the text.
    Kernels(String),
    /// Small copies concurrently with products of matrices with `matrix` rows, in one process and
    /// in two.
    SmallCopies { matrix: u32 },
    /// No rates: multiplies matrices with `matrix` rows until stdin ends, while another process
    /// measures.
    KeepBusy { matrix: u32 },
}
