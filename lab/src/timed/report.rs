//! Report of a timed run: an ordinary report, and the steady layer or step compared with the
//! simulated one.

use std::fmt::Write;

use planner::layer::closed_form::LayerCandidate;
use planner::layer::search::LayerSearchResult;
use planner::layer::table::OperationTable;
use planner::timed::{SteadyLayer, SteadyStep};
use serde::Serialize;

use report::file::Report;
use report::plain_table::{plain_table, right_aligned};

/// Output of `--report` and `--json`: an ordinary report with one more object.
#[derive(Debug, Serialize)]
pub(super) struct TimedReport {
    #[serde(flatten)]
    pub(super) run: Report,
    pub(super) timed: TimedDetails,
}

/// Placement, and its steady layer or step.
#[derive(Debug, Serialize)]
pub(super) struct TimedDetails {
    #[serde(flatten)]
    pub(super) origin: TimesOrigin,
    pub(super) batches: u16,
    pub(super) layers: usize,
    /// Factor by which time passed more slowly in the workers. The layer or step is given at full
    /// speed; the rest of the report has times of the workers' clock.
    pub(super) slow_motion: u32,
    #[serde(flatten)]
    pub(super) pair: SteadyComparison,
}

/// Measured and simulated times.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SteadyComparison {
    /// `null` if there are too few layers or steps.
    measured: Option<SteadyFigures>,
    simulated: Option<SteadyFigures>,
    /// Measured time of the steady layer or step relative to the simulated one, minus 1.
    error: Option<f64>,
}

/// Source of the times.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum TimesOrigin {
    Table(TableDetails),
    Machine(MachineDetails),
}

/// A table, whose steady layer is reported.
#[derive(Debug, Serialize)]
pub(super) struct TableDetails {
    /// Rows of the table that the GPU ran, as a half-open range.
    gpu_interval: [usize; 2],
    gpu_ops: Vec<String>,
    compression: bool,
    /// Time of a layer according to the search, and the cost model that it used.
    planned_layer_ms: f64,
    planned_by: &'static str,
    /// Decompression of the cache is part of the device's operation here.
    kv_decompressed_inside: bool,
}

/// A model on a described machine, whose steady step is reported.
#[derive(Debug, Serialize)]
pub(super) struct MachineDetails {
    pub(super) machine: String,
    pub(super) policy: &'static str,
    /// Name of the compression, as in `--compress`.
    pub(super) compress: &'static str,
    /// Number of sequences per batch that the times are for; the programs that ran had one.
    pub(super) batch_size: u16,
    /// Operations of a layer that the GPU runs in decode, in words.
    pub(super) gpu: String,
    /// Number of drafted tokens that a step verifies for each sequence; drafting takes no time.
    pub(super) drafts: u32,
    /// Time of a steady step according to `plan`.
    pub(super) planned_step_ms: f64,
}

/// A steady layer or step of all batches.
#[derive(Debug, Clone, Serialize)]
struct SteadyFigures {
    #[serde(flatten)]
    time: SteadyTime,
    shortest_ms: f64,
    longest_ms: f64,
    steps: usize,
    layers_of_each_step: usize,
    overlap: Option<f64>,
    time_outside: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
enum SteadyTime {
    #[serde(rename = "layer_ms")]
    Layer(f64),
    #[serde(rename = "step_ms")]
    Step(f64),
}

impl SteadyFigures {
    const fn ms(&self) -> f64 {
        match self.time {
            SteadyTime::Layer(ms) | SteadyTime::Step(ms) => ms,
        }
    }

    fn layer(steady: &SteadyLayer) -> SteadyFigures {
        SteadyFigures {
            time: SteadyTime::Layer(steady.layer_ms),
            shortest_ms: steady.range_ms.0,
            longest_ms: steady.range_ms.1,
            steps: steady.steps,
            layers_of_each_step: steady.layers,
            overlap: steady.overlap,
            time_outside: steady.time_outside,
        }
    }

    const fn step(steady: &SteadyStep, layers: usize) -> SteadyFigures {
        SteadyFigures {
            time: SteadyTime::Step(steady.step_ms),
            shortest_ms: steady.range_ms.0,
            longest_ms: steady.range_ms.1,
            steps: steady.steps,
            layers_of_each_step: layers,
            overlap: steady.overlap,
            time_outside: steady.time_outside,
        }
    }
}

impl SteadyComparison {
    pub(super) fn from_layers(
        measured: Option<&SteadyLayer>,
        simulated: Option<&SteadyLayer>,
    ) -> SteadyComparison {
        SteadyComparison::new(
            measured.map(SteadyFigures::layer),
            simulated.map(SteadyFigures::layer),
        )
    }

    /// Compares steps of `layers` layers.
    pub(super) fn from_steps(
        measured: Option<&SteadyStep>,
        simulated: Option<&SteadyStep>,
        layers: usize,
    ) -> SteadyComparison {
        let step =
            |steady: Option<&SteadyStep>| steady.map(|step| SteadyFigures::step(step, layers));
        SteadyComparison::new(step(measured), step(simulated))
    }

