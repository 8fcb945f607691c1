//! Timeline of layers as a chart of characters, with a row per lane and a letter per operation.

use std::fmt::Write;

use planner::layer::steady::{LayerLane, SteadyRow};
use planner::layer::table::OperationTable;

/// Number of characters in a row.
const WIDTH: usize = 96;
/// Number of layers shown.
pub(crate) const LAYERS: usize = 2;
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Work of a lane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GanttBar {
    /// Index of the lane in [`Gantt::lanes`].
    pub(crate) lane: usize,
    /// Index of the operation in [`Gantt::names`].
    pub(crate) name: usize,
    pub(crate) start_ms: f64,
    pub(crate) end_ms: f64,
}

/// Bars by lane in a window of time.
#[derive(Debug, Clone, PartialEq)]
pub struct Gantt {
    pub lanes: Vec<String>,
    pub names: Vec<String>,
    pub(crate) bars: Vec<GanttBar>,
    pub start_ms: f64,
    pub end_ms: f64,
}

impl Gantt {
    /// Creates the chart of two layers in the steady state, by a table's costs.
    pub fn from_table(table: &OperationTable, steady: &SteadyRow) -> Gantt {
        let start_ms = steady.window.0.ms();
        let bars = steady.timeline.spans.iter().map(|span| GanttBar {
            lane: span.lane as usize,
            name: span.op,
            start_ms: span.start.ms(),
            end_ms: span.end.ms(),
        });
        Gantt {
            lanes: LayerLane::ALL.map(|lane| lane.name().to_owned()).into(),
            names: table.ops.iter().map(|op| op.name.clone()).collect(),
            bars: bars.collect(),
            start_ms,
            end_ms: start_ms + LAYERS as f64 * steady.latency.ms(),
        }
    }

    /// Draws the chart; empty if the window has no length. If several bars share a character, the
    /// longest one is shown; a dot is an idle lane.
    pub fn draw(&self) -> String {
        let length_ms = self.end_ms - self.start_ms;
        if length_ms <= 0.0 {
            return String::new();
        }
        let mut text = format!(
            "{LAYERS} steady layers, {length_ms:.3} ms; a character is {:.4} ms\n",
            length_ms / WIDTH as f64
        );
        let mut used = vec![false; self.names.len()];
        let width = self.lanes.iter().map(String::len).max().unwrap_or(0).max(10);
        for (lane, name) in self.lanes.iter().enumerate() {
            let cells = self.cells(lane);
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let letter = |cell: &Option<usize>| cell.map_or('.', op_letter);
            cells.iter().flatten().for_each(|name| used[*name] = true);
            let row: String = cells.iter().map(letter).collect();
            let _ = writeln!(text, "{name:>width$} {row}");
        }
        let named = self.names.iter().enumerate().filter(|(name, _)| used[*name]);
        let legend: Vec<String> =
            named.map(|(index, name)| format!("{} {name}", op_letter(index))).collect();
        let _ = writeln!(text, "{:>width$} {}", "", legend.join("  "));
        text
    }

    /// Returns the name shown in each character of a lane's row.
    fn cells(&self, lane: usize) -> Vec<Option<usize>> {
        let mut longest: Vec<(f64, Option<usize>)> = vec![(0.0, None); WIDTH];
        let cell_ms = (self.end_ms - self.start_ms) / WIDTH as f64;
        for bar in self.bars.iter().filter(|bar| bar.lane == lane) {
            for (index, cell) in longest.iter_mut().enumerate() {
                let from_ms = self.start_ms + index as f64 * cell_ms;
                let overlap_ms = bar.end_ms.min(from_ms + cell_ms) - bar.start_ms.max(from_ms);
                if overlap_ms > cell.0 {
                    *cell = (overlap_ms, Some(bar.name));
                }
            }
        }
        longest.into_iter().map(|(_, name)| name).collect()
    }
}

fn op_letter(name: usize) -> char {
    char::from(LETTERS[name % LETTERS.len()])
}
