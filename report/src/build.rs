//! Builds the report of a run from its measurements.

use std::collections::{BTreeMap, HashSet};

use engine::trace_stats::{DecodeInterval, DecodePrediction, TraceTotals};
use engine::{PeakMemory, RunStats};
use model::quantized_format::WeightFormat;
use planner::budget::Budget;
use program::formats::KvFormat;
use program::plan::Plan;
use program::topology::LaneId;

use super::file::{
    DraftReport, LaneReport, LayerSpan, LayerTimes, MapSummary, PredictedReport, ReplayLaneReport,
    ReplayLayersReport, ReplayReport, Report, StepTimes,
};
use super::gantt::LAYERS;
use super::routing::routing_report;
use super::select::select_report;
use super::step::Step;
use super::storages::storage_reports;

/// Predictions of a run before its workers start.
#[derive(Debug, Clone)]
pub struct RunPrediction {
    /// Longest prompt and maximum number of new tokens, in tokens.
    pub lengths: (u32, u32),
    /// Predicted durations of all groups.
    pub predicted: Option<planner::search::PredictedTimes>,
    /// Lower and upper bound of these, by the uncertainty of earlier measurements.
    pub bounds: Option<[planner::search::PredictedTimes; 2]>,
    /// Ratio of predicted to simulated durations.
    pub factors: planner::search::TimeFactors,
    /// Number of groups, if no sequence takes over the slot of another.
    pub groups: u64,
    /// Maximum number of decode steps of all groups.
    pub decode_steps: u64,
    /// Decisions about the formats of weights that the user did not make, a sentence each.
    pub notes: Vec<String>,
}

impl RunPrediction {
    /// Returns the prediction of a run for which nothing can be predicted.
    pub const fn unknown(lengths: (u32, u32)) -> RunPrediction {
        RunPrediction {
            lengths,
            predicted: None,
            bounds: None,
            factors: planner::search::TimeFactors::NONE,
            groups: 0,
            decode_steps: 0,
            notes: Vec::new(),
        }
    }
}

/// Joins sentences into one text; returns `None` if there are none.
pub fn join_notes(notes: &[String]) -> Option<String> {
    (!notes.is_empty()).then(|| notes.join(" "))
}

/// Returns the drafts of a run; `None` if none were verified.
fn draft_report(measured: &RunStats) -> Option<DraftReport> {
    let drafts = measured.drafts;
    let report = DraftReport { verified: drafts.verified, accepted: drafts.accepted };
    (drafts.verified > 0).then_some(report)
}

fn predicted_report(prediction: &RunPrediction) -> Option<PredictedReport> {
    prediction.predicted.map(|predicted| PredictedReport {
        source: "profile".to_owned(),
        prefill_s: predicted.prefill_ns / 1e9,
        decode_s: predicted.decode_ns / 1e9,
        between_s: prediction.bounds.map(|ends| ends.map(|end| end.total_ns() / 1e9)),
        groups: prediction.groups,
        decode_steps: prediction.decode_steps,
    })
}

/// Builds the report of a run.
pub fn build(
    plan: &Plan,
    measured: &RunStats,
    prediction: &RunPrediction,
    threads: BTreeMap<String, u16>,
) -> Report {
    let (prefill_s, decode_s) = (measured.prefill.as_secs_f64(), measured.decode.as_secs_f64());
    let rate = |tokens: u64, seconds: f64| (tokens > 0).then(|| tokens as f64 / seconds);
    let totals = &measured.totals;
    let with_sum = |peaks: &PeakMemory| {
        let mut bytes = peaks.by_process_bytes.clone();
        bytes.insert("sum".to_owned(), peaks.sum_bytes);
        bytes
    };
    Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: plan.config.name.clone(),
        dtype: plan.shape.dtype.name().to_owned(),
        weight_bytes_by_format: weight_bytes_by_format(plan),
        kv_format: kv_format(plan),
        batches: plan.shape.batches,
        batch_size: plan.shape.batch_size,
        prompt_len: prediction.lengths.0,
        gen_len: prediction.lengths.1,
        requests: None,
        note: join_notes(&prediction.notes),
        device: device_name(plan, measured),
        policy: plan.map.policy.clone(),
        device_map: MapSummary::new(&plan.config, &plan.map),
        threads,
        kernel_variants: measured.kernel_variants.clone(),
        groups: measured.groups,
        load_s: measured.load.as_secs_f64(),
        prefill_s,
        decode_s,
        total_s: prefill_s + decode_s,
        prefill_tokens: measured.prefill_tokens,
        shared_prompt_tokens: measured.shared_tokens,
        decode_tokens: measured.decode_tokens,
        decode_steps: measured.decode_steps,
        generated_tokens: measured.generated_tokens,
        prefill_tokens_per_s: rate(measured.prefill_tokens, prefill_s),
        decode_tokens_per_s: rate(measured.decode_tokens, decode_s),
        total_tokens_per_s: rate(measured.generated_tokens, prefill_s + decode_s),
        decode_step: step_times(totals),
        predicted: predicted_report(prediction),
        replayed: measured.prediction.as_ref().map(|prediction| replay_report(plan, prediction)),
        lanes: totals
            .busy_ns
            .iter()
            .map(|(lane, ns)| {
                (plan.lane_name(*lane).to_owned(), LaneReport { busy_s: *ns as f64 / 1e9 })
            })
            .collect(),
        overlap: totals.overlap_share(),
        time_outside: totals.idle_share(),
        streamed_weight_bytes: totals.streamed_weight_bytes,
        streamed_kv_bytes: totals.streamed_kv_bytes,
        storages: storage_reports(plan, measured),
        drafts: draft_report(measured),
        routing: routing_report(plan.config.experts.as_ref(), measured.routing.as_ref()),
        kv_select: select_report(plan.map.kv_select, measured.sparse_attention),
        budget_bytes: budget(plan),
        peak_pss_bytes: with_sum(&measured.peak_memory),
        load_peak_pss_bytes: with_sum(&measured.load_peak_memory),
        allocations_after_ready: measured.allocations.clone(),
        lost_spans: totals.lost_spans,
    }
}

