//! Reference implementations as plain loops, with f64 sums, that every variant is compared with.
//!
//! Used only by tests; nothing here is fast or shares code with the kernels.

use model::delta::{DeltaNet, StateDecay};
use model::experts::{ExcludedExperts, ExpertScoring, GroupScore, ScoreSum};
use model::mamba::Mamba;
use model::short_conv::ShortConv;

use crate::attention::{AttentionShape, AttentionUnit};
use crate::delta::DeltaInputs;
use crate::number::Number;
use crate::router::{RoutedExpert, RouterRules};

/// Computes `x · weightᵀ + bias` as f64, `[rows, n]`.
pub fn linear<T: Number>(
    rows: usize,
    n: usize,
    k: usize,
    x: &[T],
    weight: &[T],
    bias: Option<&[f32]>,
) -> Vec<f64> {
    let mut out = Vec::with_capacity(rows * n);
    for row in 0..rows {
        for col in 0..n {
            let mut sum = bias.map_or(0.0, |bias| f64::from(bias[col]));
            for i in 0..k {
                let (x, w) = (x[row * k + i].to_f32(), weight[col * k + i].to_f32());
                sum += f64::from(x) * f64::from(w);
            }
            out.push(sum);
        }
    }
    out
}

/// Computes `x / (1 + e^-x)`.
pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Computes `x/2 (1 + erf(x / sqrt 2))` with erf by numerical integration.
pub fn gelu(x: f64) -> f64 {
    // erf(z) = 2/sqrt(pi) * integral of e^(-t²) from 0 to z, by Simpson's rule.
    let z = x / std::f64::consts::SQRT_2;
    let steps = 2_000;
    let h = z / f64::from(steps);
    let f = |t: f64| (-t * t).exp();
    let mut sum = f(0.0) + f(z);
    for step in 1..steps {
        sum += f(h * f64::from(step)) * if step % 2 == 1 { 4.0 } else { 2.0 };
    }
    let erf = sum * h / 3.0 * 2.0 / std::f64::consts::PI.sqrt();
    0.5 * x * (1.0 + erf)
}

/// Returns the experts of one row with their weights, in ascending order of experts.
pub fn route(logits: &[f64], rules: &RouterRules<'_>) -> Vec<(u32, f64)> {
    let sum_of_all: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let mut scores: Vec<f64> = match rules.scoring {
        ExpertScoring::SigmoidTopK { .. } => {
            logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
        }
        ExpertScoring::SqrtSoftplusTopK { .. } => {
            logits.iter().map(|logit| (1.0 + logit.exp()).ln().sqrt()).collect()
        }
        _ => logits.iter().map(|logit| logit.exp() / sum_of_all).collect(),
    };
    let bias = |expert: usize| rules.bias.map_or(0.0, |bias| f64::from(bias[expert]));
    let mut choices: Vec<f64> = (0..).zip(&scores).map(|(i, score)| score + bias(i)).collect();
    if let Some(groups) = rules.groups {
        let size = choices.len() / groups.count;
        let score_of = |group: &[f64]| {
            let mut group = group.to_vec();
            group.sort_by(|a, b| b.total_cmp(a));
            match groups.score {
                GroupScore::SumOfTwo => group[0] + group[1],
                GroupScore::Largest => group[0],
            }
        };
        let mut order: Vec<(usize, f64)> =
            choices.chunks_exact(size).map(score_of).enumerate().collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        let choice = match groups.excluded {
            ExcludedExperts::Ineligible => f64::NEG_INFINITY,
            ExcludedExperts::ZeroInSelection | ExcludedExperts::ZeroScore => 0.0,
        };
        for (group, _) in &order[groups.per_token..] {
            choices[group * size..][..size].fill(choice);
            if groups.excluded == ExcludedExperts::ZeroScore {
                scores[group * size..][..size].fill(0.0);
            }
        }
    }
    let mut chosen: Vec<(u32, f64)> = (0..).zip(choices).collect();
    // A stable sort: among equal choices the lower expert's comes first.
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
    chosen.truncate(rules.top_k);
    chosen.sort_by_key(|chosen| chosen.0);
    let score = |expert: u32| scores[expert as usize];
    let sum_of_chosen: f64 = chosen.iter().map(|chosen| score(chosen.0)).sum();
    let divisor = match rules.scoring {
        ExpertScoring::SoftmaxTopK { renormalise: false } => 1.0,
        ExpertScoring::SoftmaxTopK { renormalise: true } | ExpertScoring::TopKSoftmax => {
            sum_of_chosen
        }
        ExpertScoring::SigmoidTopK { sum } | ExpertScoring::SqrtSoftplusTopK { sum } => match sum {
            ScoreSum::Unused => 1.0,
            ScoreSum::Plus(epsilon) => sum_of_chosen + f64::from(epsilon),
        },
    };
    let weight = |expert: u32| score(expert) / divisor * f64::from(rules.factor);
    chosen.into_iter().map(|(expert, _)| (expert, weight(expert))).collect()
}

