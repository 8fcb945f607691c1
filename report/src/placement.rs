//! Description of placements: device of each operation, contents of device memory, and the
//! candidates that were compared.

use std::fmt::Write;

use model::config::ModelConfig;
use model::ops::Op;
use planner::policy::Policy;
use planner::search::{Candidate, SearchResult, TrialStatus};
use program::map::{ChunkOrder, Chunking, ComputeDevice, DeviceMap, OpChunk, layer_list};
use program::plan::Plan;
use program::topology::MemoryId;

use super::layer_notes;
use super::plain_table::{plain_table, right_aligned};
use super::read_weights::ReadWeights;
use super::slow_tier_weights::SlowTierSummary;

/// Function that returns the numbers of threads of the cpu worker and of the device, for a map that
/// uses the device or one that does not.
pub type ThreadCounts<'a> = &'a dyn Fn(bool) -> (u16, u16);

/// Formats the best placements of every policy, the fastest first.
pub fn format_candidates(chosen: &SearchResult, threads: Option<ThreadCounts<'_>>) -> String {
    let plan = &chosen.plan;
    let mut table = plain_table();
    let mut header = vec!["policy", "gpu in prefill", "gpu in decode", "resident", "threads"];
    header.extend(["prefill s", "step ms", "tried ms", "group s", "tokens/s", ""]);
    if threads.is_none() {
        header.remove(4);
    }
    let columns = header.len();
    table.set_header(header);
    for (rank, candidate) in listed_candidates(chosen) {
        let (prefill, decode) = format_gpu_ops(&candidate.map, &plan.config);
        let mut row = vec![candidate.name.name().to_owned(), prefill, decode];
        row.push(format_device_contents(&candidate.map).unwrap_or_else(|| "-".to_owned()));
        if let Some(threads) = threads {
            row.push(match threads(candidate.map.uses_gpu()) {
                (cpu, 0) => cpu.to_string(),
                (cpu, gpu) => format!("{cpu} + {gpu}"),
            });
        }
        row.push(format!("{:.2}", candidate.prefill_ns() / 1e9));
        row.push(format!("{:.1}", candidate.estimate.step_ns / 1e6));
        let step = format!("{:.1}", candidate.step_ns() / 1e6);
        row.push(if candidate.trial == TrialStatus::Untried { "-".to_owned() } else { step });
        row.push(format!("{:.2}", candidate.total_ns(plan.shape.max_new) / 1e9));
        row.push(format!("{:.2}", chosen.tokens_per_s_of(candidate)));
        row.push(if rank == 0 { "chosen" } else { "" }.to_owned());
        table.add_row(row);
    }
    right_aligned(&mut table, columns - 6..columns - 1);
    let mut text = format!("{table}\n");
    if threads.is_some() && chosen.candidates.iter().any(|candidate| candidate.map.uses_gpu()) {
        text += "threads: of the CPU, and those of the device where a map has one\n";
    }
    if chosen.candidates.iter().any(|candidate| candidate.trial == TrialStatus::Rehearsed) {
        text += "tried: a step, from what a few layers took\n";
    }
    let measured = chosen.candidates.iter().filter_map(|candidate| match candidate.trial {
        TrialStatus::CompletedRuns(runs) => Some((candidate, runs)),
        TrialStatus::Untried | TrialStatus::Rehearsed => None,
    });
    for (candidate, runs) in measured {
        let runs = if runs == 1 { "its last run" } else { "its last runs" };
        let _ = writeln!(
            text,
            "{}: as {runs}, prefill x{:.2} and decode x{:.2} of what is simulated",
            candidate.name.name(),
            candidate.factors.prefill,
            candidate.factors.decode
        );
    }
    if chosen.candidate_count > 1 {
        let _ = writeln!(
            text,
            "the best of {} placements, those that a bound excludes among them",
            chosen.candidate_count
        );
    }
    text
}

