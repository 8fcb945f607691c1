//! Turns spans into samples: the work of each span, its point, and the concurrent lanes.

use std::collections::{HashMap, HashSet};

use model::config::ModelConfig;
use model::ops::Op;
use program::ir::{Instruction, Program};
use program::map::Phase;
use program::plan::Plan;
use program::topology::{LaneId, LaneSet};
use shm::TraceRecord;

use crate::equal_work::representative;
use crate::key::{Extent, Point, ProfiledWork, WorkKey};
use crate::stat::Stat;

/// A span is concurrent with a lane that was busy for at least this fraction of it,
const CONCURRENT_SHARE_MIN: f64 = 0.95;
/// and not concurrent with a lane that was busy for at most this fraction; in between it is
/// discarded.
const ALONE_SHARE_MAX: f64 = 0.05;
/// Minimum size of a copy from which the link's speed is derived.
const LINK_BYTES_MIN: u64 = 1 << 20;

/// One group's trace, and its extent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupTrace<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) program: &'a Program,
    pub(crate) extent: Extent,
    pub(crate) records: &'a [(LaneId, TraceRecord)],
    /// Number of warm-up steps.
    pub(crate) skip_steps: u32,
    /// Tokens are sampled from the vocabulary of the profile, not from a small one.
    pub(crate) samples_count: bool,
}

impl GroupTrace<'_> {
    fn phase(&self) -> Phase {
        self.program.shape.rows.phase()
    }
}

/// Work at a point, concurrent with the lanes of a set.
pub(crate) type SampleKey = (WorkKey, Point, LaneSet);

/// Collects samples over all experiments.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    samples_ns: HashMap<SampleKey, Vec<u64>>,
    /// Cases of equal work that took different times.
    disputed: HashSet<SampleKey>,
    pub(crate) wake_ns: Vec<u64>,
    pub(crate) empty_ns: Vec<u64>,
    pub(crate) between_ns: Vec<u64>,
    link_bytes: u64,
    link_ns: u64,
}

impl Recorder {
    /// Records the spans of one group.
    pub(crate) fn record(&mut self, trace: GroupTrace<'_>) {
        let program = trace.program;
        let lanes = by_lane(&trace);
        for list in &program.lanes {
            let own = &lanes[list.lane.index()];
            for record in own.iter().filter(|record| record.step >= trace.skip_steps) {
                let Some(work) = list.instructions.get(record.instruction as usize) else {
                    continue;
                };
                self.record_span(&trace, list.lane, work, record, &lanes);
            }
            self.record_gaps(program, list.lane, &lanes);
        }
    }

    fn record_span(
        &mut self,
        trace: &GroupTrace<'_>,
        lane: LaneId,
        instruction: &Instruction,
        record: &TraceRecord,
        lanes: &[Vec<TraceRecord>],
    ) {
        let Some(key) = WorkKey::from_instruction(trace.plan, trace.phase(), lane, instruction)
        else {
            return;
        };
        if matches!(key.work, ProfiledWork::Compute { op: Op::Sample, .. }) && !trace.samples_count
        {
            return;
        }
        let length_ns = record.end_ns.saturating_sub(record.start_ns);
        if record.rows == 0 && matches!(instruction, Instruction::Compute(_)) {
            self.empty_ns.push(length_ns);
            return;
        }
        let heavy = trace.plan.topology.heavy_lanes();
        let Some(concurrent) = concurrent_lanes(heavy.without(lane), record, lanes) else { return };
        if lane == LaneId::H2D_WEIGHTS
            && concurrent == LaneSet::EMPTY
            && record.bytes >= LINK_BYTES_MIN
        {
            self.link_bytes += record.bytes;
            self.link_ns += length_ns;
        }
        let point = key.point(trace.phase(), trace.extent);
        self.samples_ns.entry((key, point, concurrent)).or_default().push(length_ns);
    }

    /// Records the time from a signal to the first work of a lane that was blocked on it, and the
    /// time between two consecutive instructions.
    fn record_gaps(&mut self, program: &Program, lane: LaneId, lanes: &[Vec<TraceRecord>]) {
        let Some(list) = program.lane(lane) else { return };
        for pair in lanes[lane.index()].windows(2) {
            let [before, after] = pair else { continue };
            if before.step != after.step {
                continue;
            }
            let (from, to) = (before.instruction as usize + 1, after.instruction as usize);
            let Some(order) = list.instructions.get(from..to) else { continue };
            if order.is_empty() {
                self.between_ns.push(after.start_ns.saturating_sub(before.end_ns));
            }
            let released = order.iter().filter_map(|instruction| match instruction {
                Instruction::Wait(wait) if !wait.previous_step => {
                    released_ns(program, wait.lane, wait.offset, after.step, lanes)
                }
                _ => None,
            });
            if let Some(released_ns) = released.max()
                && released_ns > before.end_ns
            {
                self.wake_ns.push(after.start_ns.saturating_sub(released_ns));
            }
        }
    }

    /// Returns the statistics of work without contention at a point, if it was measured.
    pub(crate) fn alone(&self, key: &WorkKey, point: Point) -> Option<Stat> {
        Stat::from_samples(self.samples_ns.get(&(*key, point, LaneSet::EMPTY))?)
    }

