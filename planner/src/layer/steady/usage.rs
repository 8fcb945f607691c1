//! Usage of the lanes within a window.

use crate::layer::time::Ps;

use super::timeline::{LayerLane, OpSpan};

/// Busy times within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBusyTimes {
    pub total: Ps,
    /// Busy time of each lane, in the order of [`LayerLane::ALL`].
    pub busy: [Ps; 5],
    /// Time in which the link and the CPU are both busy.
    pub h2d_and_cpu: Ps,
    /// Time in which no lane is busy.
    pub idle: Ps,
}

impl LaneBusyTimes {
    /// Computes the usage from spans, within `window`.
    pub fn from_spans(spans: &[OpSpan], window: (Ps, Ps)) -> LaneBusyTimes {
        let mut edges: Vec<(Ps, bool, usize)> = Vec::new();
        for span in spans {
            let (start, end) = (span.start.max(window.0), span.end.min(window.1));
            let lane = LayerLane::ALL.iter().position(|lane| *lane == span.lane).unwrap_or(0);
            if start < end {
                edges.push((start, true, lane));
                edges.push((end, false, lane));
            }
        }
        // Ends come before starts, so that a lane is not busy twice where spans meet.
        edges.sort_unstable();
        let place =
            |lane: LayerLane| LayerLane::ALL.iter().position(|other| *other == lane).unwrap_or(0);
        let (cpu, h2d) = (place(LayerLane::Cpu), place(LayerLane::H2d));
        let total = window.1.saturating_sub(window.0);
        let mut usage =
            LaneBusyTimes { total, busy: [Ps::ZERO; 5], h2d_and_cpu: Ps::ZERO, idle: Ps::ZERO };
        let mut busy = [false; 5];
        let mut now = window.0;
        for (time, starts, lane) in edges.into_iter().chain([(window.1, false, 0)]) {
            let passed = time.saturating_sub(now);
            for (sum, is_busy) in usage.busy.iter_mut().zip(busy) {
                *sum += if is_busy { passed } else { Ps::ZERO };
            }
            usage.h2d_and_cpu += if busy[cpu] && busy[h2d] { passed } else { Ps::ZERO };
            usage.idle += if busy.contains(&true) { Ps::ZERO } else { passed };
            busy[lane] = starts;
            now = time;
        }
        usage
    }

    /// Returns the busy time of a lane.
    pub fn busy(&self, lane: LayerLane) -> Ps {
        let place = LayerLane::ALL.iter().position(|other| *other == lane).unwrap_or(0);
        self.busy[place]
    }

    /// Returns the fraction of the link's busy time in which the CPU computes; `None` without
    /// transfers.
    pub fn overlap(&self) -> Option<f64> {
        let h2d = self.busy(LayerLane::H2d);
        (h2d > Ps::ZERO).then(|| self.h2d_and_cpu.0 as f64 / h2d.0 as f64)
    }
}
