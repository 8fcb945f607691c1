//! This machine, as measured: what a run would choose, without running it.

use std::fmt::Write;

use planner::budget::Budget;
use planner::layer::steady::{Shape, steady_layer};
use serde_json::json;

use super::chart_file;
use crate::cli::request::{PlanRequest, Run, Work};
use crate::commands::run;
use crate::interrupt::Interrupt;
use crate::report::build::one_text;
use crate::report::explain;
use crate::report::file::MapSummary;
use crate::report::gantt;
use crate::setup::model::Opened;
use crate::setup::placement;
use crate::setup::placement::Decision;

/// The answer, as text or JSON.
///
/// # Errors
/// What a run would be refused for; a machine that could not be profiled.
pub(super) fn plan(
    run: &Run,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let opened = Opened::open(&run.model, run.seed)?;
    let Work::Benchmark { prompt_len, gen_len } = run.work else {
        unreachable!("the command line makes benchmarks only")
    };
    let decision = run::decide(run, &opened, prompt_len, gen_len, interrupt)?;
    let searched = decision.searched.as_ref().and_then(|chosen| chosen.searched.as_ref());
    if let (Some(path), Some(searched)) = (&request.chart, searched) {
        chart_file::write(path, &searched.table, &searched.found.best.candidate)?;
    }
    if request.json {
        return Ok(serde_json::to_string_pretty(&as_json(&decision))? + "\n");
    }
    let mut text = String::new();
    for note in &decision.notes {
        let _ = writeln!(text, "{note}");
    }
    match &decision.searched {
        Some(chosen) => {
            let threads = |uses_gpu| placement::threads(run, uses_gpu);
            text += &explain::choice(chosen, &decision.plan, &threads);
        }
        None => {
            let _ = writeln!(text, "{}: there is nothing to choose", decision.plan.map.policy);
        }
    }
    if let Some(predicted) = &decision.predicted {
        text += &explain::predicted(predicted);
    }
    if let Some(searched) = searched {
        let best = &searched.found.best.candidate;
        let steady = steady_layer(&searched.table, best, &Shape::default());
        let is_chosen = decision.searched.as_deref().and_then(explain::searched).is_some();
        let which = if is_chosen { "the chosen split" } else { "the best split, not chosen" };
        let _ = write!(text, "\n{which}, by the table alone:\n");
        text += &gantt::draw(&searched.table, &steady);
    }
    let _ = write!(text, "\n{}", explain::plan(&decision.plan));
    Ok(text)
}

fn as_json(decision: &Decision) -> serde_json::Value {
    let plan = &decision.plan;
    let budget = Budget::of(plan);
    let considered: Vec<_> = decision
        .searched
        .iter()
        .flat_map(|chosen| chosen.considered.iter().enumerate().map(move |one| (chosen, one)))
        .map(|(chosen, (place, one))| {
            let (in_prefill, in_decode) = explain::on_gpu(&one.map, &plan.config);
            json!({
                "policy": one.name.name(), "gpu_in_prefill": in_prefill, "gpu": in_decode,
                "prefill_ms": one.estimate.prefill_ns / 1e6, "decode_step_ms": one.step_ns() / 1e6,
                "total_ms": one.total_ns(plan.shape.max_new) / 1e6,
                "rehearsed": one.rehearsed.then_some(one.slowed),
                "chosen": place == chosen.place,
            })
        })
        .collect();
    let ops: Vec<_> = decision
        .searched
        .iter()
        .filter_map(|chosen| chosen.searched.as_ref())
        .flat_map(|searched| &searched.table.ops)
        .map(|op| {
            json!({
                "name": op.name, "cpu_ms": op.cpu_ms, "gpu_ms": op.gpu_ms, "h2d_ms": op.h2d_ms,
                "decompress_ms": op.decompress_ms, "kv": op.kv,
            })
        })
        .collect();
    json!({
        "machine": "this", "model": plan.config.name, "batches": plan.shape.batches,
        "batch_size": plan.shape.batch_size, "policy": plan.map.policy,
        "note": one_text(&decision.notes),
        "device_map": MapSummary::new(&plan.config, &plan.map), "considered": considered,
        "ops": ops,
        "predicted": decision.predicted.map(|predicted| json!({
            "prefill_ms": predicted.prefill_ns / 1e6, "decode_ms": predicted.decode_ns / 1e6,
        })),
        "budget_bytes": {
            "weights": budget.weights_bytes, "kv": budget.kv_bytes,
            "activations": budget.activations_bytes, "device": budget.device_bytes,
        },
    })
}
