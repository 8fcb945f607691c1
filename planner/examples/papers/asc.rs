//! ASC's order of operations (Activation Sequence Caching), in the table model alone: no program
//! computes in this order.
//!
//! Park-Egger reproduce the order and not the results. Its source is not available; the order here
//! follows from its name and their section 2.2: a layer caches its inputs X instead of keys and
//! values. `q (X Wk)'` is then `(q Wk') X'` and `p (X Wv)` is `(p X) Wv`, so K's matrix multiplies
//! the query, V's follows the weighted sum, and Scores and WV read X. One cache of the hidden size
//! crosses the link where K and V did, and each head multiplies with all of X: the arithmetic of
//! attention grows by the number of heads per hidden size. Rotated positions (rope) would forbid
//! it; OPT has none.

use model::config::ModelConfig;
use model::ops::Op;
use planner::layer::steady::{LayerMap, SlotLimits, steady_map};
use planner::layer::table::{OpCost, OperationTable};
use planner::policy::name::PolicyName;
use planner::policy::{Placement, Policy};
use planner::search::operation_table;

use crate::answer::{Answer, Busy, middle, prefill};
use crate::cells::Scenario;
use crate::place::{DTYPE, Setting};

/// Order in which the operations of a layer run.
const ORDER: [Op; 11] = [
    Op::Norm0,
    Op::Q,
    Op::K,
    Op::Scores,
    Op::Softmax,
    Op::Wv,
    Op::V,
    Op::Out,
    Op::Norm1,
    Op::Fc0,
    Op::Fc1,
];
/// Indices into [`ORDER`].
const SCORES: usize = 3;
const WV: usize = 5;

/// Returns the latency of a run in ASC's order, with the best interval of a layer, or with
/// everything on the GPU.
///
/// # Errors
/// Fails for a model or a policy to which the order does not apply.
pub fn answer(scenario: &Scenario) -> Result<Answer, String> {
    let setting = Setting::of(scenario)?;
    let plain = setting.with_estimator(setting.batch_size, scenario.prompt, |estimator| {
        operation_table(estimator, None).map_err(|error| error.to_string())
    })?;
    let table = reordered(&plain, &setting)?;
    let count = table.ops.len();
    let intervals: Vec<(usize, usize)> = match setting.policy {
        PolicyName::GpuOnly => vec![(0, count)],
        policy => policy.intervals(&table).ok_or("the policy has no intervals")?,
    };
    let compressed = table.compression.search_cases()[0];
    let layer_ms = |(start, end): (usize, usize)| {
        let on_gpu = (0..count).map(|index| (start..end).contains(&index)).collect();
        steady_map(&table, &LayerMap::of(on_gpu, compressed), &SlotLimits::default()).latency.ms()
    };
    // The transfer of X is attributed to Scores, so WV cannot be on the GPU without Scores.
    let whole = intervals
        .into_iter()
        .filter(|(start, end)| *start <= SCORES || *start > WV || start == end);
    let best = whole.map(|interval| (layer_ms(interval), interval));
    let (layer_ms, (start, end)) =
        best.min_by(|a, b| a.0.total_cmp(&b.0)).ok_or("there is no interval")?;
    // According to the paper, prefill does not improve.
    let prefill = prefill(&setting, &Placement::from_policy(Policy::GpuOnly))?;
    let decode_step_ms = layer_ms * setting.config.num_layers as f64;
    let steps = f64::from(scenario.new_tokens.saturating_sub(1));
    let tokens = f64::from(scenario.batches * scenario.batch_size * scenario.new_tokens);
    let name = |index: usize| ORDER[index].name(setting.config.family).to_lowercase();
    Ok(Answer {
        prefill_ms: prefill.ms,
        decode_step_ms,
        tokens_per_s: tokens / (prefill.ms + steps * decode_step_ms) * 1e3,
        placement: match start == end {
            true => "all on the CPU".to_owned(),
            false => format!("GPU {} to {}", name(start), name(end - 1)),
        },
        layer_ms: Some(layer_ms),
        cpu_busy: 0.0,
        cpu_beside_transfers: None,
        busy: Busy::default(),
        resident_share: 0.0,
        far_share: 0.0,
    })
}

/// Returns the table of a layer in ASC's order.
fn reordered(plain: &OperationTable, setting: &Setting<'_>) -> Result<OperationTable, String> {
    let config = &setting.config;
    let names = config.leading_ops();
    let of = |op: Op| -> Result<OpCost, String> {
        let place = names.iter().position(|other| *other == op);
        place.map(|place| plain.ops[place].clone()).ok_or_else(|| {
            format!("ASC's order is not written down for {}, which lacks {op:?}", config.name)
        })
    };
    if names.len() != ORDER.len() || config.layers.kind(0).rope.is_some() {
        return Err(format!("ASC's order is not written down for {}", config.name));
    }
    let mut ops = ORDER.into_iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let (cpu_ms, gpu_ms) = arithmetic_ms(setting)?;
    for place in [SCORES, WV] {
        let op = &mut ops[place];
        (op.cpu_ms, op.gpu_ms) = (op.cpu_ms.max(cpu_ms), op.gpu_ms.max(gpu_ms));
    }
    let wider = wider(config);
    let scores = &mut ops[SCORES];
    (scores.h2d_ms, scores.h2d_compressed_ms) =
        (scores.h2d_ms * wider, scores.h2d_compressed_ms * wider);
    let wv = &mut ops[WV];
    (wv.h2d_ms, wv.h2d_compressed_ms, wv.kv) = (0.0, 0.0, false);
    Ok(OperationTable { ops, fused: None, needs: None, ..plain.clone() })
}

/// Returns the ratio of the bytes of a row of X to those of a row of K.
fn wider(config: &ModelConfig) -> f64 {
    config.hidden_size as f64 / config.kv_size() as f64
}

/// Returns the time that the arithmetic of Scores, or of WV, takes for a batch on the CPU and on
/// the GPU.
fn arithmetic_ms(setting: &Setting<'_>) -> Result<(f64, f64), String> {
    let (config, machine) = (&setting.config, &setting.machine);
    let positions = f64::from(middle(setting.scenario)) * f64::from(setting.batch_size);
    let flops = 2.0 * (config.num_heads * config.hidden_size) as f64 * positions;
    let sentence = |error: planner::machine::MachineError| error.to_string();
    let cpu = machine.cpu_rates(DTYPE).map_err(sentence)?.attention_tflops;
    let gpu = machine.gpu_rates(DTYPE).map_err(sentence)?.attention_tflops;
    Ok((flops / cpu / 1e9, flops / gpu / 1e9))
}
