//! `--tables T.json`: finds the best map of a layer whose operations were measured elsewhere.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use planner::layer::search::{Output, search};
use planner::layer::steady::{Shape, steady_layer};
use planner::layer::table::Table;

use super::chart_file;
use crate::cli::request::PlanRequest;
use crate::report::gantt::Gantt;
use crate::report::layer;

/// Returns the map as text or JSON.
///
/// # Errors
/// A file that cannot be read or is not a table, or a chart that cannot be written.
pub(super) fn plan(path: &Path, request: &PlanRequest) -> anyhow::Result<String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("the table {shown}"))?;
    let table = Table::from_json(&text).with_context(|| format!("the table {shown}"))?;
    let found = search(&table).with_context(|| format!("the table {shown}"))?;
    if let Some(path) = &request.chart {
        chart_file::of_table(path, &table, &found.best.candidate)?;
    }
    if request.json {
        return Ok(serde_json::to_string_pretty(&Output::of(&table, &found))? + "\n");
    }
    let mut text = layer::text(&table, &found);
    let steady = steady_layer(&table, &found.best.candidate, &Shape::default());
    let _ = write!(text, "\n{}", Gantt::of_table(&table, &steady).draw());
    if let Some(overlap) = steady.usage.overlap() {
        let _ = writeln!(text, "transfers overlapped with CPU compute: {:.1}%", 100.0 * overlap);
    }
    Ok(text)
}
