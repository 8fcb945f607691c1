//! Shows the placement that a run on this machine would choose, from measured costs, without
//! running it.

use planner::budget::Budget;
use serde_json::json;

use super::long::LongPrompt;
use super::show::Answer;
use crate::cli::request::{PlanRequest, Run, Work};
use crate::commands::run;
use crate::interrupt::Interrupt;
use crate::report::explain;
use crate::report::file::MapSummary;
use crate::setup::model::Opened;
use crate::setup::placement;
use crate::setup::placement::{Decision, Measure};

/// Returns the plan as text or JSON.
///
/// # Errors
/// A reason for which a run would be refused, or a machine that could not be profiled.
pub(super) fn plan(
    run: &Run,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let opened = Opened::open(&run.model, run.seed)?;
    let Work::Benchmark { prompt_len, gen_len } = run.work else {
        unreachable!("the command line makes benchmarks only")
    };
    let decision = run::decide(run, &opened, prompt_len, gen_len, Measure::Always, interrupt)?;
    let run = &decision.tuned(run);
    let Some(chosen) = &decision.chosen else {
        let long = LongPrompt::measure(run, &opened, prompt_len, interrupt)?;
        return unpriced(&decision, long, request);
    };
    let threads = |uses_gpu| placement::threads(run, uses_gpu);
    let answer = Answer {
        chosen,
        machine: "this machine",
        limits: decision.limits,
        notes: &decision.notes,
        vectors: None,
        threads: Some(&threads),
    };
    let mut text = answer.render(request)?;
    if !request.json {
        text += &format!("\n{}", explain::plan(&decision.plan));
    }
    Ok(text)
}

/// Returns the plan of a specified map for whose prompt length there are no measurements.
fn unpriced(
    decision: &Decision,
    long: Option<LongPrompt>,
    request: &PlanRequest,
) -> anyhow::Result<String> {
    let plan = &decision.plan;
    let budget = Budget::of(plan);
    let note = long.map_or_else(
        || "Not predicted: nothing is measured for prompts of such a length.".to_owned(),
        LongPrompt::in_words,
    );
    if !request.json {
        let policy = &plan.map.policy;
        return Ok(format!("{policy}. {note}\n{}", explain::plan(plan)));
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
