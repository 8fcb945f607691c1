//! Usage of the lanes, computed from the spans of a run or of a simulation.

use super::span::Span;
use crate::topology::{HardwareEngine, LaneId, LaneKind, LaneSet, Topology};

/// Sums over a set of spans, which may be incomplete or unsorted.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneUsage {
    /// Time from the first start to the last end.
    pub total_ns: u64,
    /// Time inside work, by [`LaneId::index`].
    pub busy_ns: Vec<u64>,
    /// Time in which a host-to-device lane is busy.
    pub h2d_busy_ns: u64,
    /// Time in which a host-to-device lane and the CPU's compute lanes are both busy.
    pub h2d_and_cpu_ns: u64,
    /// Time in which no lane is inside work.
    pub idle_ns: u64,
}

impl LaneUsage {
    /// Computes the usage from `spans` of a machine's lanes; spans of one lane do not overlap.
    pub fn from_spans(spans: &[Span], topology: &Topology) -> LaneUsage {
        let uploads = topology.lane_set(|lane| lane.kind.uploads());
        let computes = topology
            .lane_set(|lane| lane.kind == LaneKind::Compute && lane.engine == HardwareEngine::Cpu);
        let mut usage = LaneUsage {
            total_ns: 0,
            busy_ns: vec![0; topology.lanes.len()],
            h2d_busy_ns: 0,
            h2d_and_cpu_ns: 0,
            idle_ns: 0,
        };
        // Ends come before starts at the same instant, so that a lane's next span finds it idle.
        let mut edges: Vec<(u64, bool, LaneId)> = Vec::with_capacity(2 * spans.len());
        for span in spans.iter().filter(|span| span.duration_ns() > 0) {
            usage.busy_ns[span.lane.index()] += span.duration_ns();
            edges.push((span.start_ns, true, span.lane));
            edges.push((span.end_ns, false, span.lane));
        }
        edges.sort_unstable();
        let mut busy = LaneSet::EMPTY;
        let mut now_ns = edges.first().map_or(0, |edge| edge.0);
        for (time_ns, starts, lane) in edges {
            let passed_ns = time_ns - now_ns;
            let h2d = busy.intersects(uploads);
            usage.total_ns += passed_ns;
            usage.h2d_busy_ns += if h2d { passed_ns } else { 0 };
            let both = h2d && busy.intersects(computes);
            usage.h2d_and_cpu_ns += if both { passed_ns } else { 0 };
            usage.idle_ns += if busy == LaneSet::EMPTY { passed_ns } else { 0 };
            busy = if starts { busy.with(lane) } else { busy.without(lane) };
            now_ns = time_ns;
        }
        usage
    }

    /// Share of the host-to-device time during which the CPU computes; `None` without such copies.
    pub fn overlap(&self) -> Option<f64> {
        (self.h2d_busy_ns > 0).then(|| self.h2d_and_cpu_ns as f64 / self.h2d_busy_ns as f64)
    }

    /// Share of the whole during which no lane is inside work; 0 of nothing.
    pub fn time_outside(&self) -> f64 {
        if self.total_ns == 0 { 0.0 } else { self.idle_ns as f64 / self.total_ns as f64 }
    }
}
