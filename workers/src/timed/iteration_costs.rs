//! Durations of the work of iterations whose sequences have owners, according to the step table's
//! costs for the rows and positions in the work lists.
//!
//! Linears of a layer share its duration in proportion to the bytes of their weights. The transfers
//! over the link for a row of the host are included in the host's duration for that row.

use model::config::ModelConfig;
use model::ops::Op;
use program::ir::{At, Compute, Copy, Instruction, Moved, ProgramId};
use program::kv_owner::{DEVICE, HOST};
use program::map::Chunk;
use program::plan::Plan;
use protocol::table::StepTable;
use scheduler::hybrid::{LayerCosts, StepCosts};

use crate::work_items::{row_counts, sequences};

/// Returns the duration of an instruction, in nanoseconds.
pub(super) fn duration_ns(
    plan: &Plan,
    table: &StepTable,
    program: ProgramId,
    instruction: &Instruction,
) -> u64 {
    let costs = table.hybrid_policy().costs;
    let context = CostContext { plan, table, program, costs };
    let ms = match instruction {
        Instruction::Compute(compute) => context.computed_ms(compute),
        Instruction::Copy(copy) => context.copied_ms(copy),
        _ => 0.0,
    };
    (ms * 1e6) as u64
}

struct CostContext<'a> {
    plan: &'a Plan,
    table: &'a StepTable,
    program: ProgramId,
    costs: StepCosts,
}

impl CostContext<'_> {
    fn computed_ms(&self, compute: &Compute) -> f64 {
        let config = &self.plan.config;
        let (logits_rows, rows) = row_counts(self.table, self.program, compute.at);
        match (compute.op, compute.at.layer) {
            (Op::Attention, _) => self.attended_ms(compute.at, compute.chunk),
            (Op::Head, _) => self.costs.ends_ms(rows as u32, logits_rows as u32),
            (op, Some(layer)) => {
                self.costs.linear_ms(rows as u32) * share(config, layer.into(), op)
            }
            _ => 0.0,
        }
    }

    fn attended_ms(&self, at: At, chunk: Option<Chunk>) -> f64 {
        let (mut prompts_ms, mut rows, mut positions) = (0.0, 0, 0);
        for found in sequences(self.table, self.program, at) {
            let item = found.item;
            if chunk != Some(self.table.attention_side(at, &item)) {
                continue;
            }
            match item.first {
                0 => prompts_ms += self.costs.prefill_attention_ms(item.rows as u32),
                first => {
                    rows += item.rows as u32;
                    positions += ((first + 1)..=(first + item.rows)).sum::<usize>() as u64;
                }
            }
        }
        match (chunk == Some(HOST), rows) {
            (true, 0) => 0.0,
            (true, rows) => self.costs.host_decode_ms(rows, positions) + self.costs.launch_ms(),
            (false, _) => prompts_ms + self.costs.device_decode_ms(positions),
        }
    }

    fn copied_ms(&self, copy: &Copy) -> f64 {
        let (config, link) = (&self.plan.config, self.costs.link());
        let positions = |of: &dyn Fn(usize, usize) -> bool| -> f64 {
            let all = sequences(self.table, self.program, copy.at).map(|found| found.item);
            let counted = all.filter(|item| of(item.slot, item.first));
            counted.map(|item| (item.first.max(item.rows)) as f64).sum()
        };
        match copy.moved {
            // K and V share a position.
            Moved::Sequences(_) if copy.chunk == Some(HOST) => {
                positions(&|_, _| true) * link.position_out_ms / 2.0
            }
            Moved::Sequences(_) => positions(&|_, _| true) * link.position_in_ms / 2.0,
            Moved::Value(model::ops::Value::Key | model::ops::Value::Value) => {
                let leaves = |slot, first| first == 0 && self.table.owner(0, slot) != DEVICE;
                positions(&leaves) * link.position_out_ms / 2.0
            }
            Moved::Weights(op) => {
                let layer = copy.at.layer.map_or(0, usize::from);
                copy.at.layer.map_or(0.0, |_| link.weights_ms * share(config, layer, op))
            }
            Moved::Value(_) | Moved::Deferred(_) | Moved::Cache(_) => 0.0,
        }
    }
}

/// Returns an operation's share of its layer's weights, excluding attention's own.
fn share(config: &ModelConfig, layer: usize, op: Op) -> f64 {
    let dtype = model::config::Dtype::Bf16;
    let bytes = |op: &Op| match op.is_attention() {
        true => 0.0,
        false => op.weight_bytes(config, dtype) as f64,
    };
    let all: f64 = config.layer_ops(layer).iter().map(bytes).sum();
    if all > 0.0 { bytes(&op) / all } else { 0.0 }
}
