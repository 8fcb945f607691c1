//! Runs that have ended, kept with the profile that predicted them.

use planner::policy::Formats;
use planner::priced::Factors;
use profiler::{Cache, Finished, RunTimes, plan_key};
use program::plan::Plan;

use super::hardware::Hardware;
use super::profile;
use crate::cli::request::Run;
use crate::engine::Measured;
use crate::report::build::RunPrediction;

/// Keeps what a run took beside what was predicted of it, if it did all that was predicted and the
/// profile of its shape is kept. That this fails is no loss to the run.
pub(crate) fn keep(run: &Run, plan: &Plan, prediction: &RunPrediction, measured: &Measured) {
    let Some(finished) = finished(plan, prediction, measured) else { return };
    let Some(cache) = Cache::of_user() else { return };
    let hardware = Hardware::resolve(run, plan.map.uses_gpu());
    let (weights, kv) = (plan.map.weight_formats.clone(), plan.map.kv_format);
    let formats = Formats { weights, kv, kv_select: None };
    let request = profile::request(&plan.config, &plan.shape, &formats, hardware);
    let fingerprint = profiler::Fingerprint::of(&request, &hardware.machine());
    let _ = cache.record_finished(&fingerprint, finished);
}

/// `None` of a run without a prediction, and of one that ended early or whose sequences took each
/// other's places: its prediction is of more than it did.
fn finished(plan: &Plan, prediction: &RunPrediction, measured: &Measured) -> Option<Finished> {
    let predicted = prediction.predicted?;
    let is_predicted = plan.map.kv_select.is_none();
    let is_whole = measured.groups == prediction.groups
        && measured.decode_steps == prediction.decode_steps
        && measured.decode_steps > 0
        && is_predicted;
    let (prefill_ns, decode_ns) = (measured.prefill.as_nanos(), measured.decode.as_nanos());
    let Factors { prefill, decode } = prediction.factors;
    let simulated = RunTimes {
        prefill_ns: predicted.prefill_ns / prefill,
        decode_ns: predicted.decode_ns / decode,
    };
    is_whole.then(|| Finished {
        plan: plan_key(plan),
        simulated,
        measured: RunTimes { prefill_ns: prefill_ns as f64, decode_ns: decode_ns as f64 },
    })
}
