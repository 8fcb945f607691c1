//! Progress of the prompts that are being computed.

use program::step_table::Field;
use schedule::Costs;
use workers::shared::table::StepTable;

use super::Desk;
use crate::boundary::serving::PromptsGoing;

impl Desk {
    /// Returns the tokens of prompts in slots, and the time in which they will be computed
    /// according to the costs of steps with `step_rows` rows.
    pub(in super::super) fn prompts_going(
        &self,
        table: &StepTable,
        costs: &Costs,
        step_rows: u32,
    ) -> PromptsGoing {
        let mut going = PromptsGoing::default();
        for seated in self.seated.iter().filter(|seated| !seated.going.is_begun) {
            let all = seated.going.request.prompt.len() as u32;
            let computed = table.field(seated.batch, seated.slot, Field::Computed).min(all);
            going.tokens += u64::from(all);
            going.computed += u64::from(computed);
            going.left_ms += left_ns(costs, step_rows.max(1), computed, all) / 1_000_000;
        }
        going
    }
}

/// Returns the time of a prompt's rows from `computed` to `all` in steps of their own, in ns.
fn left_ns(costs: &Costs, step_rows: u32, computed: u32, all: u32) -> u64 {
    let rows = u64::from(all - computed);
    let linears = costs.step_ns(step_rows, 0).saturating_mul(rows) / u64::from(step_rows);
    // A row attends to itself and to those before it.
    let looked_at = rows * (u64::from(all) + u64::from(computed) + 1) / 2;
    let attention = costs.step_ns(step_rows, looked_at) - costs.step_ns(step_rows, 0);
    linears.saturating_add(attention)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rows_of_a_prompt_take_longer() {
        let mut costs = Costs { position_ps: 1_000_000, ..Costs::NONE };
        costs.points[0] = (100, 10_000);
        // 1000 rows of 0.1 ms, which attend to 500,500 positions of 1 µs.
        assert_eq!(left_ns(&costs, 100, 0, 1000), 100_000_000 + 500_500_000);
        let (first, second) = (left_ns(&costs, 100, 0, 500), left_ns(&costs, 100, 500, 1000));
        assert!(second > 2 * first, "{first} {second}");
        assert_eq!(first + second, left_ns(&costs, 100, 0, 1000));
        assert_eq!(left_ns(&costs, 100, 1000, 1000), 0);
    }
}
