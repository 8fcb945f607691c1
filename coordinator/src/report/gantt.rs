//! The steady layer as a chart of characters: a row a lane, a letter an operation.

use std::fmt::Write;

use planner::layer::steady::{Lane, Steady};
use planner::layer::table::Table;
use planner::layer::time::Ps;

/// Characters of a row.
const WIDTH: usize = 96;
/// Layers shown.
const LAYERS: u128 = 2;
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Two layers of the steady state. Where several operations share a character the longest shows; a
/// dot is an idle lane.
pub(crate) fn draw(table: &Table, steady: &Steady) -> String {
    let start = steady.window.0;
    let length = steady.latency.times(LAYERS);
    if length == Ps::ZERO {
        return String::new();
    }
    let mut text = format!(
        "{LAYERS} steady layers, {:.3} ms; a character is {:.4} ms\n",
        length.ms(),
        length.ms() / WIDTH as f64
    );
    let mut used = vec![false; table.ops.len()];
    for lane in Lane::ALL {
        let spans = steady.timeline.spans.iter().filter(|span| span.lane == lane);
        let mut cells: Vec<Vec<(Ps, usize)>> = vec![Vec::new(); WIDTH];
        for span in spans {
            for (cell, found) in cells.iter_mut().enumerate() {
                let edge = |cell: usize| start + Ps(length.0 * cell as u128 / WIDTH as u128);
                let inside =
                    span.end.min(edge(cell + 1)).saturating_sub(span.start.max(edge(cell)));
                if inside > Ps::ZERO {
                    found.push((inside, span.op));
                }
            }
        }
        if cells.iter().all(Vec::is_empty) {
            continue;
        }
        let row: String = cells
            .iter()
            .map(|found| match found.iter().max() {
                Some((_, op)) => {
                    used[*op] = true;
                    char::from(LETTERS[op % LETTERS.len()])
                }
                None => '.',
            })
            .collect();
        let _ = writeln!(text, "{:>10} {row}", lane.name());
    }
    let legend: Vec<String> = (0..table.ops.len())
        .filter(|op| used[*op])
        .map(|op| format!("{} {}", char::from(LETTERS[op % LETTERS.len()]), table.ops[op].name))
        .collect();
    let _ = writeln!(text, "{:>10} {}", "", legend.join("  "));
    if let Some(overlap) = steady.usage.overlap() {
        let _ = writeln!(text, "transfers overlapped with CPU compute: {:.1}%", 100.0 * overlap);
    }
    text
}
