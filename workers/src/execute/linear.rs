//! Linears of rows, and the destinations of their results.

use bytemuck::Pod;
use kernels::{
    Columns, ColumnsOut, ColumnsWeight, Element, HeadSpan, Kernels, Linear, LinearColumns,
    LinearOut, LinearQuant,
};
use model::config::{Activation, ModelConfig, QkNorm};
use model::config_bounds::HEAD_DIM_MAX;
use model::indexer::INDEX_NORM_EPS;
use model::latent::LATENT_NORM_EPS;
use model::layers::ActivationLimits;
use model::ops::{Kv, Op, Value};
use model::quantized_format::WeightFormat;
use program::ir::Compute;
use program::map::Chunk;
use program::pieces;

use super::indexed;
use super::operands::{Operands, output_region};

/// Constants of gpt-oss's activation.
pub(crate) const SWIGLU_ALPHA: f32 = 1.702;
pub(crate) const SWIGLU_LIMIT: f32 = 7.0;

/// Gain of a norm without one.
static UNIT_GAIN: [f32; HEAD_DIM_MAX] = [1.0; HEAD_DIM_MAX];

/// Runs the linear, and the norm of q, k, v or their latents after it.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let config = operands.config;
    let x = operands.rows::<T>(compute.inputs[0], compute.op.reads(config)[0], rows);
    if let Some(piece) = compute.chunk.filter(|piece| piece.of > 1) {
        multiply_piece(kernels, operands, compute, piece, rows, x);
        return;
    }
    multiply(kernels, operands, compute, rows, x, output::<T>(operands, compute, rows));
    if config.features.unified_kv.is_some() {
        norm_unified::<T>(kernels, operands, compute, rows);
    } else if let (Some(latent), Op::QDown | Op::K) = (config.latent, compute.op) {
        let gains = operands.vector(compute, 1).expect("a norm has a gain");
        let (width, _) = operands.matrix_shape(compute);
        let out = operands.output::<T>(compute, rows);
        let (first, size) = match compute.op {
            Op::QDown => (0, width),
            _ => (latent.rope_dim, latent.kv_rank),
        };
        let (gain, of_indexer) = gains.split_at(size);
        kernels.span_norm(rows, HeadSpan { width, first }, gain, LATENT_NORM_EPS, out);
        if !of_indexer.is_empty() {
            let (gain, bias) = of_indexer.split_at(of_indexer.len() / 2);
            let span = indexed::key_span(config);
            kernels.span_layer_norm(rows, span, [gain, bias], INDEX_NORM_EPS, out);
        }
    } else if let (Op::Q | Op::K, Some(norm)) = (compute.op, config.qk_norm) {
        let heads = match norm {
            QkNorm::PerHead => operands.matrix_shape(compute).0 / config.head_dim,
            QkNorm::FullWidth => 1,
        };
        let gain = operands.vector(compute, 1).expect("a norm has a gain");
        let out = operands.output::<T>(compute, rows);
        kernels.head_norm(rows, heads, gain, config.norm_eps, out);
    } else if compute.op == Op::V && config.features.value_norm {
        let gain = &UNIT_GAIN[..config.head_dim];
        let out = operands.output::<T>(compute, rows);
        kernels.head_norm(rows, config.num_kv_heads, gain, config.norm_eps, out);
    }
}

/// Runs the norm after a linear of attention with one KV head that is key and value: that of the
/// query's latent or of the key, with a gain, or of each head of q, without one.
fn norm_unified<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let config = operands.config;
    let (heads, gain) = match compute.op {
        Op::K => {
            let gain = operands.vector(compute, 1).expect("a norm has a gain");
            let span = HeadSpan { width: config.cache_size(Kv::K), first: 0 };
            let out = operands.output::<T>(compute, rows);
            return kernels.span_norm(rows, span, gain, config.norm_eps, out);
        }
        Op::QDown => (1, operands.vector(compute, 1).expect("a norm has a gain")),
        Op::Q => (config.num_heads, &UNIT_GAIN[..config.head_dim]),
        _ => return,
    };
    let out = operands.output::<T>(compute, rows);
    kernels.head_norm(rows, heads, gain, config.norm_eps, out);
}

