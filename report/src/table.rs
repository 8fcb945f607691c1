//! Table that a run prints at its end.

use std::fmt::Write;

use comfy_table::Table;

use super::file::{DraftReport, Report};
use super::plain_table::{plain_table, right_aligned};
use super::routing;
use super::select;
use super::storages;

/// Formats latency, throughput and memory; with `with_lanes` also the busy time of each lane and
/// the simulation of the run by its own costs.
pub fn render(report: &Report, with_lanes: bool) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} · {} · {}x{} · {} · {}",
        report.model,
        report.dtype,
        report.batches,
        report.batch_size,
        report.policy,
        if report.device == "none" { "no device" } else { &report.device }
    );
    if report.weight_bytes_by_format.len() > 1 || report.kv_format != report.dtype {
        let _ = writeln!(text, "{}", formats(report));
    }
    let _ = writeln!(text, "{}", phases(report));
    if report.shared_prompt_tokens > 0 {
        let (shared, computed) = (report.shared_prompt_tokens, report.prefill_tokens);
        let _ = writeln!(
            text,
            "shared prefixes: {shared} of {} prompt tokens were computed with another prompt",
            shared + computed
        );
    }
    if with_lanes {
        let _ = writeln!(text, "{}", lanes(report));
    }
    if !report.storages.is_empty() {
        let _ = write!(text, "{}", storages::format_storages(&report.storages));
    }
    text += &report.kv_select.as_ref().map(select::format_select).unwrap_or_default();
    text += &report.routing.as_ref().map(routing::format_routing).unwrap_or_default();
    if let Some(steps) = &report.decode_step {
        let [median, p95, max] = [steps.median_s, steps.p95_s, steps.max_s].map(duration);
        let _ = writeln!(text, "a decode step: median {median}, 95% within {p95}, longest {max}");
    }
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    if let Some(overlap) = report.overlap.filter(|_| with_lanes) {
        let _ = writeln!(text, "h2d overlapped with CPU compute {}", percent(overlap));
    }
    text += &lost_spans(report.lost_spans);
    if let Some(outside) = report.time_outside.filter(|_| with_lanes) {
        let _ = writeln!(text, "time outside work {} of decode", percent(outside));
    }
    let compare = |predicted: f64, measured: f64| {
        let error = 100.0 * (predicted / measured - 1.0);
        format!("{}, measured {} ({error:+.1}%)", duration(predicted), duration(measured))
    };
    if let Some(predicted) = &report.predicted {
        let (actual_steps, max_steps) = (report.decode_steps, predicted.decode_steps);
        let steps_note = match actual_steps == max_steps {
            true => String::new(),
            false => format!(" of the {actual_steps} of {max_steps} steps that answers took"),
        };
        let decode_s = predicted.decode_s * actual_steps as f64 / max_steps.max(1) as f64;
        let groups = match (predicted.groups, report.groups) {
            (predicted, actual) if predicted == actual => String::new(),
            (predicted, actual) => format!(" in {predicted} groups (there were {actual})"),
        };
        let _ = writeln!(
            text,
            "predicted before the start: prefill{groups} {}; decode{steps_note} {}",
            compare(predicted.prefill_s, report.prefill_s),
            compare(decode_s, report.decode_s)
        );
    }
    if let Some(replayed) = report.replayed.as_ref().filter(|_| with_lanes) {
        let found = compare(replayed.simulated_s, replayed.measured_s);
        let _ =
            writeln!(text, "second half of decode, simulated from the first half's costs: {found}");
    }
    let _ = writeln!(text, "{}{}", format_drafts(report), memory(report));
    if report.device.starts_with("emulated") {
        let _ = writeln!(
            text,
            "The device is emulated on this machine's CPU: these times are not a GPU's."
        );
    }
    text
}

/// Formats the share of accepted drafts; empty if no tokens were drafted.
fn format_drafts(report: &Report) -> String {
    let Some(DraftReport { verified, accepted }) = report.drafts else { return String::new() };
    let share = 100.0 * accepted as f64 / verified.max(1) as f64;
    format!("drafted tokens: {accepted} of {verified} accepted ({share:.0}%)\n")
}

/// Returns a warning about figures that an incomplete trace affects.
fn lost_spans(count: u64) -> String {
    if count == 0 {
        return String::new();
    }
    format!(
        "the trace misses {count} instructions, so lanes were busier than it says, and overlap and \
         time outside work are not known\n"
    )
}

/// Formats peak memory: `peak memory 0.12 GiB (coordinator 0.01 GiB, cpu worker 0.11 GiB)`.
fn memory(report: &Report) -> String {
    let gib = |bytes: &u64| format!("{:.2} GiB", *bytes as f64 / (1u64 << 30) as f64);
    let format_process = |(name, bytes): (&String, &u64)| format!("{name} {}", gib(bytes));
    let processes = report.peak_pss_bytes.iter().filter(|(name, _)| *name != "sum");
    let processes: Vec<String> = processes.map(format_process).collect();
    let sum = report.peak_pss_bytes.get("sum").map_or_else(|| "-".to_owned(), gib);
    format!("peak memory {sum} ({})", processes.join(", "))
}

/// Describes the formats of weights and KV:
/// `weights 4-bit in groups of 64 0.06 GiB, bf16 0.05 GiB; KV 4-bit`.
fn formats(report: &Report) -> String {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let weights = report.weight_bytes_by_format.iter();
    let weights: Vec<String> =
        weights.map(|(format, bytes)| format!("{format} {:.2} GiB", gib(*bytes))).collect();
    format!("weights {}; KV {}", weights.join(", "), report.kv_format)
}

/// Formats a duration: `12.345 s`, or `0.123 ms` if it is below a second.
fn duration(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.3} ms", 1e3 * seconds) } else { format!("{seconds:.3} s") }
}

fn phases(report: &Report) -> Table {
    let mut table = plain_table();
    table.set_header(["", "latency", "tokens", "tokens/s"]);
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    let row = |name: &str, seconds: f64, tokens: u64, per_s| {
        [name.to_owned(), duration(seconds), tokens.to_string(), rate(per_s)]
    };
    let (prefill, decode) = (report.prefill_tokens, report.decode_tokens);
    table.add_row(row("prefill", report.prefill_s, prefill, report.prefill_tokens_per_s));
    table.add_row(row("decode", report.decode_s, decode, report.decode_tokens_per_s));
    let total = report.prefill_s + report.decode_s;
    table.add_row(row("total", total, report.generated_tokens, report.total_tokens_per_s));
    right_aligned(&mut table, 1..4);
    table
}

fn lanes(report: &Report) -> Table {
    let mut table = plain_table();
    table.set_header(["lane", "busy", "of the run"]);
    let total = (report.prefill_s + report.decode_s).max(f64::MIN_POSITIVE);
    for (name, lane) in &report.lanes {
        table.add_row([
            name.clone(),
            duration(lane.busy_s),
            format!("{:.1}%", 100.0 * lane.busy_s / total),
        ]);
    }
    right_aligned(&mut table, 1..3);
    table
}
