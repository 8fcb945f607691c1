//! Execution of one instruction: the operands come from the plan, the sizes from the step table.
//!
//! [`Executor`] belongs to one lane. Everything that it needs is allocated on creation; executing
//! allocates nothing.

pub mod announce;
mod append;
mod attention;
mod compressed;
mod compute;
mod copy;
mod copy_span;
mod decompress;
mod delta;
mod expert_cache;
mod expert_latent;
mod experts;
mod grammar_matchers;
mod indexed;
mod join_hidden;
mod kv_owner;
mod latent;
mod linear;
mod operands;
mod penalties;
mod per_layer;
pub(crate) mod pooling;
mod positions;
mod row_logits;
pub mod sample;
mod sampled_states;
mod sparse_attention;
mod streams;

use std::sync::Arc;

use kernels::Variant;
use model::config::Dtype;
use program::ir::{Instruction, ProgramId};
use program::map::ComputeDevice;
use program::plan::Plan;
use program::topology::{HardwareEngine, LaneId};
use shm::Control;

use crate::error::LaneError;
use crate::lane_executor::{LaneExecutor, Task, WorkAmount};
use crate::memory::View;
use crate::skew::Skew;
use protocol::table::StepTable;

pub use append::append_spans;
pub use compute::ComputeState;
pub(crate) use compute::SampledRows;
pub use copy::copy_spans;
pub use copy_span::CopySpan;
pub(crate) use linear::{SWIGLU_ALPHA, SWIGLU_LIMIT};
pub(crate) use row_logits::{RowLogits, needs_logits};

/// Executor of one lane's instructions.
#[derive(Debug)]
pub struct Executor {
    plan: Arc<Plan>,
    view: View,
    table: StepTable,
    device: ComputeDevice,
    variant: Variant,
    /// Kernels and scratch of a compute lane.
    compute: Option<ComputeState>,
    /// Skew of a plan that selects positions.
    skew: Option<Arc<Skew>>,
}

impl Executor {
    /// Returns an executor for one lane. `compute` is present for the lanes that run operations.
    pub fn new(
        lane: LaneId,
        plan: Arc<Plan>,
        view: View,
        control: &Control,
        variant: Variant,
        compute: Option<ComputeState>,
    ) -> Executor {
        let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
        let device = match plan.topology.lane(lane).engine {
            HardwareEngine::Gpu { .. } => ComputeDevice::Gpu,
            HardwareEngine::Cpu | HardwareEngine::Link { .. } | HardwareEngine::Storage { .. } => {
                ComputeDevice::Cpu
            }
        };
        Executor { plan, view, table, device, variant, compute, skew: None }
    }

    /// Returns the executor with the skew of a plan that selects positions.
    #[must_use]
    pub(crate) fn with_skew(self, skew: Option<Arc<Skew>>) -> Executor {
        Executor { skew, ..self }
    }

    /// Executes `instruction`, which must be work and not a wait or a signal.
    ///
    /// # Panics
    /// Panics on an instruction that this lane cannot execute, or on sizes beyond its buffers, as
    /// in a plan that the validator would have refused.
    fn run(&mut self, program: ProgramId, instruction: &Instruction) -> WorkAmount {
        match instruction {
            Instruction::Compute(compute) => {
                let Some(state) = &mut self.compute else {
                    panic!("{} on a lane without kernels", compute.op.name(self.plan.config.family))
                };
                let operands = operands::Operands {
                    plan: &self.plan,
                    config: self.plan.config.at(compute.at.layer),
                    view: &self.view,
                    table: &self.table,
                    program,
                    device: self.device,
                    skew: self.skew.as_deref(),
                };
                match self.plan.shape.dtype {
                    Dtype::Bf16 => state.run::<half::bf16>(operands, compute),
                    Dtype::F32 => state.run::<f32>(operands, compute),
                }
            }
            Instruction::Copy(copy) => {
                copy::execute(&self.plan, &self.view, &self.table, program, copy)
            }
            Instruction::Append(append) => {
                let from = append::AppendContext {
                    plan: &self.plan,
                    view: &self.view,
                    table: &self.table,
                    variant: self.variant,
                    program,
                    skew: self.skew.as_deref(),
                };
                append::execute(from, append)
            }
            Instruction::Decompress(decompress) => {
                decompress::execute(&self.plan, &self.view, self.variant, decompress)
            }
            Instruction::Read(_) => panic!("a read on a lane without a storage"),
            Instruction::Wait(_) | Instruction::Signal => WorkAmount::default(),
        }
    }
}

impl LaneExecutor for Executor {
    fn execute(&mut self, task: Task<'_>) -> Result<Option<WorkAmount>, LaneError> {
        Ok(Some(self.run(task.program, task.instruction)))
    }
}
