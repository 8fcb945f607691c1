//! Progress of the prompts that are being computed.

use engine_api::serving::PromptProgress;
use program::step_table::Field;
use protocol::table::StepTable;
use scheduler::StepCostCurve;

use super::Scheduler;

impl Scheduler {
    /// Returns the tokens of prompts in slots, and the time in which they will be computed
    /// according to the costs of steps with `step_rows` rows.
    pub(in super::super) fn prompt_progress(
        &self,
        table: &StepTable,
        costs: &StepCostCurve,
        step_rows: u32,
    ) -> PromptProgress {
        let mut progress = PromptProgress::default();
        for running in self.running.iter().filter(|running| !running.sequence.has_started) {
            let all = running.sequence.request.prompt.len() as u32;
            let computed = table.field(running.batch, running.slot, Field::Computed).min(all);
            progress.tokens += u64::from(all);
            progress.computed_tokens += u64::from(computed);
            progress.remaining_ms +=
                remaining_ns(costs, step_rows.max(1), computed, all) / 1_000_000;
        }
        progress
    }
}

/// Returns the time of a prompt's rows from `computed` to `all` in steps of their own, in ns.
fn remaining_ns(costs: &StepCostCurve, step_rows: u32, computed: u32, all: u32) -> u64 {
    let rows = u64::from(all - computed);
    let linears = costs.step_ns(step_rows, 0).saturating_mul(rows) / u64::from(step_rows);
    // A row attends to itself and to those before it.
    let attended_positions = rows * (u64::from(all) + u64::from(computed) + 1) / 2;
    let attention = costs.step_ns(step_rows, attended_positions) - costs.step_ns(step_rows, 0);
    linears.saturating_add(attention)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rows_of_a_prompt_take_longer() {
        let mut costs = StepCostCurve { position_ps: 1_000_000, ..StepCostCurve::NONE };
        costs.points[0] = (100, 10_000);
        // 1000 rows of 0.1 ms, which attend to 500,500 positions of 1 µs.
        assert_eq!(remaining_ns(&costs, 100, 0, 1000), 100_000_000 + 500_500_000);
        let (first, second) =
            (remaining_ns(&costs, 100, 0, 500), remaining_ns(&costs, 100, 500, 1000));
        assert!(second > 2 * first, "{first} {second}");
        assert_eq!(first + second, remaining_ns(&costs, 100, 0, 1000));
        assert_eq!(remaining_ns(&costs, 100, 1000, 1000), 0);
    }
}