/// Returns the name of the CUDA device, `emulated`, or `none`.
fn device_name(plan: &Plan, measured: &RunStats) -> String {
    let other = if plan.map.uses_gpu() { "emulated" } else { "none" };
    measured.device.clone().unwrap_or_else(|| other.to_owned())
}

fn kv_format(plan: &Plan) -> String {
    match plan.map.kv_format {
        KvFormat::Plain => plan.shape.dtype.name().to_owned(),
        KvFormat::Four => "4-bit".to_owned(),
        KvFormat::Eight => "8-bit".to_owned(),
    }
}

fn step_times(totals: &TraceTotals) -> Option<StepTimes> {
    let seconds = |share: f64| totals.step_ns(share).map(|ns| ns as f64 / 1e9);
    let quantiles_s = (0..=20).filter_map(|twentieth| seconds(f64::from(twentieth) / 20.0));
    Some(StepTimes {
        median_s: seconds(0.5)?,
        quantiles_s: quantiles_s.collect(),
        p95_s: seconds(0.95)?,
        max_s: seconds(1.0)?,
    })
}

fn replay_report(plan: &Plan, prediction: &DecodePrediction) -> ReplayReport {
    let DecodePrediction { simulated, measured } = prediction;
    let seconds = |replay: &DecodeInterval, lane: &LaneId| {
        replay.busy_ns.get(lane).map_or(0.0, |ns| *ns as f64 / 1e9)
    };
    let lanes = measured.busy_ns.keys().map(|lane| {
        let simulated_busy_s = seconds(simulated, lane);
        let measured_busy_s = seconds(measured, lane);
        let busy = ReplayLaneReport { simulated_busy_s, measured_busy_s };
        (plan.lane_name(*lane).to_owned(), busy)
    });
    ReplayReport {
        simulated_s: simulated.duration_ns / 1e9,
        measured_s: measured.duration_ns / 1e9,
        lanes: lanes.collect(),
        layers: Some(ReplayLayersReport {
            simulated: layer_times(plan, simulated),
            measured: layer_times(plan, measured),
        }),
    }
}

fn layer_times(plan: &Plan, replay: &DecodeInterval) -> LayerTimes {
    let step = Step::from_spans(plan, &replay.middle_step);
    let (start_ms, end_ms) = step.window_ms(LAYERS);
    let spans = step.window_spans(LAYERS).into_iter().map(|drawn| LayerSpan {
        lane: drawn.lane,
        op: drawn.op,
        layer: drawn.layer,
        batch: drawn.batch,
        start_s: drawn.start_ms / 1e3,
        end_s: drawn.end_ms / 1e3,
    });
    LayerTimes { length_s: (end_ms - start_ms) / 1e3, spans: spans.collect() }
}

fn weight_bytes_by_format(plan: &Plan) -> BTreeMap<String, u64> {
    let (mut bytes, mut counted) = (BTreeMap::new(), HashSet::new());
    // With several storages, each has a copy, which is counted once.
    for placed in plan.weights.iter().filter(|placed| counted.insert(placed.weights)) {
        let format = match plan.map.weight_formats.of(&plan.config, placed.weights) {
            WeightFormat::Plain => plan.shape.dtype.name().to_owned(),
            WeightFormat::Grouped(grouped) => grouped.to_string(),
        };
        *bytes.entry(format).or_insert(0) += plan.buffer(placed.buffer).size_bytes;
    }
    bytes
}

fn budget(plan: &Plan) -> BTreeMap<String, u64> {
    let budget = Budget::from_plan(plan);
    let named = [
        ("weights", budget.weights_bytes),
        ("kv", budget.kv_bytes),
        ("activations", budget.activations_bytes),
        ("device", budget.device_bytes),
    ];
    named.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}