/// Multiplies `rows` rows of `x` by the operation's matrix and adds the bias.
pub(super) fn multiply<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
    x: &[T],
    out: LinearOut<'_, T>,
) {
    let (n, k) = operands.matrix_shape(compute);
    let bias = operands.vector(compute, 0);
    match operands.format(compute) {
        WeightFormat::Plain => {
            let weight = operands.matrix::<T>(compute);
            kernels.linear(Linear { rows, n, k, x, weight, bias, out });
        }
        WeightFormat::Grouped(format) => {
            let records = operands.records(compute, format);
            kernels.linear_grouped(LinearQuant { rows, n, k, x, format, records, bias, out });
        }
    }
}

/// Multiplies `rows` rows of `x` by a piece of the operation's matrix and adds its bias. The piece
/// may be all that is stored.
fn multiply_piece<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    piece: Chunk,
    rows: usize,
    x: &[T],
) {
    let (config, dtype) = (operands.config, operands.plan.shape.dtype);
    let (n, k) = operands.matrix_shape(compute);
    let columns = pieces::columns(config, compute.op, piece);
    let format = operands.format(compute);
    let [matrix, biases] = pieces::weight_ranges(config, dtype, format, compute.op, piece);
    let (view, blob) = (operands.view, compute.weights[0].buffer);
    let weight = match format {
        WeightFormat::Plain => {
            ColumnsWeight::Plain(view.read(blob, matrix.start, columns.len() * k))
        }
        WeightFormat::Grouped(form) => {
            ColumnsWeight::Grouped(form, view.read(blob, matrix.start, matrix.len()))
        }
    };
    let bias = (!biases.is_empty()).then(|| view.read(blob, biases.start, columns.len()));
    let out = piece_output(operands, compute, rows);
    kernels.linear_columns(LinearColumns { rows, n, k, columns, x, weight, bias, out });
}

/// Returns the destination of a piece's results.
fn piece_output<'a, T: Element>(
    operands: &Operands<'a>,
    compute: &Compute,
    rows: usize,
) -> ColumnsOut<'a, T> {
    let config = operands.config;
    if compute.op.adds_to_residual(config) {
        let out = written::<f32>(operands, compute, rows);
        return ColumnsOut::Add { out, factor: config.scales.residual };
    }
    let out = written::<T>(operands, compute, rows);
    if let Some(gate) = compute.op.gate_of_up() {
        let (first, len) = operands.pointer(compute.inputs[1], gate, rows);
        // SAFETY: needed because another lane may write other columns of these rows, other
        // pieces of the gate, at the same time. The view has checked that they are mapped;
        // nothing writes the columns of this piece, as the validator has proved.
        let gate = unsafe { Columns::new(first, len) };
        return match (config.activation, limits(config, compute).network) {
            (Activation::Silu, None) => ColumnsOut::SiluMul { gate, out },
            (Activation::Silu, Some(limit)) => ColumnsOut::LimitedSiluMul { gate, out, limit },
            (Activation::SiluOfLimited, Some(limit)) => {
                ColumnsOut::SiluOfLimitedMul { gate, out, limit }
            }
            (Activation::GeluTanh, None) => ColumnsOut::GeluTanhMul { gate, out },
            (other, _) => panic!("{other:?} is no activation of a dense gate"),
        };
    }
    match (compute.op, config.activation) {
        (Op::Fc0, Activation::Relu) => ColumnsOut::Relu(out),
        (Op::Fc0, Activation::ReluSquared) => ColumnsOut::ReluSquared(out),
        (Op::Fc0, _) => ColumnsOut::Gelu(out),
        _ => ColumnsOut::Store(out),
    }
}

/// Returns the rows in which a piece writes its columns.
fn written<'a, N: Pod>(operands: &Operands<'a>, compute: &Compute, rows: usize) -> Columns<'a, N> {
    let (first, len) = operands.output_pointer::<N>(compute, rows);
    // SAFETY: needed because another lane may write other columns of these rows, other pieces of
    // the value, at the same time. The view has checked that they are mapped; the columns of this
    // piece belong to this lane alone, as the validator has proved.
    unsafe { Columns::new(first, len) }
}

