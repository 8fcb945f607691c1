//! Cost of a step, derived from a few measured steps.

/// Numbers of rows whose steps are measured.
pub const COST_POINTS: usize = 8;

/// Duration of a step as a function of its rows, and of attention as a function of the positions
/// that these attend to.
///
/// Linears cost what a step with the same number of rows and empty caches takes, interpolated
/// between two points; attention adds the cost of each row for each position before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCostCurve {
    /// Numbers of rows, ascending, and the duration of such a step in µs; points with 0 rows are
    /// unused.
    pub points: [(u32, u32); COST_POINTS],
    /// Cost of a row per position that it attends to, in picoseconds.
    pub position_ps: u32,
    /// Cost of the logits of a row and of its log-probabilities, in ns, for each row in addition to
    /// a sequence's last one.
    pub logits_row_ns: u32,
    /// Cost of the logits of a row with a drafted token and of the token drawn from them, in ns.
    pub draft_row_ns: u32,
}

impl StepCostCurve {
    /// No costs are known: every step is free.
    pub const NONE: StepCostCurve = StepCostCurve {
        points: [(0, 0); COST_POINTS],
        position_ps: 0,
        logits_row_ns: 0,
        draft_row_ns: 0,
    };

    /// Returns the duration of a step with `rows` rows that attend to `positions` positions in
    /// total, in ns.
    pub fn step_ns(&self, rows: u32, positions: u64) -> u64 {
        let attention_ns = positions.saturating_mul(u64::from(self.position_ps)) / 1000;
        self.linears_ns(rows).saturating_add(attention_ns)
    }

    /// Returns the duration of the logits of `rows` rows, in ns.
    pub fn logits_ns(&self, rows: u32) -> u64 {
        u64::from(rows) * u64::from(self.logits_row_ns)
    }

    /// Returns the duration of the logits of `drafts` rows with drafted tokens, in ns.
    pub fn drafts_ns(&self, drafts: u32) -> u64 {
        u64::from(drafts) * u64::from(self.draft_row_ns)
    }

    fn linears_ns(&self, rows: u32) -> u64 {
        let known = || self.points.iter().filter(|(rows, _)| *rows > 0);
        let ns = |us: u32| u64::from(us) * 1000;
        let below = known().rfind(|(at, _)| *at <= rows);
        let above = known().find(|(at, _)| *at > rows);
        match (below, above) {
            (None, None) => 0,
            // Fewer rows than were measured read all weights too.
            (None, Some((_, us))) => ns(*us),
            (Some((at, us)), Some((next, next_us))) => {
                let share = u64::from(rows - at) * 1000 / u64::from(next - at);
                ns(*us) + ns(next_us.saturating_sub(*us)) * share / 1000
            }
            (Some((at, us)), None) => ns(*us) * u64::from(rows.max(1)) / u64::from(*at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> StepCostCurve {
        let mut costs = StepCostCurve { position_ps: 2_000, ..StepCostCurve::NONE };
        costs.points[0] = (1, 10_000);
        costs.points[1] = (8, 12_000);
        costs.points[2] = (64, 40_000);
        costs
    }

    #[test]
    fn steps_cost_what_was_measured_and_between_two_points_in_proportion() {
        let costs = costs();
        assert_eq!(costs.step_ns(0, 0), 10_000_000);
        assert_eq!(costs.step_ns(8, 0), 12_000_000);
        assert_eq!(costs.step_ns(36, 0), 26_000_000);
        assert_eq!(costs.step_ns(128, 0), 80_000_000, "as the largest, row by row");
        assert_eq!(costs.step_ns(8, 1_000_000), 14_000_000);
        assert_eq!(StepCostCurve::NONE.step_ns(500, u64::MAX), 0);
    }
}
