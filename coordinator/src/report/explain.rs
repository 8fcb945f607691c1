//! The plan before it runs, in words: what was chosen among what, and with `-v` all of it.

use std::fmt::Write;

use model::config::ModelConfig;
use planner::budget::Budget;
use planner::priced::{Chosen, Predicted, Searched};
use planner::policy::Policy;
use program::ir::Program;
use program::map::{ChunkOrder, Chunking, Device, DeviceMap, OpChunk, layer_list};
use program::plan::Plan;

use super::file::{LayerRange, MapSummary};
use super::layer;
use super::table::{plain_table, right_aligned};

/// All maps that were estimated, the fastest first, under the layer of the best split where that is
/// what will run. `threads` are those of the cpu worker and of the device, for a map with a device
/// and for one without.
pub fn choice(chosen: &Chosen, plan: &Plan, threads: &dyn Fn(bool) -> (u16, u16)) -> String {
    let mut text = String::new();
    if let Some(searched) = searched(chosen) {
        text += &layer::text(&searched.table, &searched.found);
        text.push('\n');
    }
    let mut table = plain_table();
    table.set_header([
        "policy",
        "gpu in prefill",
        "gpu in decode",
        "threads",
        "prefill s",
        "step ms",
        "group s",
        "tried",
        "",
    ]);
    for (place, one) in chosen.considered.iter().enumerate() {
        let new = plan.shape.max_new;
        let (prefill, decode) = on_gpu(&one.map, &plan.config);
        table.add_row([
            one.name.name().to_owned(),
            prefill,
            decode,
            match threads(one.map.uses_gpu()) {
                (cpu, 0) => cpu.to_string(),
                (cpu, gpu) => format!("{cpu} + {gpu}"),
            },
            format!("{:.2}", one.estimate.prefill_ns / 1e9),
            format!("{:.1}", one.step_ns() / 1e6),
            format!("{:.2}", one.total_ns(new) / 1e9),
            if one.rehearsed { format!("x {:.2}", one.slowed) } else { "-".to_owned() },
            if place == chosen.place { "chosen" } else { "" }.to_owned(),
        ]);
    }
    right_aligned(&mut table, 3..8);
    let _ = writeln!(text, "{table}");
    if chosen.considered.iter().any(|one| one.map.uses_gpu()) {
        text += "threads: of the CPU, and those of the device where a map has one\n";
    }
    if chosen.considered.iter().any(|one| one.rehearsed) {
        text += "tried: what a few layers took over their simulation; it scales the steps of the \
         policy\n";
    }
    if !chosen.resident.layers.is_empty() {
        let _ = writeln!(
            text,
            "{} of {} layers stay on the device{}",
            chosen.resident.layers.len(),
            plan.config.num_layers,
            if chosen.resident.kv { " with their KV" } else { "" }
        );
    }
    text
}

/// The search whose best split was chosen; `None` where something else was.
pub fn searched(chosen: &Chosen) -> Option<&Searched> {
    let searched = chosen.searched.as_ref()?;
    let chunking = chosen.policy.chunking();
    let list = layer_list(&chosen.plan.config, chunking).len();
    let interval = match chosen.policy {
        Policy::TwoSplit { split, .. } => (split.start, split.end),
        Policy::OneSplit { start, .. } => (start, list),
        _ => return None,
    };
    let best = &searched.found.best.candidate;
    (best.interval == interval && chunking == searched.chunking).then_some(searched)
}

/// What the run will take, said before it starts.
pub fn predicted(predicted: &Predicted) -> String {
    let (prefill_s, decode_s) = (predicted.prefill_ns / 1e9, predicted.decode_ns / 1e9);
    format!("predicted: prefill {prefill_s:.2} s, decode {decode_s:.2} s\n")
}

/// What the GPU runs of a layer in prefill and in decode: `nothing`, `k to wv`, `all but scores to
/// wv`.
pub fn on_gpu(map: &DeviceMap, config: &ModelConfig) -> (String, String) {
    let named = |list: Vec<OpChunk>, devices: &[Device], cut: &str| {
        let on: Vec<bool> = devices.iter().map(|device| *device == Device::Gpu).collect();
        let names: Vec<String> = list.iter().map(|entry| entry.name(config)).collect();
        let text = runs(&names, &on);
        let is_cut = on.iter().zip(&list).any(|(on, entry)| *on && entry.chunk.is_some());
        if is_cut && text != "everything" { format!("{text}{cut}") } else { text }
    };
    let cut = match map.chunking {
        Some(Chunking { order: ChunkOrder::Scores, chunks }) => format!(" (scores={chunks})"),
        Some(Chunking { order: ChunkOrder::Attention, chunks }) => {
            format!(" (attention={chunks})")
        }
        None => String::new(),
    };
    let (list, decode): (Vec<OpChunk>, Vec<Device>) =
        map.decode_layer(config, 0).into_iter().unzip();
    (named(layer_list(config, None), &map.prefill.layers[0], ""), named(list, &decode, &cut))
}

/// The names that are `on`, neighbours as `first to last`.
fn runs(names: &[String], on: &[bool]) -> String {
    let listed = |wanted: bool| {
        let mut found: Vec<String> = Vec::new();
        let mut from = 0;
        while from < names.len() {
            let count = on[from..].iter().take_while(|found| **found == on[from]).count();
            let last = from + count - 1;
            if on[from] == wanted {
                let (first, last) = (&names[from], &names[last]);
                found.push(match count {
                    1 => first.clone(),
                    _ => format!("{first} to {last}"),
                });
            }
            from += count;
        }
        found
    };
    match (&listed(true)[..], &listed(false)[..]) {
        ([], _) => "nothing".to_owned(),
        (_, []) => "everything".to_owned(),
        ([_, _, ..], [off]) => format!("all but {off}"),
        (on, _) => on.join(", "),
    }
}

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
    for program in &plan.programs {
        let _ = writeln!(text, "{} program: {}", program.name(), lanes(plan, program));
    }
    text
}

fn layers(range: &LayerRange) -> String {
    let sides = [("cpu", &range.cpu), ("gpu", &range.gpu)];
    let sides = sides.iter().filter(|(_, ops)| !ops.is_empty());
    let sides: Vec<String> = sides.map(|(name, ops)| format!("{name} {}", ops.join(" "))).collect();
    format!("layers {}-{}: {}", range.first, range.last, sides.join("; "))
}

fn lanes(plan: &Plan, program: &Program) -> String {
    let lane = |lane: &program::ir::LaneProgram| {
        format!("{} {} instructions", plan.lane_name(lane.lane), lane.instructions.len())
    };
    program.lanes.iter().map(lane).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn what_runs_on_the_gpu_is_named_by_its_ends() {
        let names = ["q", "k", "v", "scores", "wv", "out"].map(str::to_owned);
        let of = |on: &str| runs(&names, &on.bytes().map(|on| on == b'1').collect::<Vec<_>>());
        assert_eq!(of("000000"), "nothing");
        assert_eq!(of("111111"), "everything");
        assert_eq!(of("011110"), "k to wv");
        assert_eq!(of("000100"), "scores");
        assert_eq!(of("111001"), "all but scores to wv");
        assert_eq!(of("010011"), "k, wv to out");
    }
}
