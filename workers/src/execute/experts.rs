//! A mixture of experts: the routing of rows to experts, and the experts' linears.

use kernels::{
    Element, ExpertLimits, ExpertWeight, Kernels, Linear, LinearOut, RoutedExpert, RoutedLinear,
    RouterRules, Routing, SharedExperts,
};
use model::config::ModelConfig;
use model::experts::Experts as Mixture;
use model::ops::{Op, Value};
use model::quantized_format::WeightFormat;
use program::ir::{Compute, ProgramId};
use program::plan::Plan;

use super::expert_cache::{PlaceScratch, RoutedCache};
use super::linear;
use super::operands::Operands;

/// Maximum number of rows of experts computed in one pass. Each pass reads the experts' weights
/// again.
const ROWS_MAX: usize = 2048;

/// Returns the limits for which the kernels of a model's experts are sized, given a maximum of
/// `rows` rows.
pub(super) fn limits(config: &ModelConfig, rows: usize) -> ExpertLimits {
    let Some(Mixture { count, per_token, ffn_size, .. }) = config.experts else {
        return ExpertLimits::NONE;
    };
    ExpertLimits {
        rows: rows.min(ROWS_MAX),
        top_k: per_token,
        experts: count,
        inputs: config.expert_row_size().max(ffn_size),
        hidden: config.expert_row_size(),
    }
}

/// Returns the model's experts, for a layer that has some.
fn mixture(operands: &Operands<'_>) -> Mixture {
    operands.config.experts.expect("a layer with experts is of a model with experts")
}

/// Router that selects the experts of each row.
#[derive(Debug)]
pub(super) struct Router {
    /// Input of a router that is computed in f32, `[rows, hidden]`.
    input: Vec<f32>,
    /// Router logits, `[rows, experts]`.
    logits: Vec<f32>,
    /// Number of rows of each expert.
    rows_of: Vec<u32>,
    /// State of the random generator if random logits replace the router's.
    random: Option<u64>,
    cache: Option<RoutedCache>,
}

impl Router {
    /// Returns a router of up to `rows` rows.
    pub(super) fn new(plan: &Plan, rows: usize) -> Router {
        let config = &plan.config;
        let experts = config.experts.map_or(0, |experts| experts.count);
        let is_f32 = config.experts.is_some_and(|experts| experts.selection.is_f32);
        let width = if is_f32 { config.hidden_size } else { 0 };
        Router {
            input: vec![0.0; rows * width],
            logits: vec![0.0; rows * experts],
            rows_of: vec![0; experts],
            random: None,
            cache: RoutedCache::from_plan(plan),
        }
    }

    /// Returns a router that computes its logits but selects experts by random ones.
    pub(super) fn with_random_routing(self) -> Router {
        Router { random: Some(0), ..self }
    }

    /// Runs `Router` on the first `rows` rows. `tokens` are theirs if the layer selects experts by
    /// token.
    pub(super) fn route<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        rows: usize,
        tokens: &[u32],
    ) {
        let Mixture { count, per_token, scoring, selection, has_factors, logit_factor, .. } =
            mixture(operands);
        let logits = &mut self.logits[..rows * count];
        if selection.is_f32 {
            let input = &mut self.input[..];
            score_in_f32::<T>(kernels, input, logits, operands, compute, rows);
        } else {
            score::<T>(kernels, logits, operands, compute, rows);
        }
        if logit_factor != 1.0 {
            kernels.scale(logit_factor, logits);
        }
        if let Some(state) = &mut self.random {
            logits.iter_mut().for_each(|logit| *logit = random(state));
        }
        let routed: &mut [RoutedExpert] =
            bytemuck::cast_slice_mut(operands.output::<f32>(compute, rows));
        // Contributions to the residual stream are scaled, here through the weights of the sum
        // unless a linear follows it.
        let residual = match operands.config.has_expert_latent() {
            true => 1.0,
            false => operands.config.scales.residual,
        };
        let factor = residual * selection.scale;
        let is_by_token = operands.config.routes_by_token();
        let rules = RouterRules {
            experts: count,
            top_k: per_token,
            scoring,
            bias: operands.vector(compute, 1).filter(|_| selection.bias && !is_by_token),
            groups: selection.groups,
            factor,
        };
        match operands.vector(compute, 1).filter(|_| is_by_token && self.random.is_none()) {
            Some(table) => kernels.route_tokens(&rules, tokens, table, logits, routed),
            None => kernels.route(&rules, logits, routed),
        }
        if let Some(factors) = operands.vector(compute, 1).filter(|_| has_factors) {
            routed.iter_mut().for_each(|one| one.weight *= factors[one.expert as usize]);
        }
        self.rows_of.fill(0);
        routed.iter().for_each(|routed| self.rows_of[routed.expert as usize] += 1);
        let cache = self.cache.as_mut();
        let missing = cache.and_then(|cache| cache.assign(operands, compute, &self.rows_of));
        if let Some(layer) = compute.at.layer {
            let decode_rows = (operands.program == ProgramId::DECODE).then_some(rows as u32);
            operands.table.count_routed(layer.into(), decode_rows, &self.rows_of, missing);
        }
    }
}

/// Returns a number from 0 to 1 and advances the state (SplitMix64).
fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1u32 << 24) as f32
}

/// Computes the router's logits of all rows.
fn score<T: Element>(
    kernels: &Kernels,
    logits: &mut [f32],
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let x = operands.rows::<T>(compute.inputs[0], compute.op.reads(operands.config)[0], rows);
    linear::multiply(kernels, operands, compute, rows, x, LinearOut::StoreF32(logits));
}

