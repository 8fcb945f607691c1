//! Limits of the kernels, checked before a device is opened.

use cuda_kernels::{EXPERTS_PER_ROW_MAX, HEAD_DIM_MAX};
use model::ops::Op;
use program::cuda_gaps::{gap_name, is_gap};
use program::ir::{Compute, Instruction};
use program::plan::Plan;

use crate::error::WorkerError;

/// Checks that the kernels can run everything that a plan assigns to the device.
///
/// # Errors
/// Returns an error if heads or the experts of a row exceed their bounds, for operations without
/// kernels, and for linears in pieces.
pub fn check(plan: &Plan) -> Result<(), WorkerError> {
    let work = plan.device_work();
    let all_computed = || {
        let all = work.programs.iter().flat_map(|program| &program.instructions);
        all.filter_map(|instruction| match instruction {
            Instruction::Compute(compute) => Some(compute),
            _ => None,
        })
    };
    let is_piece = |compute: &&Compute| compute.chunk.is_some() && !compute.op.is_attention();
    if let Some(piece) = all_computed().find(is_piece) {
        return Err(WorkerError::PieceOnDevice { op: piece.op.name(plan.config.family) });
    }
    let computed = || all_computed().map(|compute| compute.op);
    let kv_format = plan.map.kv_format;
    if let Some(op) = computed().find(|op| is_gap(&plan.config, kv_format, *op)) {
        return Err(WorkerError::NotOnDevice { op: gap_name(&plan.config, kv_format, op) });
    }
    let runs = |is: fn(Op) -> bool| computed().any(is);
    let head_dim = if runs(Op::is_attention) { plan.config.head_dim } else { 0 };
    let experts = plan.config.experts.filter(|_| runs(|op| op == Op::Router));
    let per_row = experts.map_or(0, |experts| experts.per_token);
    let sizes = [
        ("values of a head", head_dim, HEAD_DIM_MAX),
        ("experts of a row", per_row, EXPERTS_PER_ROW_MAX),
    ];
    let beyond = sizes.into_iter().find(|(_, value, most)| *value > *most as usize);
    beyond.map_or(Ok(()), |(what, value, most)| Err(WorkerError::Unsupported { what, value, most }))
}