    /// Returns true if there are enough layers and steps.
    pub(super) const fn has_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    fn new(measured: Option<SteadyFigures>, simulated: Option<SteadyFigures>) -> SteadyComparison {
        let both = measured.as_ref().zip(simulated.as_ref());
        let error = both
            .filter(|(_, simulated)| simulated.ms() > 0.0)
            .map(|(measured, simulated)| measured.ms() / simulated.ms() - 1.0);
        SteadyComparison { measured, simulated, error }
    }
}

impl TableDetails {
    pub(super) fn new(table: &OperationTable, found: &LayerSearchResult) -> TableDetails {
        let LayerCandidate { interval: (start, end), compressed, .. } = found.best.candidate;
        let gpu = &table.ops[start..end];
        TableDetails {
            gpu_interval: [start, end],
            gpu_ops: gpu.iter().map(|op| op.name.clone()).collect(),
            compression: compressed,
            planned_layer_ms: found.best.latency.ms(),
            planned_by: found.cost,
            kv_decompressed_inside: compressed
                && gpu.iter().any(|op| op.kv && op.decompress_ms > 0.0),
        }
    }

    fn header(&self, timed: &TimedDetails) -> String {
        let placed = match self.gpu_ops.as_slice() {
            [] => "cpu alone".to_owned(),
            [only] => format!("gpu {only}"),
            [first, .., last] => format!("gpu {first} to {last}"),
        };
        format!(
            "table · {} · {} · {placed}{} · emulated:timed\n\
             planned: {:.3} ms a layer ({} costs)\n",
            pluralize(timed.batches.into(), "batch", "batches"),
            pluralize(timed.layers, "layer", "layers"),
            if self.compression { ", compressed" } else { "" },
            self.planned_layer_ms,
            self.planned_by
        )
    }
}

impl MachineDetails {
    fn header(&self, timed: &TimedDetails, model: &str) -> String {
        format!(
            "{model} · {} · {}x{} · {} · {}, gpu {}{} · emulated:timed\n\
             planned: {:.3} ms a step\n",
            self.machine,
            timed.batches,
            self.batch_size,
            pluralize(timed.layers, "layer", "layers"),
            self.policy,
            self.gpu,
            if self.compress == "none" { String::new() } else { format!(", {}", self.compress) },
            self.planned_step_ms
        )
    }
}

/// Returns the report as text.
pub(super) fn render(report: &TimedReport) -> String {
    let timed = &report.timed;
    let (mut text, source_name) = match &timed.origin {
        TimesOrigin::Table(table) => (table.header(timed), "table"),
        TimesOrigin::Machine(machine) => (machine.header(timed, &report.run.model), "description"),
    };
    text += &timed.pair.render();
    if let Some(replayed) = &report.run.replayed {
        let _ = writeln!(
            text,
            "all of decode: simulated {:.3} s, measured {:.3} s ({:+.2}%)",
            replayed.simulated_s,
            replayed.measured_s,
            100.0 * (replayed.measured_s / replayed.simulated_s - 1.0)
        );
    }
    if matches!(&timed.origin, TimesOrigin::Table(table) if table.kv_decompressed_inside) {
        text.push_str(
            "The device reads a 4-bit cache without decompressing it first: the table's time to \
             decompress it is part of scores and wv.\n",
        );
    }
    if timed.slow_motion > 1 {
        let _ = writeln!(
            text,
            "Time passed {} times more slowly in the workers, so that the cost of communication \
             between processes is negligible.",
            timed.slow_motion
        );
    }
    let _ = writeln!(
        text,
        "No data was computed or copied: each instruction waited for its time in the {source_name}."
    );
    text
}

fn pluralize(count: usize, singular: &str, plural: &str) -> String {
    format!("{count} {}", if count == 1 { singular } else { plural })
}

impl SteadyComparison {
    fn render(&self) -> String {
        let (Some(measured), Some(simulated)) = (&self.measured, &self.simulated) else {
            return "Too few layers or steps for a steady state: try --layers 8 --gen-len 32.\n"
                .to_owned();
        };
        let steps = pluralize(measured.steps, "step", "steps");
        let (name, what) = match measured.time {
            SteadyTime::Layer(_) => {
                let layers = pluralize(measured.layers_of_each_step, "layer", "layers");
                ("layer", format!("{layers} in the middle of each of {steps}"))
            }
            SteadyTime::Step(_) => ("step", format!("{steps} after the first two")),
        };
        format!(
            "{}\nSteady {name}: {what}, {:.3} to {:.3} ms; the simulation uses the same programs \
             and times.\n",
            steady_table(name, measured, simulated, self.error),
            measured.shortest_ms,
            measured.longest_ms
        )
    }
}

fn steady_table(
    name: &str,
    measured: &SteadyFigures,
    simulated: &SteadyFigures,
    error: Option<f64>,
) -> comfy_table::Table {
    let mut table = plain_table();
    table.set_header([&format!("steady {name}"), "measured", "simulated", "difference"]);
    let percent = |share: f64| format!("{:.2}%", 100.0 * share);
    table.add_row([
        "time".to_owned(),
        format!("{:.3} ms", measured.ms()),
        format!("{:.3} ms", simulated.ms()),
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
