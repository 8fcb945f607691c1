//! Description of a layer and its best map: device of each operation, bounds, and the runner-up.

use std::fmt::Write;

use planner::layer::closed_form::LayerCandidate;
use planner::layer::search::{LayerSearchResult, RankedCandidate};
use planner::layer::table::OperationTable;
use planner::layer::time::Ps;

use super::plain_table::{plain_table, right_aligned};

/// Formats a layer as a table, the terms of the maximum, and the runner-up.
pub fn format_layer(table: &OperationTable, found: &LayerSearchResult) -> String {
    let best = &found.best;
    let mut text = format!("{}\n", ops_table(table, &best.candidate));
    let _ = writeln!(text, "{}", format_terms(best));
    let batches = if table.batches == 1 {
        "1 batch".to_owned()
    } else {
        format!("{} batches", table.batches)
    };
    let _ = writeln!(
        text,
        "one layer, {batches}: {} ms ({} costs); the best of {} candidates{}",
        ms(best.latency),
        found.cost,
        found.candidates,
        if found.exhaustive { "" } else { ", those that a bound excludes among them" },
    );
    match &found.runner_up {
        Some(second) => {
            let more = second.latency.ms() / best.latency.ms().max(f64::MIN_POSITIVE) - 1.0;
            let _ = writeln!(
                text,
                "runner-up: {}, {} ms ({:+.1}%)",
                candidate_name(table, &second.candidate),
                ms(second.latency),
                100.0 * more
            );
        }
        None => text.push_str("there is no other map\n"),
    }
    text
}

/// Returns the name of a candidate: `gpu k to wv, compressed, from NVMe: fc0`.
pub(crate) fn candidate_name(table: &OperationTable, candidate: &LayerCandidate) -> String {
    let (start, end) = candidate.interval;
    let mut text = match end - start {
        0 => "cpu alone".to_owned(),
        count if count == table.ops.len() => "gpu alone".to_owned(),
        1 => format!("gpu {}", table.ops[start].name),
        _ => format!("gpu {} to {}", table.ops[start].name, table.ops[end - 1].name),
    };
    if candidate.compressed {
        text += ", compressed";
    }
    if !candidate.nvme.is_empty() {
        let names: Vec<&str> =
            candidate.nvme.iter().map(|op| table.ops[*op].name.as_str()).collect();
        text += &format!(", from NVMe: {}", names.join(" "));
    }
    text
}

fn ms(time: Ps) -> String {
    format!("{:.3}", time.ms())
}

/// Returns a table with a row per operation, which shows its device in the candidate. Times are
/// those of one batch.
fn ops_table(table: &OperationTable, candidate: &LayerCandidate) -> comfy_table::Table {
    let mut output = plain_table();
    let from_nvme = table.ops.iter().any(|op| op.s2d_ms > 0.0);
    let compressed = candidate.compressed;
    let mut header = vec!["op", "on", "from", "cpu ms", "gpu ms", "h2d ms"];
    if compressed {
        header.push("decompress ms");
    }
    if from_nvme {
        header.push("nvme ms");
    }
    let columns = header.len();
    output.set_header(header);
    let time = |ms: f64| if ms == 0.0 { "-".to_owned() } else { format!("{ms:.3}") };
    for (index, op) in table.ops.iter().enumerate() {
        let gpu = candidate.on_gpu(index);
        let transfer = op.transfer_ms(compressed);
        let tier = match (gpu, candidate.nvme.contains(&index)) {
            (true, true) => "nvme",
            (true, false) if transfer > 0.0 && op.kv => "host, each batch",
            (true, false) if transfer > 0.0 => "host, once",
            _ => "",
        };
        let mut row = vec![
            op.name.clone(),
            if gpu { "gpu" } else { "cpu" }.to_owned(),
            tier.to_owned(),
            time(op.cpu_ms),
            time(op.gpu_ms),
            time(transfer),
        ];
        if compressed {
            row.push(time(op.decompress_ms));
        }
        if from_nvme {
            row.push(time(op.s2d_ms));
        }
        output.add_row(row);
    }
    right_aligned(&mut output, 3..columns);
    output
}

/// Formats the terms whose maximum is the latency in the closed form.
fn format_terms(best: &RankedCandidate) -> String {
    let terms = &best.terms;
    let all = [
        ("cpu", Some(terms.cpu)),
        ("h2d", Some(terms.h2d)),
        ("decompress", terms.dc),
        ("nvme", terms.s2d),
    ];
    let used: Vec<String> = all
        .iter()
        .filter_map(|(name, time)| time.map(|time| format!("{name} {}", ms(time))))
        .collect();
    format!(
        "terms of the closed form, all batches: {} ms; the largest is {}, the spread {}",
        used.join(", "),
        ms(terms.latency()),
        ms(terms.imbalance())
    )
}