/// Computes the sum of `weight * (x · its expert's weightᵀ + bias)` over a row's places, `x`
/// `[places, k]` and weights `[experts, n, k]`.
pub fn expert_down<T: Number>(
    routed: &[RoutedExpert],
    n: usize,
    k: usize,
    x: &[T],
    weight: &[T],
    bias: Option<&[f32]>,
) -> Vec<f64> {
    let mut sum = vec![0.0; n];
    for (routed, x) in routed.iter().zip(x.chunks_exact(k)) {
        let expert = routed.expert as usize;
        let weight = &weight[expert * n * k..][..n * k];
        let bias = bias.map(|bias| &bias[expert * n..][..n]);
        for (sum, value) in sum.iter_mut().zip(linear(1, n, k, x, weight, bias)) {
            *sum += f64::from(routed.weight) * value;
        }
    }
    sum
}

/// Computes the causal convolution of all rows of a sequence, `[rows, channels]`, with SiLU.
pub fn delta_convolution<T: Number>(net: &DeltaNet, x: &[T], weight: &[f32]) -> Vec<f64> {
    let channels = net.channels();
    let mut out = Vec::with_capacity(x.len());
    for at in 0..x.len() {
        let (row, channel) = (at / channels, at % channels);
        let taps = (0..net.taps).filter(|tap| row + tap + 1 >= net.taps);
        let products = taps.map(|tap| {
            let value = x[(row + tap + 1 - net.taps) * channels + channel].to_f32();
            f64::from(value) * f64::from(weight[tap * channels + channel])
        });
        out.push(silu(products.sum()));
    }
    out
}

/// Computes the short convolution of all rows of a sequence, `[rows, channels]`.
pub fn short_convolution<T: Number>(conv: &ShortConv, input: &[T], weight: &[f32]) -> Vec<f64> {
    let ShortConv { channels, taps } = *conv;
    let number = |row: usize, third: usize, channel: usize| {
        f64::from(input[(3 * row + third) * channels + channel].to_f32())
    };
    let rows = input.len() / conv.input_size();
    let mut out = Vec::with_capacity(rows * channels);
    for row in 0..rows {
        for channel in 0..channels {
            let mut sum = 0.0;
            for back in 0..taps.min(row + 1) {
                let product = number(row - back, 0, channel) * number(row - back, 2, channel);
                sum += product * f64::from(weight[(taps - 1 - back) * channels + channel]);
            }
            out.push(number(row, 1, channel) * sum);
        }
    }
    out
}

/// Computes the convolution of x, B and C of all rows of a sequence, `[rows, channels]`, with SiLU.
pub fn mamba_convolution<T: Number>(
    mamba: &Mamba,
    input: &[T],
    weight: &[f32],
    bias: Option<&[f32]>,
) -> Vec<f64> {
    let (channels, taps) = (mamba.channels(), mamba.taps);
    let rows = input.len() / mamba.input_size();
    let mut out = Vec::with_capacity(rows * channels);
    for row in 0..rows {
        for channel in 0..channels {
            let mut sum = bias.map_or(0.0, |bias| f64::from(bias[channel]));
            for back in 0..taps.min(row + 1) {
                let at = (row - back) * mamba.input_size() + mamba.inner_size() + channel;
                let weight = weight[(taps - 1 - back) * channels + channel];
                sum += f64::from(input[at].to_f32()) * f64::from(weight);
            }
            out.push(silu(sum));
        }
    }
    out
}

