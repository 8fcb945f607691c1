//! Sums of the squared inputs of a model's linears over texts, by which a quantiser weighs the
//! columns of matrices. The texts are computed as prompts on the calling thread and its pool, with
//! the kernels of a run, but in memory of their own.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use half::bf16;
use kernels::{PoolOptions, RoutedExpert, Variant};
use model::config::{Dtype, ModelConfig};
use model::ops::{ElementType, Op};
use model::source::{TensorId, TensorPart, WeightSource};
use program::compile::compile;
use program::ir::{Compute, Instruction, LaneProgram, ProgramId};
use program::map::DeviceMap;
use program::plan::Plan;
use protocol::group::{GenerationRequest, PlacedRequest, fill, list_work};
use protocol::table::StepTable;
use shm::{Control, Mapping};

use crate::calibrate::prompt_shape;
use crate::error::WorkerError;
use crate::execute::{ComputeState, Executor};
use crate::lane_executor::{LaneExecutor, Task};
use crate::load::load;
use crate::memory::{Memories, View};

/// Sums of squared inputs by matrix: for each expert, or for the only matrix, the sums of its
/// columns.
pub type SquaredInputs = HashMap<TensorId, Vec<Vec<f64>>>;

/// Model whose inputs are observed, and the means to compute it.
#[derive(Debug)]
pub struct ObservedModel<'a> {
    pub config: &'a ModelConfig,
    pub source: &'a dyn WeightSource,
    /// Placement of all operations on the CPU.
    pub map: &'a DeviceMap,
    pub variant: Variant,
    pub pool: &'a PoolOptions,
}

/// Computes each window of tokens as a prompt in bf16 and returns the sums over all windows. The
/// head and routers are not observed. `after_window` is called with the number of windows
/// computed; it may end the computation early.
///
/// # Errors
/// Weights that cannot be read, or memory or threads that are unavailable.
pub fn squared_inputs(
    model: &ObservedModel<'_>,
    windows: &[Vec<u32>],
    after_window: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<SquaredInputs, WorkerError> {
    let mut sums = SquaredInputs::new();
    let tokens = windows.iter().map(Vec::len).max().unwrap_or(0);
    if tokens == 0 {
        return Ok(sums);
    }
    let shape = prompt_shape(tokens as u32, Dtype::Bf16);
    let plan = compile(model.config, &shape, model.map).map_err(WorkerError::Calibration)?;
    let plan = Arc::new(plan);
    let mut mapped = Vec::new();
    for segment in plan.topology.segments() {
        let size_bytes = plan.segment_bytes(segment).max(4096) as usize;
        mapped.push((segment, Arc::new(Mapping::private(size_bytes)?)));
    }
    let memories = Arc::new(Memories::new(&plan, mapped)?);
    let threads = model.pool.threads;
    load(&plan, &memories, model.source, model.variant, threads, &|_, _| {})?;
    let control = Control::create(1, plan.table.words() * 4)?;
    let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
    // SAFETY: both belong to this thread, which executes one instruction after the other and keeps
    // no slice from one to the next; the memory is private and the weights are loaded.
    let (view, observed) =
        unsafe { (View::new(Arc::clone(&memories)), View::new(Arc::clone(&memories))) };
    let compute = ComputeState::new(&plan, model.variant, model.pool, None)?;
    let computes = |lane: &&LaneProgram| {
        lane.instructions.iter().any(|found| matches!(found, Instruction::Compute(_)))
    };
    let lane = plan.prefill().lanes.iter().find(computes).expect("a lane computes");
    let (lane, instructions) = (lane.lane, lane.instructions.clone());
    let mut executor =
        Executor::new(lane, Arc::clone(&plan), view, &control, model.variant, Some(compute));
    for (index, window) in windows.iter().enumerate() {
        let request = GenerationRequest::greedy(window.clone(), 1);
        fill(&table, &plan, &[PlacedRequest { batch: 0, slot: 0, request }]);
        list_work(&table);
        for (index, instruction) in instructions.iter().enumerate() {
            let Instruction::Compute(compute) = instruction else { continue };
            if matches!(compute.op, Op::FinalNorm | Op::Head | Op::Sample) {
                break;
            }
            add_inputs(&plan, &observed, compute, window.len(), &mut sums);
            executor.execute(Task { program: ProgramId::PREFILL, step: 0, index, instruction })?;
        }
        if after_window(index + 1).is_break() {
            break;
        }
    }
    Ok(sums)
}

/// Adds the squares of the inputs that a linear is about to read.
fn add_inputs(plan: &Plan, view: &View, compute: &Compute, rows: usize, sums: &mut SquaredInputs) {
    let (config, op) = (plan.config.at(compute.at.layer), compute.op);
    if matches!(op, Op::Embed | Op::Router) {
        return;
    }
    let matrix = op.weights(config).and_then(|weights| weights.matrix);
    let Some((_, columns)) = matrix else { return };
    let (Some(value), Some(layer)) = (op.reads(config).first(), compute.at.layer) else { return };
    // Two linears read f32: the gates of inputs per layer, and the one after experts in a latent.
    if value.element() != ElementType::Compute {
        return;
    }
    let width = value.row_elements(config).unwrap_or(0);
    let (experts, routed) = match (op, config.experts) {
        (Op::ExpertGate | Op::ExpertUp | Op::ExpertDown, Some(experts)) => {
            let routed = rows * experts.per_token;
            (experts.count, Some(view.read::<RoutedExpert>(compute.inputs[1].buffer, 0, routed)))
        }
        _ => (1, None),
    };
    // Each expert of a row has inputs of its own, or all share one.
    let per_row = width / columns;
    let per_token = routed.map_or(1, |routed| routed.len() / rows);
    if width != per_row * columns || (per_row != 1 && per_row != per_token) {
        return;
    }
    let id = TensorId::Layer { layer: layer.into(), op, part: TensorPart::Matrix };
    let sums = sums.entry(id).or_insert_with(|| vec![vec![0.0; columns]; experts]);
    let inputs = view.read::<bf16>(compute.inputs[0].buffer, 0, rows * width);
    for (index, input) in inputs.chunks_exact(columns).enumerate() {
        match routed {
            None => add_squares(input, &mut sums[0]),
            Some(routed) if per_row == 1 => {
                for routed in &routed[index * per_token..][..per_token] {
                    add_squares(input, &mut sums[routed.expert as usize]);
                }
            }
            Some(routed) => add_squares(input, &mut sums[routed[index].expert as usize]),
        }
    }
}

fn add_squares(input: &[bf16], sums: &mut [f64]) {
    for (sum, input) in sums.iter_mut().zip(input) {
        *sum += f64::from(input.to_f32()).powi(2);
    }
}
