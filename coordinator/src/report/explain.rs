//! The plan before it runs, in words: what was chosen among what, and with `-v` all of it.

use std::fmt::Write;

use planner::budget::Budget;
use planner::measured::{Chosen, Considered, Predicted};
use planner::policy::Policy;
use program::ir::Program;
use program::map::layer_list;
use program::plan::Plan;

use super::file::{LayerRange, MapSummary};
use super::table::{plain_table, right_aligned};
use crate::plan::show;

/// All maps that were estimated, the fastest first, and the layer of the best split.
pub fn choice(chosen: &Chosen, plan: &Plan) -> String {
    let mut text = String::new();
    if let Some(searched) = &chosen.searched {
        text += &show::layer(&searched.table, &searched.found);
        text.push('\n');
    }
    let mut table = plain_table();
    table.set_header(["policy", "gpu in decode", "prefill s", "step ms", "group s", "tried", ""]);
    for one in &chosen.considered {
        let new = plan.shape.max_new;
        table.add_row([
            one.name.name().to_owned(),
            on_gpu(one, plan),
            format!("{:.2}", one.estimate.prefill_ns / 1e9),
            format!("{:.1}", one.step_ns() / 1e6),
            format!("{:.2}", one.total_ns(new) / 1e9),
            if one.rehearsed { format!("x {:.2}", one.slowed) } else { "-".to_owned() },
            if one.policy == chosen.policy { "chosen" } else { "" }.to_owned(),
        ]);
    }
    right_aligned(&mut table, 2..6);
    let _ = writeln!(text, "{table}");
    if chosen.considered.iter().any(|one| one.rehearsed) {
        text += "tried: what a few layers took over their simulation; it scales the steps of the policy\n";
    }
    if !chosen.stays.layers.is_empty() {
        let _ = writeln!(
            text,
            "{} of {} layers stay on the device{}",
            chosen.stays.layers.len(),
            plan.config.num_layers,
            if chosen.stays.kv { " with their KV" } else { "" }
        );
    }
    text
}

/// What the run will take, said before it starts.
pub fn predicted(predicted: &Predicted) -> String {
    let (prefill_s, decode_s) = (predicted.prefill_ns / 1e9, predicted.decode_ns / 1e9);
    format!("predicted: prefill {prefill_s:.2} s, decode {decode_s:.2} s\n")
}

/// `k to wv`, as the map of one layer has it.
pub fn on_gpu(one: &Considered, plan: &Plan) -> String {
    let list = layer_list(&plan.config, one.policy.chunking());
    let (start, end) = match one.policy {
        Policy::CpuOnly => (0, 0),
        Policy::GpuOnly => (0, list.len()),
        Policy::TwoSplit { split, .. } => (split.start, split.end),
        Policy::OneSplit { start, .. } => (start, list.len()),
        Policy::Lia { decode, .. } => {
            let on: Vec<&str> = LIA_SUBLAYERS
                .iter()
                .zip(decode.0)
                .filter(|(_, cpu)| !cpu)
                .map(|(name, _)| *name)
                .collect();
            return if on.is_empty() { "nothing".to_owned() } else { on.join(" ") };
        }
        Policy::Flexgen(flexgen) if flexgen.cpu_attention => return "all but attention".to_owned(),
        Policy::Flexgen(_) => (0, list.len()),
    };
    match end - start {
        0 => "nothing".to_owned(),
        count if count == list.len() => "everything".to_owned(),
        1 => list[start].name(&plan.config),
        _ => format!("{} to {}", list[start].name(&plan.config), list[end - 1].name(&plan.config)),
    }
}

/// LIA's six, in its order.
const LIA_SUBLAYERS: [&str; 6] = ["qkv", "scores", "wv", "out", "fc1", "fc2"];

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
