//! A mixture of experts: which experts a row goes to, and their linears.

use kernels::{Element, ExpertLimits, ExpertWeight, Experts, Kernels, LinearOut, Routed, Routing};
use model::compressed::WeightFormat;
use model::config::ModelConfig;
use model::experts::Experts as Mixture;
use model::ops::{Op, Value};
use program::ir::Compute;

use super::linear;
use super::operands::Operands;

/// Rows of experts at a time; more are computed in passes, each of which reads the experts' weights
/// anew.
const ROWS_MAX: usize = 2048;

/// What the kernels of a model's experts are sized for, with so many rows at most.
pub(super) fn limits(config: &ModelConfig, rows: usize) -> ExpertLimits {
    let Some(Mixture { count, per_token, ffn_size, .. }) = config.experts else {
        return ExpertLimits::NONE;
    };
    ExpertLimits {
        rows: rows.min(ROWS_MAX),
        top_k: per_token,
        experts: count,
        inputs: config.hidden_size.max(ffn_size),
        hidden: config.hidden_size,
    }
}

/// The model's experts, of a layer that has some.
fn mixture(operands: &Operands<'_>) -> Mixture {
    operands.plan.config.experts.expect("a layer with experts is of a model with experts")
}

/// Picks each row's experts: `logits` has room for those of all rows.
pub(super) fn route<T: Element>(
    kernels: &Kernels,
    logits: &mut [f32],
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let Mixture { count, per_token, scoring, .. } = mixture(operands);
    let x = operands.rows::<T>(compute.inputs[0], Value::Normed1, rows);
    let logits = &mut logits[..rows * count];
    linear::multiply(kernels, operands, compute, (rows, x), LinearOut::StoreF32(&mut *logits));
    let routed: &mut [Routed] = bytemuck::cast_slice_mut(operands.output::<f32>(compute, rows));
    // What a half of a layer adds is scaled, here with the weights of its sum.
    let factor = operands.plan.config.scales.residual;
    kernels.route((count, per_token), (scoring, factor), logits, routed);
}

/// `ExpertGate`, `ExpertUp` or `ExpertDown`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let Mixture { count, per_token, .. } = mixture(operands);
    let (all, k) = operands.matrix_shape(compute);
    let routed = operands.rows::<f32>(compute.inputs[1], Value::Routing, rows);
    let routed: &[Routed] = bytemuck::cast_slice(routed);
    let weight = match operands.format(compute) {
        WeightFormat::Plain => ExpertWeight::Plain(operands.matrix::<T>(compute)),
        WeightFormat::Grouped(form) => ExpertWeight::Grouped(form, operands.records(compute, form)),
    };
    let routing = Routing { experts: count, top_k: per_token, routed };
    let bias = operands.vector(compute, 0);
    let experts = Experts { routing, n: all / count, k, weight, bias };
    let of = |index: usize, value| operands.rows::<T>(compute.inputs[index], value, rows);
    match compute.op {
        Op::ExpertDown => {
            let hidden = operands.output::<f32>(compute, rows);
            kernels.expert_down(&experts, of(0, Value::ExpertFfn), hidden);
        }
        Op::ExpertUp => {
            let (gate, out) = (of(2, Value::ExpertGate), operands.output::<T>(compute, rows));
            let out = linear::gated(operands.plan.config.activation, gate, out);
            kernels.expert_linear(&experts, of(0, Value::Normed1), out);
        }
        _ => {
            let out = LinearOut::Store(operands.output::<T>(compute, rows));
            kernels.expert_linear(&experts, of(0, Value::Normed1), out);
        }
    }
}