/// Computes the logits of a router whose matrix is f32, with `input` for the rows in f32.
fn score_in_f32<T: Element>(
    kernels: &Kernels,
    input: &mut [f32],
    logits: &mut [f32],
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
) {
    let x = operands.rows::<T>(compute.inputs[0], Value::Normed1, rows);
    let (n, k) = operands.matrix_shape(compute);
    let input = &mut input[..rows * k];
    input.iter_mut().zip(x).for_each(|(input, x)| *input = x.to_f32());
    let (weight, bias) = (operands.matrix::<f32>(compute), operands.vector(compute, 0));
    let out = LinearOut::StoreF32(logits);
    kernels.linear(Linear { rows, n, k, x: &*input, weight, bias, out });
}

/// Runs `ExpertGate`, `ExpertUp` or `ExpertDown`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    rows: usize,
    scratch: &mut PlaceScratch,
) {
    let Mixture { count, per_token, .. } = mixture(operands);
    let (all, k) = operands.matrix_shape(compute);
    let routed = operands.rows::<f32>(compute.inputs[1], Value::Routing, rows);
    let routed: &[RoutedExpert] = bytemuck::cast_slice(routed);
    let placed = scratch.find(operands, compute, routed);
    let (places, included) = (placed.map(|one| one.places), placed.and_then(|one| one.included));
    let buffer = compute.weights[0].buffer;
    let weight = match (operands.format(compute), &places) {
        (WeightFormat::Plain, None) => ExpertWeight::Plain(operands.matrix::<T>(compute)),
        (WeightFormat::Grouped(form), None) => {
            ExpertWeight::Grouped(form, operands.records(compute, form))
        }
        (format, Some(_)) => {
            let len_bytes = operands.view.size_bytes(buffer);
            let first = operands.view.pointer(buffer, 0, len_bytes);
            // SAFETY: needed since storages write to other slots of the buffer meanwhile. It is
            // mapped as long as the view, and reads of the included experts precede this
            // instruction in the program, as the next ones into their slots follow it (contract of
            // `View::new`).
            ExpertWeight::Shared(unsafe { SharedExperts::new(format, first, len_bytes) })
        }
    };
    let routing = Routing { experts: count, top_k: per_token, routed };
    let bias = if places.is_none() { operands.vector(compute, 0) } else { None };
    let experts = RoutedLinear { routing, n: all / count, k, weight, bias, places, included };
    let input = |index: usize, value| operands.rows::<T>(compute.inputs[index], value, rows);
    let first = compute.op.reads(operands.config)[0];
    match compute.op {
        Op::ExpertDown if included.is_some() => {
            let outputs = operands.output::<f32>(compute, rows);
            kernels.expert_products(&experts, input(0, Value::ExpertFfn), outputs);
        }
        Op::ExpertDown => {
            let hidden = operands.output::<f32>(compute, rows);
            if !compute.op.adds_to_residual(operands.config) {
                hidden.fill(0.0);
            }
            kernels.expert_down(&experts, input(0, Value::ExpertFfn), hidden);
        }
        Op::ExpertUp if !operands.config.activation.is_gated() => {
            let out = operands.output::<T>(compute, rows);
            let out = linear::ungated(operands.config.activation, out);
            kernels.expert_linear(&experts, input(0, first), out);
        }
        Op::ExpertUp => {
            let (gate, out) = (input(2, Value::ExpertGate), operands.output::<T>(compute, rows));
            let limit = linear::limits(operands.config, compute).experts;
            let out = linear::gated(operands.config.activation, limit, gate, out);
            kernels.expert_linear(&experts, input(0, first), out);
        }
        _ => {
            let out = LinearOut::Store(operands.output::<T>(compute, rows));
            kernels.expert_linear(&experts, input(0, first), out);
        }
    }
}

/// Runs `ExpertCombine`.
pub(super) fn combine(kernels: &Kernels, operands: &Operands<'_>, compute: &Compute, rows: usize) {
    let Mixture { count, per_token, .. } = mixture(operands);
    let routed = operands.rows::<f32>(compute.inputs[1], Value::Routing, rows);
    let routed: &[RoutedExpert] = bytemuck::cast_slice(routed);
    let outputs = operands.rows::<f32>(compute.inputs[0], Value::ExpertOut, rows);
    let hidden = operands.output::<f32>(compute, rows);
    if !compute.op.adds_to_residual(operands.config) {
        hidden.fill(0.0);
    }
    let routing = Routing { experts: count, top_k: per_token, routed };
    kernels.combine_experts(&routing, operands.config.expert_row_size(), outputs, hidden);
}

#[cfg(test)]
mod tests {
    use model::experts::ExpertScoring;

    use super::*;

    /// Rows that select 8 of 128 experts reach as many distinct experts as independent draws do.
    #[test]
    fn random_logits_pick_all_experts_equally_often() {
        let (experts, rows, groups) = (128, 8, 500);
        let mixture = Mixture::new(experts, 8, 1, ExpertScoring::TopKSoftmax);
        let mut state = 0;
        let mut times = vec![0; experts];
        let mut distinct = 0;
        for _ in 0..groups {
            let mut hit = vec![false; experts];
            for _ in 0..rows {
                let logits: Vec<f32> = (0..experts).map(|_| random(&mut state)).collect();
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                for expert in &order[..mixture.per_token] {
                    hit[*expert] = true;
                    times[*expert] += 1;
                }
            }
            distinct += hit.iter().filter(|hit| **hit).count();
        }
        let mean = distinct as f64 / f64::from(groups);
        let expected = mixture.expected_distinct(f64::from(rows));
        assert!((mean / expected - 1.0).abs() < 0.02, "{mean} {expected}");
        // Expected 250 times each, with a standard deviation of about 15.
        assert!(times.iter().all(|times| (170..330).contains(times)), "{times:?}");
    }
}