/// Properties that `--policy ellm` selects.
pub const ELLM_NOTE: &str = "contiguous for each sequence, allocated once for the maximum shape";

/// Returns a plan's placement as pairs of a name and a description: policy, operations on the
/// device, contents of device memory, and weights that are read from drives.
pub fn placement_entries(plan: &Plan) -> Vec<(&'static str, String)> {
    let (map, config) = (&plan.map, &plan.config);
    let mut entries = vec![("policy", map.policy.clone())];
    entries.push(("layers", config.num_layers.to_string()));
    if map.uses_gpu() {
        let (prefill, decode) = format_gpu_ops(map, config);
        if prefill == decode {
            entries.push(("on the device", decode));
        } else {
            entries.extend([("prompts on the device", prefill), ("new tokens on it", decode)]);
        }
        let contents = format_device_contents(map).unwrap_or_else(|| "nothing".to_owned());
        entries.push(("in device memory", contents));
    } else {
        entries.push(("on the CPU", "everything".to_owned()));
        if map.policy == Policy::Ellm.name() {
            entries.push(("caches", ELLM_NOTE.to_owned()));
        }
    }
    if let Some(read) = ReadWeights::for_plan(plan) {
        entries.push(("read in each step", read.summary(config)));
    }
    entries
}

/// Returns all candidates of the chosen policy, and the best one of every other, with their ranks.
fn listed_candidates(chosen: &SearchResult) -> impl Iterator<Item = (usize, &Candidate)> {
    let all = &chosen.candidates;
    let is_best = |rank: usize| all[..rank].iter().all(|other| other.name != all[rank].name);
    all.iter()
        .enumerate()
        .filter(move |(rank, candidate)| candidate.name == chosen.name || is_best(*rank))
}

/// Formats the operations of a layer of the chosen map with the times of one batch. It is a layer
/// with streamed weights if there is one.
pub fn format_layer(chosen: &SearchResult) -> String {
    let (map, config) = (&chosen.plan.map, &chosen.plan.config);
    let layer = representative_layer(map, config);
    let devices = &map.decode.layers[layer];
    let list = layer_list(config, layer, map.chunking);
    let table = &chosen.table;
    let decompresses = table.ops.iter().any(|op| op.decompress_ms > 0.0);
    let mut output = plain_table();
    let mut header = vec!["op", "on", "operands", "cpu ms", "gpu ms", "h2d ms"];
    if decompresses {
        header.push("decompress ms");
    }
    let columns = header.len();
    output.set_header(header);
    let time = |ms: f64| if ms == 0.0 { "-".to_owned() } else { format!("{ms:.3}") };
    let compressed = table.compression.search_cases()[0];
    for ((entry, device), op) in list.iter().zip(devices).zip(&table.ops) {
        let on_gpu = *device == ComputeDevice::Gpu;
        let mut row = vec![op.name.clone(), if on_gpu { "gpu" } else { "cpu" }.to_owned()];
        row.push(operand_source(map, config, layer, *entry, on_gpu).to_owned());
        row.extend([op.cpu_ms, op.gpu_ms, op.transfer_ms(compressed)].map(time));
        if decompresses {
            row.push(time(op.decompress_ms));
        }
        output.add_row(row);
    }
    right_aligned(&mut output, 3..columns);
    let mut text = format!("{output}\n");
    if let Some(fused) = table.fused.as_ref().filter(|_| is_attention_on_one_device(&list, devices))
    {
        let saved_ms = if devices[fused.range.start] == ComputeDevice::Gpu {
            fused.gpu_saved_ms
        } else {
            fused.cpu_saved_ms
        };
        let _ = writeln!(text, "attention runs as one operation, which saves {saved_ms:.3} ms");
    }
    text += &layer_notes::layer_notes(&chosen.plan);
    if let Some(resident) = format_device_contents(map) {
        let _ = writeln!(text, "{} layers; in device memory: {resident}", config.num_layers);
    }
    if let Some(slow_tier) = SlowTierSummary::for_map(map) {
        let _ = writeln!(text, "in further memories of the host: {}", slow_tier.summary(map));
    }
    if let Some(read) = ReadWeights::for_plan(&chosen.plan) {
        let _ = writeln!(text, "read from NVMe in every step: {}", read.summary(config));
    }
    text
}

