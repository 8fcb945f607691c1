//! What was measured on a machine: the result of profiling, as it is cached.

use std::collections::HashSet;

use program::topology::LaneId;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::key::{Extent, Key, Point};
use crate::request::Threads;
use crate::stat::{Stat, median};

/// Version of the cached form; another one is not read.
pub const VERSION: u32 = 5;

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
    /// The number of the CPU's threads with which the operations of a layer take least in decode.
    pub best_cpu_threads: u16,
    /// Ordered by lane, work and point.
    pub work: Vec<Measured>,
    /// One curve per class of operations; empty when it was left out.
    pub sweep: Vec<Sweep>,
    pub overhead: Overhead,
    /// What was to be measured and was not.
    pub skipped: Vec<Skipped>,
    /// Plans that were tried out since.
    pub rehearsals: Vec<Rehearsal>,
    /// Runs that ended since, the newest last; of each plan, and of all, only the last ones.
    pub finished: Vec<Finished>,
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
    /// Whether equal work took other times, even when measured again. The time is that of all equal
    /// work in any case.
    pub disputed: bool,
}

/// A point that nothing was measured at, for want of time or because lanes never met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// What would have been measured, in words.
    pub what: String,
    #[serde(flatten)]
    pub extent: Extent,
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
    /// [`plan_key`](crate::plan_key::plan_key) of the plan.
    pub plan: String,
    /// Decode steps of a group.
    pub steps: u32,
    /// From the start of a group's first decode step to the end of its last one, for each group in
    /// the order in which they ran; not empty.
    pub groups_ns: Vec<u64>,
    /// Times the workers were started anew for them.
    pub sessions: u32,
}

impl Rehearsal {
    /// The median group.
    pub fn decode_ns(&self) -> f64 {
        median_of(self.groups_ns.iter().map(|ns| *ns as f64)).unwrap_or_default()
    }

    /// From the shortest group to the longest, as a share of the median.
    pub fn spread(&self) -> f64 {
        let (least, most) = (self.groups_ns.iter().min(), self.groups_ns.iter().max());
        let width_ns = most.zip(least).map_or(0, |(most, least)| most - least);
        width_ns as f64 / self.decode_ns().max(1.0)
    }
}

/// How long a run computed prompts and decoded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunTimes {
    pub prefill_ns: f64,
    pub decode_ns: f64,
}

/// What runs of a plan took over what was simulated of them, the medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    pub prefill: f64,
    pub decode: f64,
    /// How many there were.
    pub runs: usize,
}

impl Correction {
    /// No run says more than that: beyond it something else was the matter.
    const BOUNDS: (f64, f64) = (0.5, 2.0);
}

/// A run that did all that was predicted of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// [`plan_key`](crate::plan_key::plan_key) of the plan.
    pub plan: String,
    /// By the profile alone, without rehearsals and earlier runs.
    pub simulated: RunTimes,
    pub measured: RunTimes,
}

impl Profile {
    /// Adds what another profile of the same model measured of kinds of work that this one has not,
    /// and its rehearsals.
    pub fn add(&mut self, other: &Profile) {
        let known: HashSet<Key> =
            self.measurements.work.iter().map(|measured| measured.key).collect();
        let work = &other.measurements.work;
        let unknown = work.iter().filter(|measured| !known.contains(&measured.key)).cloned();
        self.measurements.work.extend(unknown);
        self.measurements.rehearsals.extend(other.measurements.rehearsals.iter().cloned());
    }

    /// What the last runs of this very plan took over what was simulated of them; `None` where it
    /// never ran to its end.
    pub fn correction(&self, plan: &str) -> Option<Correction> {
        let runs = || self.measurements.finished.iter().filter(|run| run.plan == plan);
        let (least, most) = Correction::BOUNDS;
        let median_ratio = |phase_ns: fn(&RunTimes) -> f64| {
            let ratios = runs().map(|run| phase_ns(&run.measured) / phase_ns(&run.simulated));
            Some(median_of(ratios.filter(|ratio| ratio.is_finite()))?.clamp(least, most))
        };
        Some(Correction {
            prefill: median_ratio(|times| times.prefill_ns)?,
            decode: median_ratio(|times| times.decode_ns)?,
            runs: runs().count(),
        })
    }

    /// The profile whose every work takes what its samples spread less, or more: of a run what it
    /// takes if all that is uncertain comes together.
    #[must_use]
    pub fn at(&self, end: End) -> Profile {
        let mut profile = self.clone();
        for measured in &mut profile.measurements.work {
            let time = &mut measured.time;
            time.mean_ns = match end {
                End::Low => (time.mean_ns - time.deviation_ns).max(time.min_ns.min(time.mean_ns)),
                End::High => time.mean_ns + time.deviation_ns,
            };
        }
        profile
    }
}

/// An end of what a profile leaves uncertain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Low,
    High,
}

impl Measurements {
    /// Runs of one plan that are kept, and of all plans.
    const FINISHED_MAX: (usize, usize) = (8, 256);

    /// Adds a run, and drops the oldest beyond what is kept.
    pub(crate) fn finish(&mut self, run: Finished) {
        let (of_plan, of_all) = Measurements::FINISHED_MAX;
        let mut earlier = self.finished.iter().filter(|other| other.plan == run.plan).count();
        self.finished.retain(|other| {
            let is_beyond = other.plan == run.plan && earlier >= of_plan;
            earlier -= usize::from(is_beyond);
            !is_beyond
        });
        self.finished.push(run);
        let beyond = self.finished.len().saturating_sub(of_all);
        self.finished.drain(..beyond);
    }
}

fn median_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    median(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rehearsal(groups_ns: &[u64]) -> Rehearsal {
        Rehearsal { plan: String::new(), steps: 1, groups_ns: groups_ns.to_vec(), sessions: 1 }
    }

    #[test]
    fn one_long_group_does_not_move_a_rehearsal() {
        let disturbed = rehearsal(&[100, 275, 102, 101]);
        assert_eq!(disturbed.decode_ns(), 101.5);
        assert!((disturbed.spread() - 175.0 / 101.5).abs() < 1e-9);
        assert_eq!(rehearsal(&[7]).spread(), 0.0);
    }
}
