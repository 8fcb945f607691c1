//! Measurements of a machine: the result of profiling, as it is cached.

use std::collections::HashSet;

use program::topology::LaneId;
use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::key::{Extent, Point, WorkKey};
use crate::request::ComputeThreads;
use crate::stat::{Stat, median};

/// Version of the cached format; other versions are not read.
pub const VERSION: u32 = 5;

/// Measurements and the conditions under which they are valid.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub fingerprint: Fingerprint,
    pub measurements: ProfileMeasurements,
}

/// All measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileMeasurements {
    /// Compute threads in all measurements except the sweep.
    pub threads: ComputeThreads,
    /// Number of the CPU's threads with which the operations of a layer take the least time in
    /// decode.
    pub best_cpu_threads: u16,
    /// Measurements ordered by lane, work and point.
    pub work: Vec<WorkMeasurement>,
    /// One curve per class of operations; empty if the sweep was left out.
    pub sweep: Vec<Sweep>,
    pub overhead: Overhead,
    /// Points that were not measured.
    pub skipped: Vec<SkippedPoint>,
    /// Plans that were rehearsed since.
    pub rehearsals: Vec<RehearsalTimes>,
    /// Runs that completed since, the newest last; only the most recent ones per plan, and of all
    /// plans, are kept.
    pub finished: Vec<CompletedRun>,
    /// Duration of profiling.
    pub took_ms: u64,
}

/// One kind of work at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkMeasurement {
    #[serde(flatten)]
    pub key: WorkKey,
    #[serde(flatten)]
    pub point: Point,
    /// Lanes that worked concurrently all the time; empty if it ran alone.
    #[serde(rename = "beside", with = "crate::lane_names::list")]
    pub concurrent: Vec<LaneId>,
    #[serde(flatten)]
    pub time: Stat,
    /// Equal work took different times, even when measured again. The time is that of all equal
    /// work in any case.
    pub disputed: bool,
}

/// A point at which nothing was measured, for lack of time or because lanes never overlapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedPoint {
    /// Description of the measurement.
    pub what: String,
    #[serde(flatten)]
    pub extent: Extent,
}

/// Time of a class of operations as a function of the number of CPU threads, at the workload's
/// shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// `linear`, `attention` or `small`.
    pub class: String,
    /// The operation that represents the class.
    pub op: String,
    /// Ascending.
    pub curve: Vec<SweepPoint>,
    /// Number of threads with the smallest median.
    pub best_threads: u16,
}

/// A point of a [`Sweep`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    pub threads: u16,
    #[serde(flatten)]
    pub time: Stat,
}

/// Overhead of the runtime and of measuring; `None` if a run gave no sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Time from a signal to the first work of a lane that was blocked on it.
    pub wake: Option<Stat>,
    /// Duration of an empty operation's span, which measuring adds to every span.
    pub empty_span: Option<Stat>,
    /// Time from the end of one span to the start of the next if nothing is in between.
    pub between_spans: Option<Stat>,
}

/// Durations of a plan that was rehearsed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RehearsalTimes {
    /// [`plan_key`](crate::plan_key::plan_key) of the plan.
    pub plan: String,
    /// Number of decode steps of a group.
    pub steps: u32,
    /// Time from the start of a group's first decode step to the end of its last one, for each
    /// group in the order of execution; not empty.
    pub groups_ns: Vec<u64>,
    /// Number of times that the workers were started for it.
    pub sessions: u32,
}

impl RehearsalTimes {
    /// Returns the duration of the median group.
    pub fn decode_ns(&self) -> f64 {
        median_of(self.groups_ns.iter().map(|ns| *ns as f64)).unwrap_or_default()
    }

    /// Returns the difference between the longest and the shortest group as a fraction of the
    /// median.
    pub fn spread(&self) -> f64 {
        let (min, max) = (self.groups_ns.iter().min(), self.groups_ns.iter().max());
        let width_ns = max.zip(min).map_or(0, |(most, least)| most - least);
        width_ns as f64 / self.decode_ns().max(1.0)
    }
}

