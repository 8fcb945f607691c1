//! Executes one instruction: the operands come from the plan, the sizes from the step table.
//!
//! [`Executor`] belongs to one lane. Everything it needs is allocated when it is made; executing
//! allocates nothing.

mod append;
mod attention;
mod compute;
mod copy;
mod decompress;
mod operands;
pub mod sample;
mod walks;

use std::sync::Arc;

use kernels::Variant;
use model::config::Dtype;
use program::ir::{Instruction, Lane, Phase};
use program::map::Device;
use program::plan::Plan;
use shm::Control;

use crate::memory::View;
use crate::table::StepTable;

pub use append::append_spans;
pub use compute::ComputeState;
pub use copy::{Span, copy_spans};

/// What an instruction did, for the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes moved; for `Compute` the weights and cached positions read.
    pub bytes: u64,
    /// Rows worked on.
    pub rows: u32,
}

/// The operands of one lane's instructions.
#[derive(Debug)]
pub struct Executor {
    plan: Arc<Plan>,
    view: View,
    table: StepTable,
    control: Control,
    device: Device,
    variant: Variant,
    /// Kernels and scratch of a compute lane.
    compute: Option<ComputeState>,
}

impl Executor {
    /// An executor for one lane; `compute` for the lanes that run operations.
    pub fn new(
        lane: Lane,
        plan: Arc<Plan>,
        view: View,
        control: Control,
        variant: Variant,
        compute: Option<ComputeState>,
    ) -> Executor {
        let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
        let device = match lane {
            Lane::GpuCompute | Lane::GpuDecompress => Device::Gpu,
            _ => Device::Cpu,
        };
        Executor { plan, view, table, control, device, variant, compute }
    }

    /// Executes `instruction`, which must be work and not order.
    ///
    /// # Panics
    /// An instruction that this lane cannot execute, or sizes beyond its buffers: a plan that the
    /// validator would have refused.
    pub fn execute(&mut self, phase: Phase, instruction: &Instruction) -> Work {
        match instruction {
            Instruction::Compute(compute) => {
                let Some(state) = &mut self.compute else {
                    panic!("{} on a lane without kernels", compute.op.name(self.plan.config.family))
                };
                let operands = operands::Operands {
                    plan: &self.plan,
                    view: &self.view,
                    table: &self.table,
                    phase,
                    device: self.device,
                };
                match self.plan.shape.dtype {
                    Dtype::Bf16 => state.run::<half::bf16>(operands, compute),
                    Dtype::F32 => state.run::<f32>(operands, compute),
                }
            }
            Instruction::Copy(copy) => {
                copy::execute(&self.plan, &self.view, &self.table, phase, copy)
            }
            Instruction::Append(append) => {
                let from = append::Appending {
                    plan: &self.plan,
                    view: &self.view,
                    table: &self.table,
                    variant: self.variant,
                    phase,
                };
                append::execute(from, append)
            }
            Instruction::Decompress(decompress) => {
                decompress::execute(&self.plan, &self.view, self.variant, decompress)
            }
            Instruction::Wait(_) | Instruction::Signal => Work::default(),
        }
    }

    /// Called after the last `Sample` of step `step` (0 is prefill): announces the last step and
    /// tells the coordinator that the step is done.
    pub fn end_step(&self, step: u32) {
        sample::announce(&self.control, &self.table, step);
    }
}
