//! What was measured on a machine: the result of profiling, as it is cached.

use program::topology::LaneId;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::key::{Key, Point};
use crate::request::Threads;
use crate::stat::Stat;

/// Version of the cached form; another one is not read.
pub const VERSION: u32 = 2;

/// Measurements and what they are valid for.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub fingerprint: Fingerprint,
    pub measurements: Measurements,
}

/// Everything that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// Compute threads in all of it but the sweep.
    pub threads: Threads,
    /// Ordered by lane, work and point.
    pub work: Vec<Measured>,
    /// One curve per class of operations; empty when it was left out.
    pub sweep: Vec<Sweep>,
    pub overhead: Overhead,
    /// Plans that were tried out since.
    pub rehearsals: Vec<Rehearsal>,
    /// How long profiling took.
    pub took_ms: u64,
}

/// One kind of work at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    #[serde(flatten)]
    pub key: Key,
    #[serde(flatten)]
    pub point: Point,
    /// Lanes that worked all the while beside it; empty: it ran alone.
    #[serde(with = "crate::lane_names::list")]
    pub beside: Vec<LaneId>,
    #[serde(flatten)]
    pub time: Stat,
}

/// A class of operations over the number of CPU threads, at the workload's shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// `linear`, `attention` or `small`.
    pub class: String,
    /// The operation that stands for the class.
    pub op: String,
    /// Ascending.
    pub curve: Vec<SweepPoint>,
    /// Threads of the smallest median.
    pub best_threads: u16,
}

/// A point of a [`Sweep`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    pub threads: u16,
    #[serde(flatten)]
    pub time: Stat,
}

/// What the runtime and measuring themselves cost; `None` where a run gave no sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// From a signal to the first work of a lane that was blocked on it.
    pub wake: Option<Stat>,
    /// A span of an operation that has nothing to do: what measuring adds to every span.
    pub empty_span: Option<Stat>,
    /// From the end of one span to the start of the next with nothing in between.
    pub between_spans: Option<Stat>,
}

/// What a plan took that was tried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rehearsal {
    /// [`Rehearsal::key`] of the plan.
    pub plan: String,
    /// Decode steps of a group.
    pub steps: u32,
    /// From the start of a group's first decode step to the end of its last one, mean over the
    /// groups.
    pub decode_ns: f64,
    pub groups: u32,
}
