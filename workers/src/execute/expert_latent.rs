//! The linear of the sum of experts' outputs, for experts that compute rows of another width than
//! the hidden state's.

use kernels::{Element, Kernels};
use model::config::ModelConfig;
use model::ops::Value;
use program::ir::Compute;

use super::linear;
use super::operands::Operands;

/// Scratch for the linear's input.
#[derive(Debug)]
pub(super) struct ExpertLatent {
    /// Sums of experts' outputs in the run's type, `[rows, latent]`.
    rounded: Vec<u32>,
}

impl ExpertLatent {
    /// Allocates for up to `rows` rows; nothing for a model without such experts.
    pub(super) fn new(config: &ModelConfig, rows: usize) -> ExpertLatent {
        let width = if config.has_expert_latent() { config.expert_row_size() } else { 0 };
        ExpertLatent { rounded: vec![0; rows * width] }
    }

    /// Runs `ExpertLatentUp`.
    pub(super) fn up<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
    ) {
        let sums = operands.rows::<f32>(compute.inputs[0], Value::ExpertSum, rows);
        let x: &mut [T] = bytemuck::cast_slice_mut(&mut self.rounded);
        let x = &mut x[..sums.len()];
        kernels.round(sums, x);
        let out = linear::output::<T>(operands, compute, rows);
        linear::multiply(kernels, operands, compute, rows, &*x, out);
    }
}
