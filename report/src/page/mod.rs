//! A report as a page for a browser: a single file that loads nothing from any host.
//!
//! Figures are read from the report's JSON by pointers, which the page contains too, so that a test
//! can compare both.

mod figures;
mod pictures;
mod run;

use minijinja::{Environment, context};
use program::map::ComputeDevice;
use serde::Serialize;

use super::file::{LayerRange, Report};
use figures::{headline, sections};
use pictures::{LayerStrip, Timeline, curve, strip, timelines};
use run::PageRun;

/// Template of the page.
const TEMPLATE: &str = include_str!("page.html");

/// Reason for which the page could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("the report cannot be read as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the page cannot be written: {0}")]
    Template(#[from] minijinja::Error),
}

/// Summary of a run at the top of the page.
#[derive(Debug, Serialize)]
struct RunHeader {
    letter: &'static str,
    model: String,
    /// Number format, shape, lengths, policy and device, and the threads of each worker.
    details: Vec<String>,
    note: Option<String>,
}

/// Placement of a run.
#[derive(Debug, Serialize)]
struct PlanView {
    letter: &'static str,
    policy: String,
    strips: Vec<LayerStrip>,
    ranges: Vec<PlanRow>,
    /// Device of the head and of sampling in decode.
    head: &'static str,
}

#[derive(Debug, Clone, Serialize)]
struct PlanRow {
    phase: &'static str,
    layers: String,
    cpu: Vec<String>,
    gpu: Vec<String>,
}

/// Renders the page of a report, optionally in comparison with a second one.
///
/// # Errors
/// A report that cannot be converted to JSON, which does not happen to one that was read from a
/// file.
pub fn render(report: &Report, other: Option<&Report>) -> Result<String, PageError> {
    let run = |(letter, report)| -> Result<PageRun<'_>, PageError> {
        Ok(PageRun { letter, report, value: serde_json::to_value(report)? })
    };
    let runs = std::iter::once(report).chain(other);
    let runs = ["a", "b"].into_iter().zip(runs).map(run).collect::<Result<Vec<_>, _>>()?;
    let heads: Vec<RunHeader> = runs.iter().map(run_header).collect();
    let (figures, sections) = (headline(&runs), sections(&runs));
    let plans: Vec<PlanView> = runs.iter().map(plan_view).collect();
    let timelines: Vec<Timeline> = runs.iter().flat_map(timelines).collect();
    let curve = curve(&runs);
    let mut environment = Environment::new();
    environment.add_template("page.html", TEMPLATE)?;
    let page = environment.get_template("page.html")?;
    let version = &report.version;
    Ok(page.render(context! { heads, figures, sections, plans, timelines, curve, version })?)
}

fn run_header(run: &PageRun<'_>) -> RunHeader {
    let report = run.report;
    let device = match report.device.as_str() {
        "none" => "no device".to_owned(),
        device => device.to_owned(),
    };
    let mut details = vec![
        report.dtype.clone(),
        format!("{}x{} sequences", report.batches, report.batch_size),
        format!("prompts of {} tokens, {} new", report.prompt_len, report.gen_len),
        report.policy.clone(),
        device,
    ];
    details.extend(report.threads.iter().map(|(worker, threads)| {
        let kernels = report.kernel_variants.get(worker).map_or("", String::as_str);
        let plural = if *threads == 1 { "" } else { "s" };
        format!("{worker}: {threads} thread{plural}, {kernels}")
    }));
    RunHeader {
        letter: run.letter,
        model: report.model.clone(),
        details,
        note: report.note.clone(),
    }
}

fn plan_view(run: &PageRun<'_>) -> PlanView {
    let map = &run.report.device_map;
    let rows = |phase: &'static str, ranges: &[LayerRange]| -> Vec<PlanRow> {
        let row = |range: &LayerRange| PlanRow {
            phase,
            layers: match range.first == range.last {
                true => range.first.to_string(),
                false => format!("{} to {}", range.first, range.last),
            },
            cpu: range.cpu.clone(),
            gpu: range.gpu.clone(),
        };
        ranges.iter().map(row).collect()
    };
    PlanView {
        letter: run.letter,
        policy: run.report.policy.clone(),
        strips: vec![strip("prefill", &map.prefill), strip("decode", &map.decode)],
        ranges: [rows("prefill", &map.prefill), rows("decode", &map.decode)].concat(),
        head: match map.head {
            ComputeDevice::Cpu => "cpu",
            ComputeDevice::Gpu => "gpu",
        },
    }
}

#[cfg(test)]
mod tests;