/// Computes the recurrence of Mamba2 of all rows of a sequence and its gate, `[rows, heads,
/// head_dim]`.
pub fn mamba_scan<T: Number>(mamba: &Mamba, mixed: &[T], input: &[T], numbers: &[f32]) -> Vec<f64> {
    let Mamba { heads, head_dim, groups, state_dim, min_step, max_step, .. } = *mamba;
    let rows = mixed.len() / mamba.channels();
    let wide = |all: &[T], at: usize| f64::from(all[at].to_f32());
    let mut out = vec![0.0; rows * heads * head_dim];
    for head in 0..heads {
        let number = |which: usize| f64::from(numbers[which * heads + head]);
        let group = head / (heads / groups);
        let mut state = vec![0.0f64; head_dim * state_dim];
        for row in 0..rows {
            let (mixed_row, input_row) = (row * mamba.channels(), row * mamba.input_size());
            let dt_at = input_row + heads * head_dim + mamba.channels() + head;
            let step = (wide(input, dt_at) + number(1)).exp().ln_1p();
            let step = step.max(f64::from(min_step)).min(max_step.map_or(f64::MAX, f64::from));
            let decay = (-number(0).exp() * step).exp();
            let b_at = mixed_row + heads * head_dim + group * state_dim;
            for element in 0..head_dim {
                let x = wide(mixed, mixed_row + head * head_dim + element);
                let mut sum = number(2) * x;
                for index in 0..state_dim {
                    let state = &mut state[element * state_dim + index];
                    *state = decay * *state + step * x * wide(mixed, b_at + index);
                    sum += *state * wide(mixed, b_at + groups * state_dim + index);
                }
                let z = wide(input, input_row + head * head_dim + element);
                out[(row * heads + head) * head_dim + element] = sum * silu(z);
            }
        }
    }
    out
}

/// Computes the gated delta rule of all rows of a sequence, `[rows, value_heads, value_dim]`.
pub fn delta_rule<T: Number>(net: &DeltaNet, inputs: DeltaInputs<'_, T>) -> Vec<f64> {
    let DeltaInputs { mixed, ba, decays, rates } = inputs;
    let (key_dim, value_dim, heads) = (net.key_dim, net.value_dim, net.value_heads);
    let rows = mixed.len() / net.channels();
    let mut out = vec![0.0; rows * net.value_size()];
    for head in 0..heads {
        let mut state = vec![0.0f64; key_dim * value_dim];
        for row in 0..rows {
            let wide = |from: usize, len: usize| -> Vec<f64> {
                let part = &mixed[row * net.channels() + from..][..len];
                part.iter().map(|value| f64::from(value.to_f32())).collect()
            };
            let unit = |from: usize| -> Vec<f64> {
                let vector = wide(from + net.key_head(head) * key_dim, key_dim);
                let length = (vector.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                vector.iter().map(|x| x / length).collect()
            };
            let (q, k) = (unit(0), unit(net.key_size()));
            let v = wide(2 * net.key_size() + head * value_dim, value_dim);
            let number = |at: usize| f64::from(ba[row * net.rates_size() + at].to_f32());
            let rate = f64::from(rates[head]).exp();
            for (key, states) in state.chunks_exact_mut(value_dim).enumerate() {
                // Index of the decay among those of the row.
                let (a, at) = match net.decay {
                    StateDecay::PerHead => (number(heads + head), head),
                    StateDecay::PerChannel { .. } => {
                        let at = head * key_dim + key;
                        (f64::from(decays[row * net.decays_len() + at].to_f32()), at)
                    }
                };
                let step = (a + f64::from(rates[heads + at])).exp().ln_1p();
                states.iter_mut().for_each(|state| *state *= (-rate * step).exp());
            }
            let beta = 1.0 / (1.0 + (-number(head)).exp());
            let read = |state: &[f64], at: &[f64], column: usize| -> f64 {
                at.iter().enumerate().map(|(i, x)| x * state[i * value_dim + column]).sum()
            };
            for column in 0..value_dim {
                let correction = beta * (v[column] - read(&state, &k, column));
                (0..key_dim).for_each(|i| state[i * value_dim + column] += k[i] * correction);
                let value = read(&state, &q, column) / (key_dim as f64).sqrt();
                out[(row * heads + head) * value_dim + column] = value;
            }
        }
    }
    out
}

/// Computes the RMS norm of one row.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().zip(gain).map(|(&x, &gain)| f64::from(x) * scale * f64::from(gain)).collect()
}