    /// Returns the speed of the copies of weights and caches so far, without contention.
    pub(crate) fn link_bytes_per_ns(&self) -> Option<f64> {
        (self.link_ns > 0).then(|| self.link_bytes as f64 / self.link_ns as f64)
    }

    /// Returns true if any work of a lane was concurrent with exactly the lanes of a set.
    pub(crate) fn has_met(&self, lane: LaneId, set: LaneSet) -> bool {
        self.samples_ns.keys().any(|(key, _, beside)| key.lane == lane && *beside == set)
    }

    /// Returns true if equal work takes different times without contention over `extent`.
    pub(crate) fn equals_differ(&self, config: &ModelConfig, phase: Phase, extent: Extent) -> bool {
        let here = |(key, point, concurrent): &SampleKey| {
            *concurrent == LaneSet::EMPTY && *point == key.point(phase, extent)
        };
        self.equals(config, &here).iter().any(|class| self.is_disputed(class))
    }

    /// Gives equal work the samples of all of it, and marks work whose samples contradict each
    /// other.
    pub(crate) fn pool_equals(&mut self, config: &ModelConfig) {
        for class in self.equals(config, &|_| true) {
            let is_disputed = self.is_disputed(&class);
            let samples = class.iter().flat_map(|case| &self.samples_ns[case]).copied();
            let samples: Vec<u64> = samples.collect();
            for case in class {
                self.samples_ns.insert(case, samples.clone());
                if is_disputed {
                    self.disputed.insert(case);
                }
            }
        }
    }

    /// Returns the groups of cases of equal work with several members.
    fn equals(
        &self,
        config: &ModelConfig,
        which: &dyn Fn(&SampleKey) -> bool,
    ) -> Vec<Vec<SampleKey>> {
        let mut classes: HashMap<SampleKey, Vec<SampleKey>> = HashMap::new();
        for case in self.samples_ns.keys().filter(|case| which(case)) {
            let (key, point, concurrent) = case;
            let class = (representative(config, key), *point, *concurrent);
            classes.entry(class).or_default().push(*case);
        }
        classes.into_values().filter(|class| class.len() > 1).collect()
    }

    /// Returns true if at least two of the cases differ by more than they spread.
    fn is_disputed(&self, class: &[SampleKey]) -> bool {
        let stats = class.iter().filter_map(|case| Stat::from_samples(&self.samples_ns[case]));
        let stats: Vec<Stat> = stats.collect();
        stats.iter().enumerate().any(|(i, a)| stats[..i].iter().any(|b| a.differs(b)))
    }

    /// Returns the statistics of all measurements, in no particular order, and whether equal work
    /// took different times.
    pub(crate) fn stats(&self) -> impl Iterator<Item = (SampleKey, Stat, bool)> + '_ {
        self.samples_ns.iter().filter_map(|(case, samples)| {
            Some((*case, Stat::from_samples(samples)?, self.disputed.contains(case)))
        })
    }
}

/// Returns the records of the measured program, by lane.
fn by_lane(trace: &GroupTrace<'_>) -> Vec<Vec<TraceRecord>> {
    let mut lanes = vec![Vec::new(); trace.plan.topology.lanes.len()];
    for (lane, record) in trace.records {
        if record.program == u32::from(trace.program.id.0) {
            lanes[lane.index()].push(*record);
        }
    }
    lanes
}

/// Returns the lanes among `others` that were busy during a span; `None` if one was busy for a part
/// of it.
fn concurrent_lanes(
    others: LaneSet,
    record: &TraceRecord,
    lanes: &[Vec<TraceRecord>],
) -> Option<LaneSet> {
    let mut concurrent = LaneSet::EMPTY;
    for other in others.iter() {
        let share = busy_share(record, &lanes[other.index()]);
        if share >= CONCURRENT_SHARE_MIN {
            concurrent = concurrent.with(other);
        } else if share > ALONE_SHARE_MAX {
            return None;
        }
    }
    Some(concurrent)
}

/// Returns the fraction of a span during which a lane was executing work.
fn busy_share(span: &TraceRecord, lane: &[TraceRecord]) -> f64 {
    let first = lane.partition_point(|other| other.end_ns <= span.start_ns);
    let busy_ns: u64 = lane[first..]
        .iter()
        .take_while(|other| other.start_ns < span.end_ns)
        .map(|other| other.end_ns.min(span.end_ns) - other.start_ns.max(span.start_ns))
        .sum();
    busy_ns as f64 / span.end_ns.saturating_sub(span.start_ns).max(1) as f64
}

/// Returns the end of the last work before a lane's signal number `offset` (from 1), in a step.
fn released_ns(
    program: &Program,
    lane: LaneId,
    offset: u32,
    step: u32,
    lanes: &[Vec<TraceRecord>],
) -> Option<u64> {
    let list = program.lane(lane)?;
    let mut signals =
        list.instructions.iter().enumerate().filter(|(_, i)| **i == Instruction::Signal);
    let (signal, _) = signals.nth(offset.checked_sub(1)? as usize)?;
    let records = &lanes[lane.index()];
    let after = records.partition_point(|r| (r.step, r.instruction as usize) < (step, signal));
    let last = records.get(after.checked_sub(1)?)?;
    (last.step == step).then_some(last.end_ns)
}
