//! Predictions of a run before its workers start.

use batch::completions::BatchJob;
use batch::eta::CostPrior;
use batch::progress::EtaConfig;
use batch::run::GroupSize;
use batch::workload::JobWorkload;
use planner::search::{PredictedTimes, TimeFactors};
use program::plan::RunShape;

use super::placement::PlacementDecision;
use crate::request::Verbosity;
use crate::session::Session;
use report::build::RunPrediction;
use report::explain;

/// Returns the number of sequences of a group.
pub fn group_sequences(shape: &RunShape) -> usize {
    usize::from(shape.batches) * usize::from(shape.batch_size)
}

/// Returns the number of slots and the predicted durations for the progress display.
pub fn progress_expectation(decision: &PlacementDecision) -> EtaConfig {
    let shape = &decision.plan.shape;
    let slots = group_sequences(shape);
    let prior = decision.predicted.map(|full| CostPrior {
        prompt_token_s: full.prefill_ns / 1e9 / (slots as f64 * f64::from(shape.max_prompt.max(1))),
        step_s: full.decode_ns / 1e9 / f64::from(shape.max_new.saturating_sub(1).max(1)),
    });
    EtaConfig { slots, prior }
}

/// Predicts a job before the workers start.
pub fn predict(
    decision: &PlacementDecision,
    demand: JobWorkload,
    job: &BatchJob<'_>,
) -> RunPrediction {
    let shape = &decision.plan.shape;
    let groups = job.groups(group_sequences(shape));
    let predict_all = |full| predict_groups(full, &groups, shape);
    RunPrediction {
        lengths: (demand.max_prompt as u32, demand.max_new),
        predicted: decision.predicted.map(predict_all),
        bounds: decision.bounds.map(|between| between.map(predict_all)),
        factors: factors(decision),
        groups: groups.len() as u64,
        decode_steps: groups.iter().map(|group| u64::from(group.max_new.saturating_sub(1))).sum(),
        notes: decision.notes.clone(),
    }
}

/// Returns the ratio of predicted to simulated durations.
pub fn factors(decision: &PlacementDecision) -> TimeFactors {
    decision.search_result.as_ref().map_or(TimeFactors::NONE, |chosen| chosen.factors())
}

/// Predicts the duration of all groups if no sequence takes over the slot of another. It is scaled
/// from `full`, the duration of a full group of the longest sequences: prefill by tokens, decode by
/// steps.
fn predict_groups(full: PredictedTimes, groups: &[GroupSize], shape: &RunShape) -> PredictedTimes {
    let sequences = f64::from(shape.batches) * f64::from(shape.batch_size);
    // Each stream of whole prompts, or each batch in chunks, computes the shared prefix once.
    let prefix_computations =
        if shape.is_chunked() { shape.batch_size } else { shape.micro_sequences };
    let computed = |tokens: f64, sequences: f64| {
        let micros = (sequences / f64::from(prefix_computations)).ceil();
        tokens - (sequences - micros) * f64::from(shape.shared_prompt)
    };
    let tokens = computed(sequences * f64::from(shape.max_prompt.max(1)), sequences);
    let steps = f64::from(shape.max_new.saturating_sub(1).max(1));
    let sum = |share: &dyn Fn(&GroupSize) -> f64| groups.iter().map(share).sum::<f64>();
    PredictedTimes {
        prefill_ns: full.prefill_ns
            * sum(&|group| computed(group.prompt_tokens as f64, group.sequences as f64) / tokens),
        decode_ns: full.decode_ns
            * sum(&|group| f64::from(group.max_new.saturating_sub(1)) / steps),
    }
}

/// Prints the predicted duration of the run.
pub fn print_prediction(session: &Session<'_>, prediction: &RunPrediction) {
    if let (Some(predicted), true) =
        (&prediction.predicted, session.options.verbosity >= Verbosity::Normal)
    {
        eprint!("{}", explain::format_prediction(predicted, prediction.bounds));
    }
}
