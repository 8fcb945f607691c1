//! Description of a plan before it runs: its predicted duration and, with `-v`, all of its
//! contents.

use std::fmt::Write;

use planner::budget::Budget;
use planner::search::PredictedTimes;
use program::checkpoints::size_bytes;
use program::ir::Program;
use program::plan::Plan;
use program::sizes::Sizes;

use super::file::{LayerRange, MapSummary};
use super::read_weights::ReadWeights;

/// Formats the predicted duration of a run.
pub fn format_prediction(
    predicted: &PredictedTimes,
    bounds: Option<[PredictedTimes; 2]>,
) -> String {
    let (prefill_s, decode_s) = (predicted.prefill_ns / 1e9, predicted.decode_ns / 1e9);
    let ends = bounds.map_or_else(String::new, |bounds| {
        let [low_s, high_s] = bounds.map(|end| end.total_ns() / 1e9);
        format!(", together {low_s:.2} to {high_s:.2} s")
    });
    format!("predicted: prefill {prefill_s:.2} s, decode {decode_s:.2} s{ends}\n")
}

/// Formats the memory, placement and program sizes of a plan.
pub fn format_plan(plan: &Plan) -> String {
    let mut text = String::new();
    let budget = Budget::from_plan(plan);
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    let _ = writeln!(
        text,
        "memory: weights {:.3} GiB, KV {:.3} GiB, activations {:.3} GiB, device {:.3} GiB",
        gib(budget.weights_bytes),
        gib(budget.kv_bytes),
        gib(budget.activations_bytes),
        gib(budget.device_bytes)
    );
    let checkpoint_bytes = size_bytes(&Sizes::new(&plan.config, &plan.shape, &plan.map)) as f64;
    if checkpoint_bytes > 0.0 {
        let mib = checkpoint_bytes / f64::from(1u32 << 20);
        let _ = writeln!(text, "checkpoint of a sequence (servers take some): {mib:.3} MiB");
    }
    if let Some(read) = ReadWeights::for_plan(plan) {
        let _ = writeln!(text, "read in every step: {}", read.summary(&plan.config));
    }
    let map = MapSummary::new(&plan.config, &plan.map);
    for (phase, ranges) in [("prefill", &map.prefill), ("decode", &map.decode)] {
        for range in ranges {
            let _ = writeln!(text, "{phase} {}", format_layers(range));
        }
    }
    for program in &plan.programs {
        let _ = writeln!(text, "{} program: {}", program.name(), format_lanes(plan, program));
    }
    text
}

fn format_layers(range: &LayerRange) -> String {
    let sides = [("cpu", &range.cpu), ("gpu", &range.gpu)];
    let sides = sides.iter().filter(|(_, ops)| !ops.is_empty());
    let sides: Vec<String> = sides.map(|(name, ops)| format!("{name} {}", ops.join(" "))).collect();
    format!("layers {}-{}: {}", range.first, range.last, sides.join("; "))
}

fn format_lanes(plan: &Plan, program: &Program) -> String {
    let lane = |lane: &program::ir::LaneProgram| {
        format!("{} {} instructions", plan.lane_name(lane.lane), lane.instructions.len())
    };
    program.lanes.iter().map(lane).collect::<Vec<_>>().join(", ")
}