fn is_attention_on_one_device(list: &[OpChunk], devices: &[ComputeDevice]) -> bool {
    let mut attention = list.iter().zip(devices).filter(|(entry, _)| entry.op.is_attention());
    let Some((_, first)) = attention.next() else { return false };
    attention.all(|(_, device)| device == first)
}

/// Returns the first layer with attention whose weights are streamed, or the first one with
/// attention.
pub fn representative_layer(map: &DeviceMap, config: &ModelConfig) -> usize {
    let attends = |layer: &usize| !config.layers.kind(*layer).has_state();
    let attending = || (0..map.weights.len()).filter(attends);
    let streamed = attending().find(|layer| !is_resident(map, *layer));
    streamed.or_else(|| attending().next()).unwrap_or(0)
}

fn is_resident(map: &DeviceMap, layer: usize) -> bool {
    map.weights[layer].iter().all(|tier| *tier == MemoryId::VRAM)
}

/// Returns the memory from which an operation reads its weights or KV; empty if it only reads
/// activations.
fn operand_source(
    map: &DeviceMap,
    config: &ModelConfig,
    layer: usize,
    entry: OpChunk,
    on_gpu: bool,
) -> &'static str {
    let part = entry.chunk.map_or(0, |chunk| usize::from(chunk.index));
    let kv = |tiers: &[MemoryId]| tiers.get(part).or_else(|| tiers.first()).copied();
    let tier = match entry.op {
        Op::Scores => kv(&map.kv[layer].k),
        Op::Wv | Op::Compress if config.has_single_cache() => kv(&map.kv[layer].k),
        Op::Wv => kv(&map.kv[layer].v),
        op if op.has_matrix(config) => Some(map.weights_of(config, u16::try_from(layer).ok(), op)),
        _ => None,
    };
    let is_kv = matches!(entry.op, Op::Compress | Op::Scores | Op::Wv);
    match (tier, on_gpu, is_kv) {
        (None, ..) => "",
        (Some(MemoryId::VRAM), ..) => "device",
        (Some(MemoryId::STORAGES), true, false) => "NVMe by the host, once",
        (Some(MemoryId::STORAGES), ..) => "NVMe, once",
        (Some(tier), true, false) if tier.slow_tier_index().is_some() => "slow tier, once",
        (Some(tier), ..) if tier.slow_tier_index().is_some() => "slow tier",
        (Some(_), true, true) => "host, each batch",
        (Some(_), true, false) => "host, once",
        (Some(_), false, _) => "host",
    }
}

/// Returns the interval of a streamed layer's entries that the GPU runs; `None` if they are no
/// interval.
pub fn gpu_interval(chosen: &SearchResult) -> Option<(usize, usize)> {
    let count = chosen.table.ops.len();
    match chosen.placement.policy {
        Policy::CpuOnly | Policy::Ellm => Some((0, 0)),
        Policy::GpuOnly | Policy::Resident => Some((0, count)),
        Policy::TwoSplit { split, .. } => Some((split.start, split.end)),
        Policy::OneSplit { start, .. } => Some((start, count)),
        Policy::Lia { .. } | Policy::Flexgen(_) => None,
    }
}