/// Returns the destination of the results.
pub(super) fn output<'a, T: Element>(
    operands: &Operands<'a>,
    compute: &Compute,
    rows: usize,
) -> LinearOut<'a, T> {
    let config = operands.config;
    let scales = config.scales;
    if let Some(gate) = compute.op.gate_of_up() {
        let gate = operands.rows::<T>(compute.inputs[1], gate, rows);
        let limit = limits(config, compute).network;
        return gated(config.activation, limit, gate, operands.output::<T>(compute, rows));
    }
    match compute.op {
        op if op.adds_to_residual(config) => {
            assert_eq!(
                compute.inputs[1].buffer,
                output_region(compute).buffer,
                "the residual stream is updated in place"
            );
            let out = operands.output::<f32>(compute, rows);
            match scales.residual {
                1.0 => LinearOut::AddTo(out),
                factor => LinearOut::AddScaled { out, factor },
            }
        }
        Op::IndexWeights => LinearOut::StoreF32(operands.output::<f32>(compute, rows)),
        Op::Head => {
            let out = operands.output::<f32>(compute, rows);
            match (config.features.logit_cap, scales.logits) {
                (Some(cap), factor) => LinearOut::StoreCapped { out, factor, cap },
                (None, 1.0) => LinearOut::StoreF32(out),
                (None, factor) => LinearOut::StoreScaled { out, factor },
            }
        }
        Op::OutGate => {
            let x = operands.rows::<T>(compute.inputs[1], Value::Attended, rows);
            let out = operands.output::<T>(compute, rows);
            match config.features.gates_heads {
                true => LinearOut::TimesSigmoidOfHead { x, out, head_dim: config.head_dim },
                false => LinearOut::TimesSigmoid { x, out },
            }
        }
        Op::DeltaGate => {
            let x = operands.rows::<T>(compute.inputs[1], Value::DeltaRead, rows);
            let out = operands.output::<T>(compute, rows);
            match config.decays_by_channel() {
                true => LinearOut::TimesSigmoid { x, out },
                false => LinearOut::TimesSilu { x, out },
            }
        }
        Op::Fc0 => ungated(config.activation, operands.output::<T>(compute, rows)),
        _ => LinearOut::Store(operands.output::<T>(compute, rows)),
    }
}

/// Returns the output that is an activation of the linear's result.
///
/// # Panics
/// Panics if the activation has a gate.
pub(super) fn ungated<T>(activation: Activation, out: &mut [T]) -> LinearOut<'_, T> {
    match activation {
        Activation::Relu => LinearOut::Relu(out),
        Activation::ReluSquared => LinearOut::ReluSquared(out),
        Activation::Gelu => LinearOut::Gelu(out),
        Activation::Silu
        | Activation::GeluTanh
        | Activation::ClampedSwiGlu
        | Activation::SiluOfLimited => panic!("{activation:?} has a gate"),
    }
}

/// Returns the limits of the gated activations of an instruction's layer.
pub(super) fn limits(config: &ModelConfig, compute: &Compute) -> ActivationLimits {
    config.layers.kind(compute.at.layer.map_or(0, usize::from)).limits
}

/// Returns the output that multiplies an activation of the gate, at most `limit`, by the linear's
/// result, whose absolute value is at most `limit`.
///
/// # Panics
/// Panics if the activation has a single factor, or cannot be limited.
pub(super) fn gated<'a, T>(
    activation: Activation,
    limit: Option<f32>,
    gate: &'a [T],
    out: &'a mut [T],
) -> LinearOut<'a, T> {
    match (activation, limit) {
        (Activation::Silu, None) => LinearOut::SiluMul { gate, out },
        (Activation::Silu, Some(limit)) => LinearOut::LimitedSiluMul { gate, out, limit },
        (Activation::SiluOfLimited, Some(limit)) => {
            LinearOut::SiluOfLimitedMul { gate, out, limit }
        }
        (Activation::GeluTanh, None) => LinearOut::GeluTanhMul { gate, out },
        (Activation::ClampedSwiGlu, None) => {
            LinearOut::ClampedSwiGlu { gate, out, alpha: SWIGLU_ALPHA, limit: SWIGLU_LIMIT }
        }
        _ => panic!("{activation:?} has no gate, or cannot be limited"),
    }
}