/// Durations of a run's prefill and decode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunTimes {
    pub prefill_ns: f64,
    pub decode_ns: f64,
}

/// Medians over runs of a plan of the ratio of actual to simulated durations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    pub prefill: f64,
    pub decode: f64,
    /// Number of runs.
    pub runs: usize,
}

impl Correction {
    /// Limits of the correction: a ratio beyond them had another cause.
    const RATIO_RANGE: (f64, f64) = (0.5, 2.0);
}

/// A run that completed as predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompletedRun {
    /// [`plan_key`](crate::plan_key::plan_key) of the plan.
    pub plan: String,
    /// Durations predicted by the profile alone, without rehearsals and earlier runs.
    pub simulated: RunTimes,
    pub measured: RunTimes,
}

impl Profile {
    /// Adds the kinds of work that another profile of the same model measured and this one did not,
    /// and its rehearsals.
    pub fn merge_missing(&mut self, other: &Profile) {
        let known: HashSet<WorkKey> =
            self.measurements.work.iter().map(|measured| measured.key).collect();
        let work = &other.measurements.work;
        let unknown = work.iter().filter(|measured| !known.contains(&measured.key)).cloned();
        self.measurements.work.extend(unknown);
        self.measurements.rehearsals.extend(other.measurements.rehearsals.iter().cloned());
    }

    /// Returns the correction from the most recent runs of this very plan; `None` if it never ran
    /// to its end.
    pub fn correction(&self, plan: &str) -> Option<Correction> {
        let runs = || self.measurements.finished.iter().filter(|run| run.plan == plan);
        let (min, max) = Correction::RATIO_RANGE;
        let median_ratio = |phase_ns: fn(&RunTimes) -> f64| {
            let ratios = runs().map(|run| phase_ns(&run.measured) / phase_ns(&run.simulated));
            Some(median_of(ratios.filter(|ratio| ratio.is_finite()))?.clamp(min, max))
        };
        Some(Correction {
            prefill: median_ratio(|times| times.prefill_ns)?,
            decode: median_ratio(|times| times.decode_ns)?,
            runs: runs().count(),
        })
    }

    /// Returns the profile in which every work takes its mean minus, or plus, its spread: the range
    /// of a run's duration if all uncertainties accumulate.
    #[must_use]
    pub fn at_bound(&self, bound: UncertaintyBound) -> Profile {
        let mut profile = self.clone();
        for measured in &mut profile.measurements.work {
            let time = &mut measured.time;
            time.mean_ns = match bound {
                UncertaintyBound::Low => {
                    (time.mean_ns - time.deviation_ns).max(time.min_ns.min(time.mean_ns))
                }
                UncertaintyBound::High => time.mean_ns + time.deviation_ns,
            };
        }
        profile
    }
}

/// An end of a profile's range of uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UncertaintyBound {
    Low,
    High,
}

impl ProfileMeasurements {
    /// Number of runs that are kept for one plan, and for all plans.
    const KEPT_RUNS_MAX: (usize, usize) = (8, 256);

    /// Adds a run, and removes the oldest beyond the number that is kept.
    pub(crate) fn add_run(&mut self, run: CompletedRun) {
        let (of_plan, of_all) = ProfileMeasurements::KEPT_RUNS_MAX;
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

    fn rehearsal(groups_ns: &[u64]) -> RehearsalTimes {
        RehearsalTimes { plan: String::new(), steps: 1, groups_ns: groups_ns.to_vec(), sessions: 1 }
    }

    #[test]
    fn one_long_group_does_not_move_a_rehearsal() {
        let disturbed = rehearsal(&[100, 275, 102, 101]);
        assert_eq!(disturbed.decode_ns(), 101.5);
        assert!((disturbed.spread() - 175.0 / 101.5).abs() < 1e-9);
        assert_eq!(rehearsal(&[7]).spread(), 0.0);
    }
}
