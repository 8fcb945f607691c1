//! Measurements of a run from its trace: busy time of each lane, overlap, and time outside work.

use std::collections::BTreeMap;

use program::ir::{Instruction, ProgramId};
use program::plan::Plan;
use program::simulate::{LaneUsage, MeasuredCosts, simulate};
use program::topology::{LaneId, LaneKind};
use shm::TraceRecord;

/// Maximum number of spans kept for a group, which are evaluated when it ends; others are dropped
/// and counted.
const SPANS_MAX: usize = 2_000_000;

/// An executed instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSpan {
    pub lane: LaneId,
    pub record: TraceRecord,
}

/// Sums over all groups; times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceTotals {
    /// Time that each lane spent inside work, in all programs.
    pub busy_ns: BTreeMap<LaneId, u64>,
    /// Time of decode in which any h2d lane was busy.
    pub h2d_ns: u64,
    /// Time of decode in which an h2d lane and the CPU's compute lane were both busy.
    pub overlap_ns: u64,
    /// Time of decode from its first instruction to its last.
    pub decode_ns: u64,
    /// Part of `decode_ns` in which no lane was inside work.
    pub idle_ns: u64,
    /// Durations of the decode steps, each from the end of the previous step to its own end.
    pub steps_ns: Vec<u64>,
    /// Bytes of caches moved to the device.
    pub streamed_kv_bytes: u64,
    /// Bytes of weights moved to the device.
    pub streamed_weight_bytes: u64,
    /// Bytes read from storages, by lane.
    pub read_bytes: BTreeMap<LaneId, u64>,
    /// Number of requests of these reads, by lane.
    pub read_requests: BTreeMap<LaneId, u64>,
    /// Number of spans that were dropped because a group had too many or a ring was full.
    pub lost_spans: u64,
}

impl TraceTotals {
    fn count_bytes(&mut self, plan: &Plan, span: TraceSpan) {
        use program::ir::Moved;
        let Some(instruction) = instruction(plan, span) else { return };
        match instruction {
            Instruction::Copy(copy) if plan.topology.lane(span.lane).kind.uploads() => {
                match copy.moved {
                    Moved::Cache(_) | Moved::Sequences(_) => {
                        self.streamed_kv_bytes += span.record.bytes
                    }
                    Moved::Weights(_) => self.streamed_weight_bytes += span.record.bytes,
                    Moved::Value(_) | Moved::Deferred(_) => {}
                }
            }
            Instruction::Read(_) => {
                *self.read_bytes.entry(span.lane).or_insert(0) += span.record.bytes;
                *self.read_requests.entry(span.lane).or_insert(0) += u64::from(span.record.rows);
            }
            _ => {}
        }
    }

    fn add(&mut self, decode: &LaneUsage) {
        self.h2d_ns += decode.h2d_busy_ns;
        self.overlap_ns += decode.h2d_and_cpu_ns;
        self.decode_ns += decode.total_ns;
        self.idle_ns += decode.idle_ns;
    }

    /// Adds the durations of a group's steps.
    fn add_steps(&mut self, decode: &[program::simulate::Span]) {
        let mut ends_ns: BTreeMap<u32, u64> = BTreeMap::new();
        for span in decode {
            let end_ns = ends_ns.entry(span.step).or_default();
            *end_ns = span.end_ns.max(*end_ns);
        }
        let start_ns = decode.iter().map(|span| span.start_ns).min();
        let starts = start_ns.into_iter().chain(ends_ns.values().copied());
        // If records were lost, a step may seem to end before the previous one.
        let lengths = starts.zip(ends_ns.values()).map(|(start, end)| end.saturating_sub(start));
        self.steps_ns.extend(lengths);
    }

    /// Returns the duration that a `share` of all steps does not exceed, in ns; `None` if nothing
    /// was decoded.
    pub fn step_ns(&self, share: f64) -> Option<u64> {
        let mut sorted = self.steps_ns.clone();
        sorted.sort_unstable();
        let place = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(place.max(1) - 1).copied()
    }

    /// Returns the share of the h2d lanes' busy time during which the CPU computed; `None` without
    /// transfers, or if instructions are missing from the trace.
    pub fn overlap_share(&self) -> Option<f64> {
        (self.h2d_ns > 0 && self.lost_spans == 0)
            .then(|| self.overlap_ns as f64 / self.h2d_ns as f64)
    }

