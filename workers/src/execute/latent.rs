//! Products of heads and their matrices in latent attention, queries of latents and values of
//! weighted sums of latents; and of groups of heads in attention whose output passes a linear of
//! each.

use kernels::{Element, ExpertWeight, HeadLinear, HeadSpan, Kernels};
use model::config::ModelConfig;
use model::ops::{Op, Value};
use model::quantized_format::WeightFormat;
use program::ir::Compute;

use super::operands::Operands;

/// Returns the maximum number of inputs of a head or of a group of heads; 0 for a model without
/// such linears.
pub(super) fn inputs(config: &ModelConfig) -> usize {
    let of_heads = config.latent.map_or(0, |latent| latent.kv_rank.max(latent.nope_dim));
    let of_groups = config
        .features
        .unified_kv
        .map_or(0, |unified| config.max_of_layers(ModelConfig::q_size) / unified.out_groups.max(1));
    of_heads.max(of_groups)
}

/// Runs `OutDown`.
pub(super) fn groups<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let unified = operands.config.features.unified_kv;
    let Some(unified) = unified else { panic!("{:?} is of unified attention", compute.op) };
    let (heads, n) = (unified.out_groups, unified.out_rank);
    let (_, k) = operands.matrix_shape(compute);
    let x = operands.rows::<T>(compute.inputs[0], Value::Unrotated, rows);
    let (weight, out) = (weight::<T>(operands, compute), operands.output::<T>(compute, rows));
    let whole = |width: usize| HeadSpan { width, first: 0 };
    let (x_span, out_span) = (whole(k), whole(n));
    kernels.head_linear(HeadLinear { rows, heads, n, k, x, x_span, weight, out, out_span });
}

/// Returns the matrices of all heads or groups.
fn weight<'a, T: Element>(operands: &Operands<'a>, compute: &Compute) -> ExpertWeight<'a, T> {
    match operands.format(compute) {
        WeightFormat::Plain => ExpertWeight::Plain(operands.matrix::<T>(compute)),
        WeightFormat::Grouped(form) => ExpertWeight::Grouped(form, operands.records(compute, form)),
    }
}

/// Runs `QAbsorb` or `VUp`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let config = operands.config;
    let Some(latent) = config.latent else { panic!("{:?} is of latent attention", compute.op) };
    let heads = config.num_heads;
    let (all, k) = operands.matrix_shape(compute);
    let (weight, out) = (weight::<T>(operands, compute), operands.output::<T>(compute, rows));
    let after_rotated = |width: usize| HeadSpan { width, first: latent.rope_dim };
    let (value, x_span, out_span) = match compute.op {
        Op::QAbsorb => {
            (Value::HeadQuery, after_rotated(latent.query_dim()), after_rotated(latent.key_dim()))
        }
        _ => (
            Value::Attended,
            after_rotated(latent.key_dim()),
            HeadSpan { width: latent.value_dim, first: 0 },
        ),
    };
    let x = operands.rows::<T>(compute.inputs[0], value, rows);
    if compute.op == Op::QAbsorb {
        let heads = out.chunks_exact_mut(out_span.width).zip(x.chunks_exact(x_span.width));
        let rotated = latent.rope_dim;
        heads.for_each(|(out, x)| out[..rotated].copy_from_slice(&x[..rotated]));
    }
    let n = all / heads;
    kernels.head_linear(HeadLinear { rows, heads, n, k, x, x_span, weight, out, out_span });
}
