//! Coordinates of the pictures of a page; the template draws them.

use serde::Serialize;

use super::figures::{FigureCell, cell, format_seconds};
use super::run::PageRun;
use crate::file::{LayerRange, LayerTimes};

/// Width of a picture, in its own units.
const WIDTH: f64 = 1000.0;
/// Height of a lane.
const LANE_HEIGHT: f64 = 26.0;
/// Height of the curve.
const CURVE_HEIGHT: f64 = 240.0;
/// Width of a letter in a bar, in units.
const LETTER_WIDTH: f64 = 7.5;

/// Layers of a phase next to each other, with the share of their operations that the device runs.
#[derive(Debug, Serialize)]
pub(super) struct LayerStrip {
    phase: &'static str,
    layers: Vec<LayerCell>,
}

#[derive(Debug, Serialize)]
struct LayerCell {
    x: f64,
    width: f64,
    /// Share of the height, from 0 to 1, measured from the top.
    gpu: f64,
    title: String,
}

pub(super) fn strip(phase: &'static str, ranges: &[LayerRange]) -> LayerStrip {
    let count = ranges.last().map_or(0, |range| range.last + 1);
    let width = WIDTH / count.max(1) as f64;
    let cells = ranges.iter().flat_map(|range| {
        let all = (range.cpu.len() + range.gpu.len()).max(1);
        let gpu = range.gpu.len() as f64 / all as f64;
        let on = |ops: &[String]| if ops.is_empty() { "-".to_owned() } else { ops.join(" ") };
        let description = format!("CPU: {}; GPU: {}", on(&range.cpu), on(&range.gpu));
        (range.first..=range.last).map(move |layer| LayerCell {
            x: layer as f64 * width,
            width: width - (0.1 * width).min(2.0),
            gpu,
            title: format!("layer {layer}, {phase}. {description}"),
        })
    });
    LayerStrip { phase, layers: cells.collect() }
}

/// Two layers of a step, with a row for each lane.
#[derive(Debug, Serialize)]
pub(super) struct Timeline {
    letter: &'static str,
    kind: &'static str,
    length: Option<FigureCell>,
    height: f64,
    lanes: Vec<LaneRow>,
}

#[derive(Debug, Serialize)]
struct LaneRow {
    name: String,
    y: f64,
    spans: Vec<TimelineSpan>,
}

#[derive(Debug, Serialize)]
struct TimelineSpan {
    x: f64,
    width: f64,
    /// The layer has an odd index, which distinguishes adjacent layers.
    odd: bool,
    /// Name of the operation, if it fits in the bar.
    label: Option<String>,
    title: String,
}

/// Returns the measured timeline of a run and the simulated one of the same steps.
pub(super) fn timelines(run: &PageRun<'_>) -> Vec<Timeline> {
    let layers = run.report.replayed.as_ref().and_then(|replayed| replayed.layers.as_ref());
    let Some(layers) = layers else { return Vec::new() };
    // Both have the same scale, so that lengths can be compared.
    let longest_s = layers.measured.length_s.max(layers.simulated.length_s);
    let mut names: Vec<&str> = Vec::new();
    for span in layers.measured.spans.iter().chain(&layers.simulated.spans) {
        if !names.contains(&span.lane.as_str()) {
            names.push(&span.lane);
        }
    }
    names.sort_unstable();
    let all = [("measured", &layers.measured), ("simulated", &layers.simulated)];
    let all = all.into_iter().filter(|(_, times)| !times.spans.is_empty());
    all.map(|(kind, times)| {
        let pointer = format!("/replayed/layers/{kind}/length_s");
        Timeline {
            letter: run.letter,
            kind,
            length: cell(run, &pointer, format_seconds),
            height: names.len() as f64 * LANE_HEIGHT,
            lanes: names
                .iter()
                .zip(0..)
                .map(|(name, row)| lane_row(name, row, times, longest_s))
                .collect(),
        }
    })
    .collect()
}

fn lane_row(name: &str, row: u32, times: &LayerTimes, longest_s: f64) -> LaneRow {
    let x = |at_s: f64| (at_s / longest_s * WIDTH).clamp(0.0, WIDTH);
    let spans = times.spans.iter().filter(|span| span.lane == name).map(|span| {
        let (start, end) = (x(span.start_s), x(span.end_s));
        let layer_name = span
            .layer
            .map_or_else(|| "outside layers".to_owned(), |layer| format!("layer {layer}"));
        let capacity = (end - start) / LETTER_WIDTH;
        TimelineSpan {
            x: start,
            width: (end - start).max(0.4),
            odd: span.layer.is_some_and(|layer| layer % 2 == 1),
            label: (capacity >= span.op.chars().count() as f64 + 1.0).then(|| span.op.clone()),
            title: format!(
                "{} of {layer_name}, batch {}: {}",
                span.op,
                span.batch,
                format_seconds(span.end_s - span.start_s)
            ),
        }
    });
    LaneRow { name: name.to_owned(), y: f64::from(row) * LANE_HEIGHT, spans: spans.collect() }
}

/// Times between two tokens, from the shortest to the longest.
#[derive(Debug, Serialize)]
pub(super) struct LatencyCurve {
    height: f64,
    lines: Vec<CurveLine>,
    marks: Vec<AxisMark>,
}

#[derive(Debug, Serialize)]
struct CurveLine {
    letter: &'static str,
    /// Points of an SVG polyline.
    points: String,
    cells: Vec<FigureCell>,
}

/// Label of a time on the left axis.
#[derive(Debug, Serialize)]
struct AxisMark {
    y: f64,
    text: String,
}

/// Returns the curve of the reports; `None` if none of them has step times.
pub(super) fn curve(runs: &[PageRun<'_>]) -> Option<LatencyCurve> {
    let quantiles = |run: &PageRun<'_>| {
        let steps = run.report.decode_step.as_ref()?;
        (steps.quantiles_s.len() > 1).then(|| steps.quantiles_s.clone())
    };
    let all: Vec<(&PageRun<'_>, Vec<f64>)> =
        runs.iter().filter_map(|run| Some((run, quantiles(run)?))).collect();
    let longest_s = all.iter().flat_map(|(_, times)| times).copied().fold(0.0, f64::max);
    if longest_s <= 0.0 {
        return None;
    }
    let y = |time_s: f64| CURVE_HEIGHT * (1.0 - time_s / longest_s);
    let line = |(run, times): &(&PageRun<'_>, Vec<f64>)| {
        let last = (times.len() - 1) as f64;
        let point = |(index, time_s): (usize, &f64)| {
            format!("{:.1},{:.1}", index as f64 / last * WIDTH, y(*time_s))
        };
        let points: Vec<String> = times.iter().enumerate().map(point).collect();
        let named = ["median_s", "p95_s", "max_s"];
        let cells = named
            .iter()
            .filter_map(|name| cell(run, &format!("/decode_step/{name}"), format_seconds));
        CurveLine { letter: run.letter, points: points.join(" "), cells: cells.collect() }
    };
    let mark =
        |share: f64| AxisMark { y: y(share * longest_s), text: format_seconds(share * longest_s) };
    Some(LatencyCurve {
        height: CURVE_HEIGHT,
        lines: all.iter().map(line).collect(),
        marks: [1.0, 0.75, 0.5, 0.25].map(mark).into(),
    })
}
