//! Layers with a state: the convolution and the recurrence over the rows of each sequence, whose
//! state is stored at the sequence's slot.

use kernels::{DeltaInputs, Element, Kernels, StateRows, StateSlots};
use model::mamba::Mamba;
use model::ops::{Op, Value};
use model::state_slot::STATE_ELEMENT_BYTES;
use program::ir::Compute;

use super::operands::Operands;
use crate::work_items::{SequenceRows, sequences};

/// Runs the operation and returns the number of bytes of states read. Lists its sequences in
/// `list`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    list: &mut Vec<StateRows>,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) -> u64 {
    let config = operands.config;
    list.clear();
    let all = sequences(operands.table, operands.program, compute.at);
    list.extend(all.map(|SequenceRows { row0, item }| StateRows {
        row0: row0 as u32,
        rows: item.rows as u32,
        slot: item.slot as u32,
        past: item.first as u32,
        drafts: item.drafts as u32,
    }));
    let x = |input: usize, value| operands.rows::<T>(compute.inputs[input], value, rows);
    let weights = operands.vector(compute, 0).expect("what updates a state has weights");
    let out = operands.output::<T>(compute, rows);
    if let Some(conv) = config.short_conv().filter(|_| compute.op == Op::ShortConv) {
        let slots = state_slots(operands, compute);
        let input = x(0, Value::ConvInput);
        kernels.short_convolution(&conv, list, input, weights, slots, out);
        return list.len() as u64 * compute.op.state_bytes(config);
    }
    if let Some(mamba) = &config.mamba {
        run_mamba::<T>(kernels, list, operands, compute, mamba, rows);
        return list.len() as u64 * compute.op.state_bytes(config);
    }
    let net = config.delta.expect("a layer with a state is of a model with states");
    if compute.op == Op::DeltaConv {
        let slots = state_slots(operands, compute);
        kernels.delta_convolution(&net, list, x(0, Value::DeltaQkv), weights, slots, out);
    } else {
        let slots = state_slots(operands, compute);
        let decays = if config.decays_by_channel() { x(2, Value::DeltaDecay) } else { &[] };
        let inputs = DeltaInputs {
            mixed: x(0, Value::DeltaConvolved),
            ba: x(1, Value::DeltaBa),
            decays,
            rates: operands.vector(compute, 1).expect("a recurrence has rates"),
        };
        kernels.delta_rule(&net, list, inputs, slots, out);
        kernels.head_norm(rows, net.value_heads, weights, config.norm_eps, out);
    }
    list.len() as u64 * compute.op.state_bytes(config)
}

/// Runs an operation of Mamba2 over the sequences of a list.
fn run_mamba<T: Element>(
    kernels: &Kernels,
    list: &[StateRows],
    operands: &Operands<'_>,
    compute: &Compute,
    mamba: &Mamba,
    rows: usize,
) {
    let x = |input: usize, value| operands.rows::<T>(compute.inputs[input], value, rows);
    let weights = operands.vector(compute, 0).expect("what updates a state has weights");
    let more = operands.vector(compute, 1);
    let out = operands.output::<T>(compute, rows);
    if compute.op == Op::MambaConv {
        let slots = state_slots(operands, compute);
        kernels.mamba_convolution(mamba, list, x(0, Value::MambaInput), weights, more, slots, out);
        return;
    }
    let slots = state_slots(operands, compute);
    let (mixed, input) = (x(0, Value::MambaConvolved), x(1, Value::MambaInput));
    let numbers = more.expect("a recurrence has numbers");
    kernels.mamba_scan(mamba, list, mixed, input, numbers, slots, out);
    kernels.group_norm(rows, mamba.groups, weights, operands.config.norm_eps, out);
}

/// Returns the slots of the batch.
fn state_slots<'a>(operands: &Operands<'a>, compute: &Compute) -> StateSlots<'a> {
    let kind = operands.plan.config.layers.kind(compute.at.layer.map_or(0, usize::from));
    let draft_positions = kind.draft_positions;
    let slot_bytes = compute.op.slot_bytes(operands.config, draft_positions);
    let slot_len = slot_bytes / STATE_ELEMENT_BYTES;
    let all = operands.table.batch_size() * slot_len;
    StateSlots::new(operands.view.write(compute.caches[0].buffer, 0, all), draft_positions)
}