/// Computes the layer norm of one row.
pub fn layer_norm(x: &[f32], gain: &[f32], bias: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + eps).sqrt();
    let normed = x.iter().map(|&x| (f64::from(x) - mean) * scale);
    normed
        .zip(gain.iter().zip(bias))
        .map(|(x, (&gain, &bias))| x * f64::from(gain) + f64::from(bias))
        .collect()
}

/// Computes `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))`.
pub fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// Computes `(u + 1) g sigmoid(alpha g)`, where g is the gate clamped to at most `limit` and u the
/// other factor clamped to `-limit..=limit`.
pub fn clamped_swiglu(gate: f64, up: f64, alpha: f64, limit: f64) -> f64 {
    let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
    (up + 1.0) * gate / (1.0 + (-alpha * gate).exp())
}

/// Computes `min(silu(gate), limit) u`, where u is the other factor clamped to `-limit..=limit`.
pub fn limited_swiglu(gate: f64, up: f64, limit: f64) -> f64 {
    silu(gate).min(limit) * up.clamp(-limit, limit)
}

/// Applies rotate-half rope to the start of one head, twice as many elements as there are
/// frequencies.
pub fn rope(
    head: &[f64],
    position: u32,
    inverse_frequencies: &[f32],
    attention_factor: f64,
) -> Vec<f64> {
    let half = inverse_frequencies.len();
    let mut out = head.to_vec();
    for i in 0..half {
        // The angle is rounded to f32, like in the published implementation; the rest is exact.
        let angle = f64::from(position as f32 * inverse_frequencies[i]);
        let (sin, cos) = angle.sin_cos();
        let (sin, cos) = (attention_factor * sin, attention_factor * cos);
        out[i] = head[i] * cos - head[i + half] * sin;
        out[i + half] = head[i + half] * cos + head[i] * sin;
    }
    out
}

/// K or V of a unit.
#[derive(Debug, Clone, Copy)]
pub struct KvSlices<'a, T> {
    /// `[rows, kv_heads * head_dim]`.
    pub fresh: &'a [T],
    pub cache: &'a [T],
}

/// Computes attention of one unit: `(probabilities, values)` of every query, row by row, head by
/// head. Probabilities are those of the positions that the query sees; `sinks` are an additional
/// score for each head.
pub fn attention<T: Number>(
    shape: &AttentionShape,
    unit: &AttentionUnit,
    q: &[T],
    k: KvSlices<'_, T>,
    v: KvSlices<'_, T>,
    sinks: Option<&[f32]>,
) -> Vec<(Vec<f64>, Vec<f64>)> {
    let AttentionShape { heads, kv_heads, head_dim, scale, window } = *shape;
    let group = heads / kv_heads;
    let kv_head = unit.kv_head as usize;
    let past = unit.past as usize;
    let at = |kv: KvSlices<'_, T>, position: usize, i: usize| -> f64 {
        let value = if position < past {
            let place = match unit.cache_positions as usize {
                0 => position,
                places => position % places,
            };
            kv.cache[unit.cache_offset + place * head_dim + i]
        } else {
            let row = unit.row0 as usize + position - past;
            kv.fresh[(row * kv_heads + kv_head) * head_dim + i]
        };
        f64::from(value.to_f32())
    };
    let mut out = Vec::new();
    for row in 0..unit.rows as usize {
        for head in 0..group {
            let head = kv_head * group + head;
            let q = &q[((unit.row0 as usize + row) * heads + head) * head_dim..][..head_dim];
            let end = past + row + 1;
            let start = window.map_or(0, |window| end.saturating_sub(window as usize));
            let scores: Vec<f64> = (start..end)
                .map(|position| {
                    let dot = |i: usize| f64::from(q[i].to_f32()) * at(k, position, i);
                    (0..head_dim).map(dot).sum::<f64>() * f64::from(scale)
                })
                .collect();
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let highest = scores.iter().copied().fold(sink, f64::max);
            let total: f64 = scores.iter().map(|score| (score - highest).exp()).sum::<f64>()
                + (sink - highest).exp();
            let probabilities: Vec<f64> =
                scores.iter().map(|score| (score - highest).exp() / total).collect();
            let values = (0..head_dim)
                .map(|i| {
                    let term =
                        |position: usize| probabilities[position - start] * at(v, position, i);
                    (start..end).map(term).sum()
                })
                .collect();
            out.push((probabilities, values));
        }
    }
    out
}
