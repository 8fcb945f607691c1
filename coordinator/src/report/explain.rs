//! `-v`: the plan before it runs, in words.

use std::fmt::Write;

use planner::budget::Budget;
use program::ir::Program;
use program::plan::Plan;

use super::file::{LayerRange, MapSummary};

/// Memory, placement and program sizes of a plan.
pub fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    let budget = Budget::of(plan);
    let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
    let _ = writeln!(
        text,
        "memory: weights {:.1} MiB, KV {:.1} MiB, activations {:.1} MiB, device {:.1} MiB",
        mib(budget.weights_bytes),
        mib(budget.kv_bytes),
        mib(budget.activations_bytes),
        mib(budget.device_bytes)
    );
    let map = MapSummary::new(&plan.config, &plan.map);
    for (phase, ranges) in [("prefill", &map.prefill), ("decode", &map.decode)] {
        for range in ranges {
            let _ = writeln!(text, "{phase} {}", layers(range));
        }
    }
    for (phase, program) in [("prefill", &plan.prefill), ("decode", &plan.decode)] {
        let _ = writeln!(text, "{phase} program: {}", lanes(program));
    }
    text
}

fn layers(range: &LayerRange) -> String {
    let sides = [("cpu", &range.cpu), ("gpu", &range.gpu)];
    let sides = sides.iter().filter(|(_, ops)| !ops.is_empty());
    let sides: Vec<String> = sides.map(|(name, ops)| format!("{name} {}", ops.join(" "))).collect();
    format!("layers {}-{}: {}", range.first, range.last, sides.join("; "))
}

fn lanes(program: &Program) -> String {
    let lane = |lane: &program::ir::LaneProgram| {
        format!("{} {} instructions", lane.lane.name(), lane.instructions.len())
    };
    program.lanes.iter().map(lane).collect::<Vec<_>>().join(", ")
}
