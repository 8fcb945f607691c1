//! What the trace says about a run: busy time by lane, overlap, time outside.

use std::collections::BTreeMap;

use program::ir::{Instruction, Lane, Phase};
use program::plan::Plan;
use shm::TraceRecord;

/// Spans of one group are swept when it ends; more than this many are not kept (and counted).
const SPANS_MAX: usize = 2_000_000;

/// One executed instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub lane: Lane,
    pub record: TraceRecord,
}

/// Sums over the decode steps of all groups, nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Time each lane was inside work, both phases.
    pub busy_ns: BTreeMap<Lane, u64>,
    /// Decode: time any h2d lane was busy.
    pub h2d_ns: u64,
    /// Decode: time an h2d lane and the CPU's compute lane were both busy.
    pub overlap_ns: u64,
    /// Decode: from the first instruction to the last.
    pub decode_ns: u64,
    /// Decode: of that, time in which no lane was inside work.
    pub outside_ns: u64,
    /// Rows of the first layer's first operation in prefill: tokens really computed.
    pub prefill_rows: u64,
    /// Bytes of cache moved to the device.
    pub streamed_kv_bytes: u64,
    /// Bytes of weights moved to the device.
    pub streamed_weight_bytes: u64,
    /// Spans dropped because a group had too many, or a ring was full.
    pub lost: u64,
}

impl Totals {
    /// Share of the h2d lanes' busy time that the CPU computed beside; `None` without transfers.
    pub fn overlap(&self) -> Option<f64> {
        (self.h2d_ns > 0).then(|| self.overlap_ns as f64 / self.h2d_ns as f64)
    }

    /// Share of decode in which nothing was inside work; `None` when nothing was decoded.
    pub fn time_outside(&self) -> Option<f64> {
        (self.decode_ns > 0).then(|| self.outside_ns as f64 / self.decode_ns as f64)
    }
}

/// Collects the spans of a group.
#[derive(Debug, Default)]
pub struct Collector {
    pub spans: Vec<Span>,
    pub totals: Totals,
}

impl Collector {
    /// Takes a record from a lane's ring.
    pub fn push(&mut self, lane: Lane, record: &TraceRecord) {
        if self.spans.len() < SPANS_MAX {
            self.spans.push(Span { lane, record: *record });
        } else {
            self.totals.lost += 1;
        }
    }

    /// Adds the group's spans to the totals. They stay until [`Collector::clear`].
    pub fn end_group(&mut self, plan: &Plan) {
        for span in &self.spans {
            let length = span.record.end_ns - span.record.start_ns;
            *self.totals.busy_ns.entry(span.lane).or_insert(0) += length;
            self.count_bytes(plan, *span);
        }
        let decode: Vec<Span> =
            self.spans.iter().filter(|span| phase_of(&span.record) == Phase::Decode).copied().collect();
        sweep(&decode, &mut self.totals);
    }

    fn count_bytes(&mut self, plan: &Plan, span: Span) {
        use program::ir::Moved;
        let Some(instruction) = instruction(plan, span) else { return };
        let totals = &mut self.totals;
        match instruction {
            Instruction::Copy(copy) if span.lane == Lane::H2dWeights => match copy.moved {
                Moved::Cache(_) => totals.streamed_kv_bytes += span.record.bytes,
                Moved::Weights(_) => totals.streamed_weight_bytes += span.record.bytes,
                Moved::Value(_) => {}
            },
            Instruction::Compute(compute)
                if phase_of(&span.record) == Phase::Prefill
                    && compute.op == model::ops::Op::Embed =>
            {
                totals.prefill_rows += u64::from(span.record.rows);
            }
            _ => {}
        }
    }

    /// Forgets the group's spans.
    pub fn clear(&mut self) {
        self.spans.clear();
    }
}

/// The instruction a span ran.
pub fn instruction(plan: &Plan, span: Span) -> Option<&Instruction> {
    let program = match phase_of(&span.record) {
        Phase::Prefill => &plan.prefill,
        Phase::Decode => &plan.decode,
    };
    program.lane(span.lane)?.instructions.get(span.record.instruction as usize)
}

/// The phase of a record.
pub fn phase_of(record: &TraceRecord) -> Phase {
    if record.phase == Phase::Prefill as u32 { Phase::Prefill } else { Phase::Decode }
}

/// Walks starts and ends in time order and adds up how long which lanes were busy together.
fn sweep(spans: &[Span], totals: &mut Totals) {
    let mut events: Vec<(u64, i32, Lane)> = spans
        .iter()
        .flat_map(|span| {
            [(span.record.start_ns, 1, span.lane), (span.record.end_ns, -1, span.lane)]
        })
        .collect();
    events.sort_unstable();
    let Some((mut last, _, _)) = events.first().copied() else { return };
    let mut busy = [0i32; Lane::ALL.len()];
    for (time, change, lane) in events {
        let length = time - last;
        let h2d = busy[Lane::H2dWeights.index()] + busy[Lane::H2dActivations.index()] > 0;
        totals.decode_ns += length;
        if h2d {
            totals.h2d_ns += length;
        }
        if h2d && busy[Lane::CpuCompute.index()] > 0 {
            totals.overlap_ns += length;
        }
        if busy.iter().all(|count| *count == 0) {
            totals.outside_ns += length;
        }
        busy[lane.index()] += change;
        last = time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(lane: Lane, start_ns: u64, end_ns: u64) -> Span {
        let record = TraceRecord { start_ns, end_ns, ..TraceRecord::default() };
        Span { lane, record }
    }

    #[test]
    fn overlap_and_time_outside_by_hand() {
        // h2d 0..10 and 20..30; cpu 5..25; d2h 40..50. Nothing runs in 30..40.
        let spans = [
            span(Lane::H2dWeights, 0, 10),
            span(Lane::CpuCompute, 5, 25),
            span(Lane::H2dActivations, 20, 30),
            span(Lane::D2h, 40, 50),
        ];
        let mut totals = Totals::default();
        sweep(&spans, &mut totals);
        assert_eq!((totals.h2d_ns, totals.overlap_ns), (20, 10));
        assert_eq!((totals.decode_ns, totals.outside_ns), (50, 10));
        assert_eq!(totals.overlap(), Some(0.5));
        assert_eq!(totals.time_outside(), Some(0.2));
    }
}