    /// Returns the share of decode in which no lane was inside work; `None` if nothing was decoded,
    /// or if instructions are missing from the trace.
    pub fn idle_share(&self) -> Option<f64> {
        (self.decode_ns > 0 && self.lost_spans == 0)
            .then(|| self.idle_ns as f64 / self.decode_ns as f64)
    }
}

/// Spans of the current group, and totals of all groups.
#[derive(Debug, Default)]
pub struct SpanCollector {
    pub spans: Vec<TraceSpan>,
    pub totals: TraceTotals,
}

impl SpanCollector {
    /// Adds a record from a lane's ring, or counts it as lost if there are too many.
    pub fn push(&mut self, lane: LaneId, record: &TraceRecord) {
        if self.spans.len() < SPANS_MAX {
            self.spans.push(TraceSpan { lane, record: *record });
        } else {
            self.totals.lost_spans += 1;
        }
    }

    /// Adds the group's spans to the totals. They are kept until [`SpanCollector::clear`].
    pub fn end_group(&mut self, plan: &Plan) {
        for span in &self.spans {
            let length = span.record.end_ns - span.record.start_ns;
            *self.totals.busy_ns.entry(span.lane).or_insert(0) += length;
            self.totals.count_bytes(plan, *span);
        }
        // A run that serves has no program for prompts alone.
        let is_decode = |program| plan.shape.serves || program == ProgramId::DECODE;
        let decode: Vec<_> =
            simulator_spans(self.spans.iter()).filter(|span| is_decode(span.program)).collect();
        self.totals.add(&LaneUsage::from_spans(&decode, &plan.topology));
        self.totals.add_steps(&decode);
    }

    /// Removes and returns the spans of the step `step` and of later ones.
    pub fn split_off(&mut self, step: u32) -> Vec<TraceSpan> {
        self.spans.extract_if(.., |span| span.record.step >= step).collect()
    }

    /// Removes the group's spans.
    pub fn clear(&mut self) {
        self.spans.clear();
    }
}

/// Returns the instruction that a span executed.
pub fn instruction(plan: &Plan, span: TraceSpan) -> Option<&Instruction> {
    let program = plan.programs.get(program_of(&span.record).index())?;
    program.lane(span.lane)?.instructions.get(span.record.instruction as usize)
}

/// Returns the program of a record.
pub fn program_of(record: &TraceRecord) -> ProgramId {
    ProgramId(record.program as u8)
}

/// Converts spans to those of the simulator.
pub(super) fn simulator_spans<'a>(
    spans: impl Iterator<Item = &'a TraceSpan> + 'a,
) -> impl Iterator<Item = program::simulate::Span> + 'a {
    spans.map(|span| program::simulate::Span {
        lane: span.lane,
        program: program_of(&span.record),
        step: span.record.step,
        instruction: span.record.instruction,
        start_ns: span.record.start_ns,
        end_ns: span.record.end_ns,
    })
}

/// Second half of a group's decode steps, as simulated with costs from the first half and as
/// measured.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodePrediction {
    pub simulated: DecodeInterval,
    pub measured: DecodeInterval,
}

/// Timing of decode steps, simulated or measured.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeInterval {
    pub duration_ns: f64,
    /// Busy time of each lane that has work.
    pub busy_ns: BTreeMap<LaneId, u64>,
    /// Spans of a step in the middle.
    pub middle_step: Vec<program::simulate::Span>,
}

impl DecodeInterval {
    /// Evaluates the steps after `before` up to and including `last`.
    fn from_spans(
        spans: &[program::simulate::Span],
        before: u32,
        last: u32,
    ) -> Option<DecodeInterval> {
        let end_of = |middle_step: u32| {
            spans.iter().filter(|span| span.step == middle_step).map(|span| span.end_ns).max()
        };
        let mut busy_ns = BTreeMap::new();
        for span in spans.iter().filter(|span| span.step > before && span.step <= last) {
            *busy_ns.entry(span.lane).or_default() += span.duration_ns();
        }
        let middle = before + (last - before).div_ceil(2);
        let middle_step = spans.iter().filter(|span| span.step == middle).copied().collect();
        Some(DecodeInterval {
            duration_ns: (end_of(last)? - end_of(before)?) as f64,
            busy_ns,
            middle_step,
        })
    }
}

