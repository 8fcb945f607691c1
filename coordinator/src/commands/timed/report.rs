//! What a timed run tells: the ordinary report, and the steady layer beside the simulated one.

use std::fmt::Write;

use planner::layer::closed_form::Candidate;
use planner::layer::search::SearchResult;
use planner::layer::table::Table;
use planner::timed::SteadyLayer;
use serde::Serialize;

use crate::report::file::Report;
use crate::report::table::{plain_table, right_aligned};

/// `--report` and `--json`: an ordinary report with one more object.
#[derive(Debug, Serialize)]
pub(super) struct TimedReport {
    #[serde(flatten)]
    pub(super) run: Report,
    pub(super) timed: TimedPart,
}

/// The placement, and its steady layer.
#[derive(Debug, Serialize)]
pub(super) struct TimedPart {
    /// Rows of the table that the GPU ran, half-open.
    gpu_interval: [usize; 2],
    gpu_ops: Vec<String>,
    compression: bool,
    batches: u32,
    layers: usize,
    /// What the search said of this placement, and by which costs.
    planned_layer_ms: f64,
    planned_by: &'static str,
    /// `null` with too few layers or steps.
    measured: Option<Layer>,
    simulated: Option<Layer>,
    /// Measured time of the steady layer over the simulated one, minus 1.
    error: Option<f64>,
    /// The cache's decompression is part of the device's operation here.
    kv_decompressed_inside: bool,
}

/// A steady layer, all batches.
#[derive(Debug, Serialize)]
struct Layer {
    layer_ms: f64,
    shortest_ms: f64,
    longest_ms: f64,
    steps: usize,
    layers_of_each_step: usize,
    overlap: Option<f64>,
    time_outside: f64,
}

impl Layer {
    fn of(steady: &SteadyLayer) -> Layer {
        Layer {
            layer_ms: steady.layer_ms,
            shortest_ms: steady.range_ms.0,
            longest_ms: steady.range_ms.1,
            steps: steady.steps,
            layers_of_each_step: steady.layers,
            overlap: steady.overlap,
            time_outside: steady.time_outside,
        }
    }
}

impl TimedPart {
    pub(super) fn new(
        table: &Table,
        found: &SearchResult,
        layers: usize,
        measured: Option<SteadyLayer>,
        simulated: Option<&SteadyLayer>,
    ) -> TimedPart {
        let Candidate { interval: (start, end), compressed, .. } = found.best.candidate;
        let gpu = &table.ops[start..end];
        TimedPart {
            gpu_interval: [start, end],
            gpu_ops: gpu.iter().map(|op| op.name.clone()).collect(),
            compression: compressed,
            batches: table.batches,
            layers,
            planned_layer_ms: found.best.latency.ms(),
            planned_by: found.cost,
            error: measured
                .as_ref()
                .zip(simulated)
                .filter(|(_, simulated)| simulated.layer_ms > 0.0)
                .map(|(measured, simulated)| measured.layer_ms / simulated.layer_ms - 1.0),
            measured: measured.as_ref().map(Layer::of),
            simulated: simulated.map(Layer::of),
            kv_decompressed_inside: compressed
                && gpu.iter().any(|op| op.kv && op.decompress_ms > 0.0),
        }
    }
}

/// For people.
pub(super) fn render(report: &TimedReport) -> String {
    let timed = &report.timed;
    let placed = match timed.gpu_ops.as_slice() {
        [] => "cpu alone".to_owned(),
        [only] => format!("gpu {only}"),
        [first, .., last] => format!("gpu {first} to {last}"),
    };
    let many = |count: usize, one: &str, more: &str| {
        format!("{count} {}", if count == 1 { one } else { more })
    };
    let mut text = format!(
        "table · {} · {} · {placed}{} · emulated:timed\n",
        many(timed.batches as usize, "batch", "batches"),
        many(timed.layers, "layer", "layers"),
        if timed.compression { ", compressed" } else { "" },
    );
    let _ = writeln!(
        text,
        "planned: {:.3} ms a layer ({} costs)",
        timed.planned_layer_ms, timed.planned_by
    );
    match (&timed.measured, &timed.simulated) {
        (Some(measured), Some(simulated)) => {
            let _ = writeln!(text, "{}", steady_table(measured, simulated, timed.error));
            let _ = writeln!(
                text,
                "The steady layer: {} in the middle of each of {}, {:.3} to {:.3} ms; simulated \
                 are the same programs and times.",
                many(measured.layers_of_each_step, "layer", "layers"),
                many(measured.steps, "step", "steps"),
                measured.shortest_ms,
                measured.longest_ms
            );
        }
        _ => text
            .push_str("Too few layers or steps for a steady state: try --layers 8 --gen-len 32.\n"),
    }
    if let Some(replayed) = &report.run.replayed {
        let _ = writeln!(
            text,
            "all of decode: simulated {:.3} s, measured {:.3} s ({:+.2}%)",
            replayed.simulated_s,
            replayed.measured_s,
            100.0 * (replayed.measured_s / replayed.simulated_s - 1.0)
        );
    }
    if timed.kv_decompressed_inside {
        text.push_str(
            "The device reads a 4-bit cache as it is: the table's time to decompress it is part of \
         scores and wv.\n",
        );
    }
    text.push_str(
        "Nothing was computed or moved: these are the table's times, kept by this machine's \
     clock.\n",
    );
    text
}

fn steady_table(measured: &Layer, simulated: &Layer, error: Option<f64>) -> comfy_table::Table {
    let mut table = plain_table();
    table.set_header(["steady layer", "measured", "simulated", "difference"]);
    let percent = |share: f64| format!("{:.2}%", 100.0 * share);
    table.add_row([
        "time".to_owned(),
        format!("{:.3} ms", measured.layer_ms),
        format!("{:.3} ms", simulated.layer_ms),
        error.map_or_else(|| "-".to_owned(), |error| format!("{:+.2}%", 100.0 * error)),
    ]);
    let points = |a: f64, b: f64| format!("{:+.2} points", 100.0 * (a - b));
    if let (Some(a), Some(b)) = (measured.overlap, simulated.overlap) {
        let name = "h2d overlapped with CPU compute".to_owned();
        table.add_row([name, percent(a), percent(b), points(a, b)]);
    }
    let (a, b) = (measured.time_outside, simulated.time_outside);
    table.add_row(["time outside work".to_owned(), percent(a), percent(b), points(a, b)]);
    right_aligned(&mut table, 1..4);
    table
}
