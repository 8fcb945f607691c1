//! `--tables T.json`: finds the best map of a layer whose operations were measured elsewhere.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use planner::layer::search::{SearchOutput, search};
use planner::layer::steady::{SlotLimits, steady_layer};
use planner::layer::table::OperationTable;

use super::chart_file;
use crate::cli::request::PlanRequest;
use report::gantt::Gantt;
use report::layer;

/// Returns the map as text or JSON.
///
/// # Errors
/// A file that cannot be read or is not a table, or a chart that cannot be written.
pub(super) fn plan_table(path: &Path, request: &PlanRequest) -> anyhow::Result<String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("the table {shown}"))?;
    let table = OperationTable::from_json(&text).with_context(|| format!("the table {shown}"))?;
    let found = search(&table).with_context(|| format!("the table {shown}"))?;
    if let Some(path) = &request.chart {
        chart_file::write_table_chart(path, &table, &found.best.candidate)?;
    }
    if request.json {
        return Ok(serde_json::to_string_pretty(&SearchOutput::new(&table, &found))? + "\n");
    }
    let mut text = layer::format_layer(&table, &found);
    let steady = steady_layer(&table, &found.best.candidate, &SlotLimits::default());
    let _ = write!(text, "\n{}", Gantt::from_table(&table, &steady).draw());
    if let Some(overlap) = steady.usage.overlap() {
        let _ = writeln!(text, "transfers overlapped with CPU compute: {:.1}%", 100.0 * overlap);
    }
    Ok(text)
}