/// Formats the contents of device memory: `11 layers, KV of 11, head`; `None` if it has none.
pub fn format_device_contents(map: &DeviceMap) -> Option<String> {
    let layers = (0..map.weights.len()).filter(|layer| is_resident(map, *layer)).count();
    let kv = map.kv.iter().filter(|kv| kv.k.iter().chain(&kv.v).all(|m| *m == MemoryId::VRAM));
    let kv = kv.count();
    let mut parts = Vec::new();
    if layers > 0 {
        parts.push(format!("{layers} layer{}", if layers == 1 { "" } else { "s" }));
    }
    if kv > 0 {
        parts.push(format!("KV of {kv}"));
    }
    let partial_layers = map.kv.iter().filter(|kv| kv.device_batches > 0).count();
    if partial_layers > 0 {
        let batches = map.kv.iter().map(|kv| kv.device_batches).max().unwrap_or(0);
        let s = if batches == 1 { "" } else { "es" };
        parts.push(format!("KV of {partial_layers} for {batches} batch{s}"));
    }
    if map.outer_weights == MemoryId::VRAM {
        parts.push("head".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Formats the operations of a layer that the GPU runs in prefill and in decode: `nothing`, `k to
/// wv`, `all but scores to wv`. It is a layer with streamed weights if there is one.
pub fn format_gpu_ops(map: &DeviceMap, config: &ModelConfig) -> (String, String) {
    let format_ops = |list: Vec<OpChunk>, devices: &[ComputeDevice], cut: &str| {
        let on: Vec<bool> = devices.iter().map(|device| *device == ComputeDevice::Gpu).collect();
        let names: Vec<String> = list.iter().map(|entry| entry.name(config)).collect();
        let text = format_ranges(&names, &on);
        let is_cut = on.iter().zip(&list).any(|(on, entry)| *on && entry.chunk.is_some());
        if is_cut && text != "everything" { format!("{text}{cut}") } else { text }
    };
    let cut = match map.chunking {
        Some(Chunking { order: ChunkOrder::Scores, chunks }) => format!(" (scores={chunks})"),
        Some(Chunking { order: ChunkOrder::Attention, chunks }) => {
            format!(" (attention={chunks})")
        }
        Some(Chunking { order: ChunkOrder::Linears, chunks }) => format!(" (linears={chunks})"),
        None => String::new(),
    };
    let layer = representative_layer(map, config);
    let (list, decode): (Vec<OpChunk>, Vec<ComputeDevice>) =
        map.decode_layer(config, layer).into_iter().unzip();
    let whole = layer_list(config, layer, None);
    (format_ops(whole, &map.prefill.layers[layer], ""), format_ops(list, &decode, &cut))
}

/// Lists the names that are `on`, with adjacent ones as `first to last`.
fn format_ranges(names: &[String], on: &[bool]) -> String {
    let ranges_of_side = |side: bool| {
        let mut runs: Vec<String> = Vec::new();
        let mut from = 0;
        while from < names.len() {
            let count = on[from..].iter().take_while(|other| **other == on[from]).count();
            let last = from + count - 1;
            if on[from] == side {
                let (first, last) = (&names[from], &names[last]);
                runs.push(match count {
                    1 => first.clone(),
                    _ => format!("{first} to {last}"),
                });
            }
            from += count;
        }
        runs
    };
    match (&ranges_of_side(true)[..], &ranges_of_side(false)[..]) {
        ([], _) => "nothing".to_owned(),
        (_, []) => "everything".to_owned(),
        ([_, _, ..], [off]) => format!("all but {off}"),
        (on, _) => on.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::format_ranges;

    #[test]
    fn what_runs_on_the_gpu_is_named_by_its_ends() {
        let names = ["q", "k", "v", "scores", "wv", "out"].map(str::to_owned);
        let ranges =
            |on: &str| format_ranges(&names, &on.bytes().map(|on| on == b'1').collect::<Vec<_>>());
        assert_eq!(ranges("000000"), "nothing");
        assert_eq!(ranges("111111"), "everything");
        assert_eq!(ranges("011110"), "k to wv");
        assert_eq!(ranges("000100"), "scores");
        assert_eq!(ranges("111001"), "all but scores to wv");
        assert_eq!(ranges("010011"), "k, wv to out");
    }
}
