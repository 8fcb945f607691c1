//! Shows the placement that a run on this machine would choose, from measured costs, without
//! running it.

use planner::budget::Budget;
use serde_json::json;

use super::long_prompt::LongPrompt;
use super::show::PlanOutput;
use crate::cli::request::{BenchmarkPlan, PlanRequest};
use crate::commands::run;
use report::explain;
use report::file::MapSummary;
use session::interrupt::Interrupt;
use session::model::ModelHandle;
use session::placement;
use session::placement::{MeasurePolicy, PlacementDecision};
use session::session::Session;

/// Returns the plan as text or JSON.
///
/// # Errors
/// A reason for which a run would be refused, or a machine that could not be profiled.
pub(super) fn plan_this_machine(
    benchmark: &BenchmarkPlan,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let BenchmarkPlan { options, batches, prompt_len, gen_len } = benchmark;
    let (prompt_len, gen_len) = (*prompt_len, *gen_len);
    let model = ModelHandle::of_session(options)?;
    let session = Session { batches: Some(*batches), ..Session::new(&model, options) };
    let decision =
        run::plan_benchmark(&session, prompt_len, gen_len, MeasurePolicy::Always, interrupt)?;
    let session = &decision.with_tuned_threads(&session);
    let Some(chosen) = &decision.search_result else {
        let long = LongPrompt::measure(session, prompt_len, interrupt)?;
        return unpredicted_plan(&decision, long, request);
    };
    let threads = |uses_gpu| placement::thread_counts(session, uses_gpu);
    let output = PlanOutput {
        chosen,
        machine: "this machine",
        limits: decision.limits,
        notes: &decision.notes,
        vectors: None,
        threads: Some(&threads),
        drafts: None,
    };
    let mut text = output.render(request)?;
    if !request.json {
        text += &format!("\n{}", explain::format_plan(&decision.plan));
    }
    Ok(text)
}

/// Returns the plan of a specified map for whose prompt length there are no measurements.
fn unpredicted_plan(
    decision: &PlacementDecision,
    long: Option<LongPrompt>,
    request: &PlanRequest,
) -> anyhow::Result<String> {
    let plan = &decision.plan;
    let budget = Budget::from_plan(plan);
    let note = long.map_or_else(
        || "Not predicted: there are no measurements for prompts of this length.".to_owned(),
        LongPrompt::describe,
    );
    if !request.json {
        let policy = &plan.map.policy;
        return Ok(format!("{policy}. {note}\n{}", explain::format_plan(plan)));
    }
    let answer = json!({
        "machine": "this machine", "model": plan.config.name, "batches": plan.shape.batches,
        "batch_size": plan.shape.batch_size, "policy": plan.map.policy, "note": note,
        "prefill_ms": long.map(|long| long.prefill_ns / 1e6),
        "step_ms": long.map(|long| long.step_ns / 1e6),
        "device_map": MapSummary::new(&plan.config, &plan.map),
        "budget_bytes": {
            "weights": budget.weights_bytes, "kv": budget.kv_bytes,
            "activations": budget.activations_bytes, "device": budget.device_bytes,
        },
    });
    Ok(serde_json::to_string_pretty(&answer)? + "\n")
}
