//! Durations of completed runs, stored with the profile that predicted them.

use engine::RunStats;
use planner::policy::Formats;
use planner::search::TimeFactors;
use profiler::{CompletedRun, ProfileCache, RunTimes, plan_key};
use program::plan::Plan;

use super::hardware::Hardware;
use super::profile;
use crate::session::Session;
use report::build::RunPrediction;

/// Stores the measured and the simulated duration of a run, if the run did everything that was
/// predicted and a profile of its shape is stored. A failure to store them is ignored.
pub fn record(session: &Session<'_>, plan: &Plan, prediction: &RunPrediction, measured: &RunStats) {
    let Some(entry) = history_entry(plan, prediction, measured) else { return };
    let Some(cache) = ProfileCache::of_user() else { return };
    let hardware = Hardware::resolve(session, plan.map.uses_gpu());
    let (weights, kv) = (plan.map.weight_formats.clone(), plan.map.kv_format);
    let formats = Formats { weights, kv, kv_select: None };
    let request = profile::profile_request(&plan.config, &plan.shape, &formats, hardware);
    let fingerprint = profiler::Fingerprint::new(&request, &hardware.describe_machine());
    let _ = cache.record_finished(&fingerprint, entry);
}

/// Returns the entry of a run; `None` for a run without a prediction, and for one that ended early
/// or in which sequences took over slots of others, since its prediction covers more than it did.
fn history_entry(
    plan: &Plan,
    prediction: &RunPrediction,
    measured: &RunStats,
) -> Option<CompletedRun> {
    let predicted = prediction.predicted?;
    let is_predicted = plan.map.kv_select.is_none();
    let is_whole = measured.groups == prediction.groups
        && measured.decode_steps == prediction.decode_steps
        && measured.decode_steps > 0
        && is_predicted;
    let (prefill_ns, decode_ns) = (measured.prefill.as_nanos(), measured.decode.as_nanos());
    let TimeFactors { prefill, decode } = prediction.factors;
    let simulated = RunTimes {
        prefill_ns: predicted.prefill_ns / prefill,
        decode_ns: predicted.decode_ns / decode,
    };
    is_whole.then(|| CompletedRun {
        plan: plan_key(plan),
        simulated,
        measured: RunTimes { prefill_ns: prefill_ns as f64, decode_ns: decode_ns as f64 },
    })
}
