//! Layers with a state: the convolution and the recurrence over the rows of each sequence, whose
//! state is stored at the sequence's slot.

use kernels::{DeltaInputs, Element, Kernels, StateRows};
use model::delta::DeltaNet;
use model::mamba::Mamba;
use model::ops::{Op, Value};
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
        begins: item.first == 0,
    }));
    let x = |input: usize, value| operands.rows::<T>(compute.inputs[input], value, rows);
    let weights = operands.vector(compute, 0).expect("what updates a state has weights");
    let out = operands.output::<T>(compute, rows);
    if let Some(conv) = config.short_conv().filter(|_| compute.op == Op::ShortConv) {
        let kept = kept(operands, compute, conv.inputs_len());
        let input = x(0, Value::ConvInput);
        kernels.short_convolution(&conv, list, input, weights, kept, out);
        return list.len() as u64 * compute.op.state_bytes(config);
    }
    if let Some(mamba) = &config.mamba {
        run_mamba::<T>(kernels, list, operands, compute, mamba, rows);
        return list.len() as u64 * compute.op.state_bytes(config);
    }
    let net = config.delta.expect("a layer with a state is of a model with states");
    if compute.op == Op::DeltaConv {
        let kept = kept(operands, compute, DeltaNet::inputs_len(&net));
        kernels.delta_convolution(&net, list, x(0, Value::DeltaQkv), weights, kept, out);
    } else {
        let kept = kept(operands, compute, DeltaNet::state_len(&net));
        let decays = if config.decays_by_channel() { x(2, Value::DeltaDecay) } else { &[] };
        let inputs = DeltaInputs {
            mixed: x(0, Value::DeltaConvolved),
            ba: x(1, Value::DeltaBa),
            decays,
            rates: operands.vector(compute, 1).expect("a recurrence has rates"),
        };
        kernels.delta_rule(&net, list, inputs, kept, out);
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
        let kept = kept(operands, compute, mamba.inputs_len());
        kernels.mamba_convolution(mamba, list, x(0, Value::MambaInput), weights, more, kept, out);
        return;
    }
    let kept = kept(operands, compute, mamba.state_len());
    let (mixed, input) = (x(0, Value::MambaConvolved), x(1, Value::MambaInput));
    let numbers = more.expect("a recurrence has numbers");
    kernels.mamba_scan(mamba, list, mixed, input, numbers, kept, out);
    kernels.group_norm(rows, mamba.groups, weights, operands.config.norm_eps, out);
}

/// Returns the states of the sequences of the batch, `len` numbers each.
fn kept<'a>(operands: &Operands<'a>, compute: &Compute, len: usize) -> &'a mut [f32] {
    let slots = operands.table.batch_size();
    operands.view.write(compute.caches[0].buffer, 0, slots * len)
}