/// Minimum number of decode steps for a prediction; fewer give no meaningful medians.
const PREDICTED_STEPS_MIN: u32 = 6;

/// Simulates the second half of a group's decode steps with each instruction's median cost in the
/// first half. Returns `None` if there are too few steps, the trace is incomplete, or batches
/// shrink. Both durations run from the end of the last span before these steps to the end of the
/// last span of the last step.
pub fn predict(plan: &Plan, spans: &[TraceSpan], wake_ns: f64) -> Option<DecodePrediction> {
    let decode: Vec<_> =
        simulator_spans(spans.iter()).filter(|span| span.program == ProgramId::DECODE).collect();
    let steps = decode.iter().map(|span| span.step + 1).max()?;
    // Costs of full batches do not apply to steps in which sequences have already ended.
    let rows_of = |step: u32| -> u64 {
        // Reads have no rows.
        let decode = spans.iter().filter(|span| {
            program_of(&span.record) == ProgramId::DECODE
                && plan.topology.lane(span.lane).kind != LaneKind::Read
        });
        decode.filter(|span| span.record.step == step).map(|s| u64::from(s.record.rows)).sum()
    };
    if steps < PREDICTED_STEPS_MIN || rows_of(1) != rows_of(steps - 1) {
        return None;
    }
    let half = steps / 2;
    // The first step starts cold: nothing was prefetched, and caches hold prefill's data.
    let first: Vec<_> =
        decode.iter().filter(|span| (1..half).contains(&span.step)).copied().collect();
    let costs = MeasuredCosts::new(&[plan.decode()], &first, wake_ns).ok()?;
    let simulated = simulate(plan.decode(), &costs, steps).ok()?;
    let (before, last) = (half - 1, steps - 1);
    Some(DecodePrediction {
        simulated: DecodeInterval::from_spans(&simulated.spans, before, last)?,
        measured: DecodeInterval::from_spans(&decode, before, last)?,
    })
}

#[cfg(test)]
mod tests {
    use program::topology::Topology;

    use super::*;

    fn span(lane: LaneId, start_ns: u64, end_ns: u64) -> TraceSpan {
        let program = ProgramId::DECODE.0.into();
        let record = TraceRecord { start_ns, end_ns, program, ..TraceRecord::default() };
        TraceSpan { lane, record }
    }

    #[test]
    fn overlap_and_time_outside_by_hand() {
        // h2d 0..10 and 20..30; cpu 5..25; d2h 40..50. Nothing runs in 30..40.
        let spans = [
            span(LaneId::H2D_WEIGHTS, 0, 10),
            span(LaneId::CPU_COMPUTE, 5, 25),
            span(LaneId::H2D_ACTIVATIONS, 20, 30),
            span(LaneId::D2H, 40, 50),
        ];
        let mut totals = TraceTotals::default();
        let spans: Vec<_> = simulator_spans(spans.iter()).collect();
        totals.add(&LaneUsage::from_spans(&spans, &Topology::with_device()));
        assert_eq!((totals.h2d_ns, totals.overlap_ns), (20, 10));
        assert_eq!((totals.decode_ns, totals.idle_ns), (50, 10));
        assert_eq!(totals.overlap_share(), Some(0.5));
        assert_eq!(totals.idle_share(), Some(0.2));
        totals.lost_spans = 1;
        assert_eq!((totals.overlap_share(), totals.idle_share()), (None, None));
    }

    #[test]
    fn steps_by_hand() {
        let mut totals = TraceTotals::default();
        assert_eq!(totals.step_ns(0.5), None);
        // Steps end at 30, 50 and 90; in each, a lane is ahead of the others.
        let spans = [(0, 10, 20), (0, 12, 30), (1, 20, 50), (1, 32, 40), (2, 50, 90), (2, 50, 60)];
        let spans = spans.map(|(step, start, end)| {
            let mut span = span(LaneId::CPU_COMPUTE, start, end);
            span.record.step = step;
            span
        });
        totals.add_steps(&simulator_spans(spans.iter()).collect::<Vec<_>>());
        assert_eq!(totals.steps_ns, [20, 20, 40]);
        assert_eq!([0.5, 0.95, 1.0].map(|share| totals.step_ns(share)), [20, 40, 40].map(Some));
        totals.add_steps(&[]);
        assert_eq!(totals.steps_ns.len(), 3);
    }
}
