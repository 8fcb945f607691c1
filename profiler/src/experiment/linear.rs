//! Everything whose cost depends on rows alone: linears, norms, embedding, head, sampling, and the
//! copies of values. Decode and prefill call the same kernels for them, so decode with many rows
//! stands for prefill.

use model::ops::{Op, Value};
use program::ir::Instruction;
use program::map::Device;
use program::map::Phase;
use program::topology::LaneId;

use super::{Experiment, decode_bench};
use crate::bench::Bench;
use crate::key::Extent;
use crate::request::Request;
use crate::stages::Stages;

/// Values that are rows, in the order of the layer.
const ROW_VALUES: [Value; 11] = [
    Value::Hidden,
    Value::Normed0,
    Value::Query,
    Value::Key,
    Value::Value,
    Value::Attended,
    Value::Normed1,
    Value::Gate,
    Value::Ffn,
    Value::LastNormed,
    Value::Logits,
];

/// Row counts: the batch first, then a part of it, then towards the rows of prefill.
fn rows(request: &Request) -> Vec<u32> {
    let batch = u32::from(request.batch_size);
    let prefill = u32::from(request.micro_sequences) * request.max_prompt;
    let mut rows = vec![batch, batch.div_ceil(4)];
    let mut next = batch * 4;
    // Beyond some hundred rows linears are bound by arithmetic, and the last slope goes on.
    while next < prefill.min(1024) {
        rows.push(next);
        next *= 4;
    }
    rows.push(prefill.clamp(1, 1024));
    let mut seen = Vec::new();
    rows.retain(|rows| {
        !seen.contains(rows) && {
            seen.push(*rows);
            true
        }
    });
    rows
}

fn ops(bench: &mut Bench, request: &Request, device: Device) -> Vec<Instruction> {
    let layers = bench.shape().config.num_layers as u16;
    let mut run = |op, layer| bench.compute(Phase::Decode, device, op, layer, None, (0, 0));
    let mut list = Vec::new();
    if device == Device::Cpu {
        list.push(run(Op::Embed, None));
    }
    for layer in 0..layers {
        list.extend(request.row_ops().into_iter().map(|op| run(op, Some(layer))));
    }
    list.extend([run(Op::FinalNorm, None), run(Op::Head, None)]);
    list
}

/// The plan; `copies` of the layer's weights keep them out of the caches.
pub(crate) fn linear(request: &Request, copies: usize) -> Experiment {
    let rows = rows(request);
    let most = rows.iter().copied().max().unwrap_or(1);
    let mut bench = decode_bench(request, copies, most.min(u32::from(u16::MAX)) as u16, 1);
    let mut stages = Stages::default();
    stages.then(LaneId::CPU_COMPUTE, ops(&mut bench, request, Device::Cpu));
    if request.device.is_some() {
        stages.then(LaneId::GPU_COMPUTE, ops(&mut bench, request, Device::Gpu));
        let touched = |value: &Value| {
            let reads = |op: &Op| op.reads().contains(value) || op.writes() == Some(*value);
            let outer = [Op::FinalNorm, Op::Head];
            request.config.layer_ops().iter().chain(&outer).any(reads)
        };
        for (lane, to) in [(LaneId::H2D_ACTIVATIONS, Device::Gpu), (LaneId::D2H, Device::Cpu)] {
            let values = ROW_VALUES.iter().filter(|value| touched(value));
            let copies = values.map(|value| bench.copy_value(*value, None, to)).collect();
            stages.then(lane, copies);
        }
    }
    stages.then(LaneId::CPU_COMPUTE, vec![bench.sample(Phase::Decode, Device::Cpu, (0, 0))]);
    let prefill = bench.pretend_prompts(Device::Cpu);
    Experiment {
        name: "linears, norms and copies",
        plan: bench.plan(prefill, stages),
        phase: Phase::Decode,
        extents: rows.into_iter().map(|sequences| Extent { sequences, positions: 1 }).collect(),
        threads: request.threads,
    }
}
