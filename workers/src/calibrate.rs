//! Calibration of the skew from the queries and keys of one text. The text is computed once as a
//! prompt, at load, with the run's own weights and kernels in a separate plan.

use std::sync::Arc;

use half::bf16;
use kernels::{Element, PoolOptions, Variant};
use model::config::{Dtype, ModelConfig};
use model::ops::{Op, Value};
use model::rope::SequenceLength;
use program::compile::{CompileError, compile};
use program::ir::{Compute, Instruction, LaneProgram, ProgramId};
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::topology::{Holds, SegmentId};
use protocol::group::{GenerationRequest, PlacedRequest, fill, list_work};
use protocol::table::StepTable;
use shm::{Control, Mapping};

use crate::error::WorkerError;
use crate::execute::{ComputeState, Executor};
use crate::lane_executor::{LaneExecutor, Task};
use crate::memory::{Memories, View};
use crate::partial_keys::columns;
use crate::skew::{Moments, Skew};

/// Computes the skew of `plan`, whose weights are stored in `mappings`, from a text of the model's
/// tokens. All memory other than the weights is private and released on return.
///
/// # Errors
/// Returns an error if memory or threads are unavailable, or the text has no tokens.
pub fn calibrate(
    plan: &Plan,
    mappings: &[(SegmentId, Arc<Mapping>)],
    variant: Variant,
    pool: &PoolOptions,
    text: &[u32],
) -> Result<Skew, WorkerError> {
    let calibration_plan =
        compile_calibration_plan(plan, text.len()).map_err(WorkerError::Calibration)?;
    let own = Arc::new(with_weights_of(calibration_plan, plan));
    let mut mapped: Vec<_> =
        mappings.iter().filter(|(segment, _)| segment.holds == Holds::Weights).cloned().collect();
    for segment in own.topology.segments() {
        if mapped.iter().all(|(known, _)| *known != segment) {
            let size_bytes = own.segment_bytes(segment).max(4096) as usize;
            mapped.push((segment, Arc::new(Mapping::private(size_bytes)?)));
        }
    }
    let memories = Arc::new(Memories::new(&own, mapped)?);
    let control = Control::create(1, own.table.words() * 4)?;
    let table = StepTable::new(control.extra(0, own.table.words()), &own);
    let request = GenerationRequest::greedy(text.to_vec(), 1);
    fill(&table, &own, &[PlacedRequest { batch: 0, slot: 0, request }]);
    list_work(&table);
    // SAFETY: both belong to this thread, which executes one instruction after the other and keeps
    // no slice from one to the next; the memory is private, except for weights, which are not
    // written.
    let (view, looking) =
        unsafe { (View::new(Arc::clone(&memories)), View::new(Arc::clone(&memories))) };
    let compute = ComputeState::new(&own, variant, pool, None)?;
    let computes = |lane: &&LaneProgram| {
        lane.instructions.iter().any(|found| matches!(found, Instruction::Compute(_)))
    };
    let lane = own.prefill().lanes.iter().find(computes).expect("a lane computes");
    let mut executor =
        Executor::new(lane.lane, Arc::clone(&own), view, &control, variant, Some(compute));
    let mut moments = vec![Moments::new(own.config.head_dim); heads(&own)];
    for (index, instruction) in lane.instructions.iter().enumerate() {
        let Instruction::Compute(compute) = instruction else { continue };
        match compute.op {
            Op::FinalNorm | Op::Head | Op::Sample => break,
            op if op.is_attention() => match own.shape.dtype {
                Dtype::Bf16 => {
                    add_moments::<bf16>(&own, &looking, compute, text.len(), &mut moments)
                }
                Dtype::F32 => add_moments::<f32>(&own, &looking, compute, text.len(), &mut moments),
            },
            _ => {}
        }
        let task = Task { program: ProgramId::PREFILL, step: 0, index, instruction };
        executor.execute(task)?;
    }
    let columns = columns(plan);
    add_shifted(&own.config, text.len(), &mut moments);
    let of_heads: Vec<Vec<f32>> = moments.iter().map(|head| head.skew(columns)).collect();
    Ok(Skew::new(own.config.num_kv_heads, &of_heads))
}

/// Adds the same queries and keys as rotated by rope at positions increasingly far after the text,
/// up to the model's maximum position. Components that rotate so slowly that they are equal in all
/// keys of a short text distinguish the positions of a long one.
fn add_shifted(config: &ModelConfig, tokens: usize, moments: &mut [Moments]) {
    let shifts: Vec<usize> = std::iter::successors(Some(tokens.max(1)), |shift| Some(2 * shift))
        .take_while(|shift| *shift < config.max_positions)
        .collect();
    let length = SequenceLength(config.max_positions as u32);
    for (layer, moments) in moments.chunks_mut(config.num_kv_heads).enumerate() {
        let Some(rope) = &config.layers.kind(layer).rope else { continue };
        let frequencies = rope.inverse_frequencies_for(config.head_dim, length);
        for head in moments {
            *head = head.shifted(&frequencies, &shifts);
        }
    }
}

/// Returns the number of KV heads of all layers.
fn heads(plan: &Plan) -> usize {
    plan.config.num_layers * plan.config.num_kv_heads
}

/// Returns the shape of a run of one whole prompt of up to `tokens` tokens.
pub(crate) fn prompt_shape(tokens: u32, dtype: Dtype) -> RunShape {
    RunShape {
        batches: 1,
        batch_size: 1,
        max_prompt: tokens,
        shared_prompt: 0,
        max_context: tokens + 1,
        max_new: 1,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype,
    }
}

/// Returns a plan for one whole prompt of `tokens` tokens, without selection.
fn compile_calibration_plan(plan: &Plan, tokens: usize) -> Result<Plan, CompileError> {
    let shape = prompt_shape(tokens as u32, plan.shape.dtype);
    compile(&plan.config, &shape, &DeviceMap { kv_select: None, ..plan.map.clone() })
}

/// Returns the plan with its weights placed where another plan of the same model and map has them.
fn with_weights_of(mut plan: Plan, other: &Plan) -> Plan {
    for placed in plan.weights.clone() {
        let found = other.weights.iter().find(|known| known.weights == placed.weights);
        if let Some(found) = found {
            plan.buffers[placed.buffer.0 as usize] = other.buffer(found.buffer).clone();
        }
    }
    plan
}

/// Adds the queries and keys that an attention instruction is about to read.
fn add_moments<T: Element>(
    plan: &Plan,
    view: &View,
    compute: &Compute,
    rows: usize,
    moments: &mut [Moments],
) {
    let config = &plan.config;
    let (head_dim, kv_heads, group) = (config.head_dim, config.num_kv_heads, config.group_size());
    let of_layer = compute.at.layer.map_or(0, usize::from) * kv_heads;
    let mut head = vec![0.0; head_dim];
    let widened = |from: &[T], head: &mut [f32]| {
        head.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
    };
    let values = [(Value::Query, group), (Value::Key, 1)];
    for ((value, of_head), region) in values.into_iter().zip(&compute.inputs) {
        let elements = value.row_elements(config).unwrap_or(0);
        let all = view.read::<T>(region.buffer, 0, rows * elements);
        for (index, from) in all.chunks_exact(head_dim).enumerate() {
            widened(from, &mut head);
            let moments = &mut moments[of_layer + index / of_head % kv_heads];
            match value {
                Value::Query => moments.add_query(&head),
                _ => moments.add_key(&head),
            }
        }
    }
}
