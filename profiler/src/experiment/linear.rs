//! Work whose cost depends on rows alone: linears, norms, embedding, head, sampling, and the copies
//! of values. Decode and prefill call the same kernels for it, so decode with many rows also
//! represents prefill.

use model::ops::{Op, Value};
use program::ir::Instruction;
use program::map::ComputeDevice;
use program::map::Phase;
use program::topology::LaneId;

use super::{Experiment, Extents, decode_bench};
use crate::bench::BenchPlanBuilder;
use crate::key::Extent;
use crate::request::ProfilingRequest;
use crate::stages::Stages;

/// Values with one entry per row, in the order of the layer.
const ROW_VALUES: [Value; 41] = [
    Value::Hidden,
    Value::Normed0,
    Value::QueryLatent,
    Value::HeadQuery,
    Value::Query,
    Value::Key,
    Value::IndexQuery,
    Value::IndexWeights,
    Value::Selection,
    Value::Value,
    Value::Attended,
    Value::GatedAttended,
    Value::HeadValues,
    Value::DeltaQkv,
    Value::DeltaBa,
    Value::DeltaDecayLatent,
    Value::DeltaDecay,
    Value::DeltaConvolved,
    Value::DeltaRead,
    Value::DeltaGateLatent,
    Value::GatedDelta,
    Value::ConvInput,
    Value::Convolved,
    Value::MambaInput,
    Value::MambaConvolved,
    Value::MambaRead,
    Value::Projected0,
    Value::Normed1,
    Value::Gate,
    Value::Ffn,
    Value::SharedFfn,
    Value::DenseGate,
    Value::DenseFfn,
    Value::Projected1,
    Value::Routing,
    Value::ExpertLatent,
    Value::ExpertGate,
    Value::ExpertFfn,
    Value::ExpertSum,
    Value::LastNormed,
    Value::Logits,
];

/// Linears with fewer rows are bound by the weights they read, with more by arithmetic.
const ARITHMETIC_ROWS: u32 = 64;
/// Number of rows beyond which the last slope is extrapolated.
const ROWS_MAX: u32 = 1024;

/// Returns the row counts: the batch and a part of it, then up to the rows of prefill. If prefill
/// is bound by something else than the batch, the first count bound like prefill is required too:
/// the slope between small counts does not predict it.
fn extents(request: &ProfilingRequest) -> Extents {
    let batch = u32::from(request.batch_size);
    let prefill = u32::from(request.micro_sequences) * request.max_prompt;
    let prefill_rows = prefill.clamp(1, ROWS_MAX);
    let mut rows: Vec<u32> = std::iter::successors(Some(batch), |rows| rows.checked_mul(4))
        .take_while(|rows| *rows < prefill_rows)
        .collect();
    rows.push(prefill_rows);
    rows.insert(0, batch);
    rows.insert(1, batch.div_ceil(4));
    let mut extents = Extents::grid(&rows, &[1]);
    let is_bound = |extent: &Extent| extent.sequences >= ARITHMETIC_ROWS.min(prefill_rows);
    if batch < 2 * ARITHMETIC_ROWS
        && let Some(place) = extents.optional.iter().position(is_bound)
    {
        extents.required.push(extents.optional.remove(place));
    }
    extents
}

fn ops(bench: &mut BenchPlanBuilder, device: ComputeDevice) -> Vec<Instruction> {
    let config = bench.shape().config.clone();
    let mut run = |op, layer| bench.compute(Phase::Decode, device, op, layer, None, (0, 0));
    let mut list = Vec::new();
    if device == ComputeDevice::Cpu {
        list.push(run(Op::Embed, None));
    }
    for layer in 0..config.num_layers {
        let ops = ProfilingRequest::row_ops(config.layer_ops(layer));
        list.extend(ops.into_iter().map(|op| run(op, Some(layer as u16))));
    }
    list.extend([run(Op::FinalNorm, None), run(Op::Head, None)]);
    list
}

/// Returns the plan; `copies` of the layer's weights keep them out of the caches.
pub(crate) fn linear(request: &ProfilingRequest, copies: usize) -> Experiment {
    let extents = extents(request);
    let all = extents.required.iter().chain(&extents.optional);
    let max_sequences = all.map(|extent| extent.sequences).max().unwrap_or(1);
    let mut bench = decode_bench(request, copies, max_sequences.min(u32::from(u16::MAX)) as u16, 1);
    let mut stages = Stages::default();
    stages.push(LaneId::CPU_COMPUTE, ops(&mut bench, ComputeDevice::Cpu));
    if request.device.is_some() {
        stages.push(LaneId::GPU_COMPUTE, ops(&mut bench, ComputeDevice::Gpu));
        let touched = |value: &Value| {
            let reads = |op: &Op| {
                op.reads(&request.config).contains(value)
                    || op.writes(&request.config) == Some(*value)
            };
            let outer = [Op::FinalNorm, Op::Head];
            request.config.every_layer_op().iter().chain(&outer).any(reads)
        };
        for (lane, to) in
            [(LaneId::H2D_ACTIVATIONS, ComputeDevice::Gpu), (LaneId::D2H, ComputeDevice::Cpu)]
        {
            let values = ROW_VALUES.iter().filter(|value| touched(value));
            let copies = values.map(|value| bench.copy_value(*value, None, to)).collect();
            stages.push(lane, copies);
        }
    }
    stages.push(LaneId::CPU_COMPUTE, vec![bench.sample(Phase::Decode, ComputeDevice::Cpu, (0, 0))]);
    let prefill = bench.skip_prompts(ComputeDevice::Cpu);
    Experiment {
        name: "linears, norms and copies".to_owned(),
        plan: bench.plan(prefill, stages),
        phase: Phase::Decode,
        extents,
        concurrent_lanes: Vec::new(),
        threads: request.threads,
    }
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::find_known;
    use program::plan::RunShape;

    use super::*;
    use crate::request::ComputeThreads;

    fn rows(batch_size: u16, max_prompt: u32) -> (Vec<u32>, Vec<u32>) {
        let config = find_known("opt-125m").expect("known").config;
        let shape = RunShape {
            batches: 1,
            batch_size,
            max_prompt,
            shared_prompt: 0,
            max_context: max_prompt + 8,
            max_new: 8,
            logprobs: 0,
            micro_sequences: 1,
            prefill_chunk: 0,
            serves: false,
            page_positions: 0,
            kv_pages: 0,
            checkpoints: 0,
            logits_rows: 0,
            device_slots: 0,
            dtype: Dtype::Bf16,
        };
        let request =
            ProfilingRequest::for_shape(&config, &shape, ComputeThreads { cpu: 1, gpu: 0 });
        let Extents { required, optional } = extents(&request);
        let rows = |extents: Vec<Extent>| extents.iter().map(|extent| extent.sequences).collect();
        (rows(required), rows(optional))
    }

    #[test]
    fn a_count_that_is_bound_by_arithmetic_is_required() {
        assert_eq!(rows(8, 512), (vec![8, 2, 128], vec![32, 512]));
        assert_eq!(rows(1, 512), (vec![1, 4, 64], vec![16, 256, 512]));
        assert_eq!(rows(8, 5000), (vec![8, 2, 128], vec![32, 512, 1024]));
        assert_eq!(rows(128, 5000), (vec![128, 32], vec![512, 1024]));
        // Prompts shorter than the batch size.
        assert_eq!(rows(8, 4), (vec![8, 2, 4], vec![]));
        assert_eq!(rows(1, 1), (vec![1], vec![]));
    }
}
