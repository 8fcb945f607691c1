//! Tables for people, as all commands print them.

use comfy_table::{CellAlignment, Table, TableComponent, presets::UTF8_HORIZONTAL_ONLY};

/// Puts columns of numbers to the right.
pub(crate) fn right_aligned(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A table with lines above, below and under its header only.
pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    let between_rows = [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::LeftBorderIntersections,
        TableComponent::RightBorderIntersections,
    ];
    for component in between_rows {
        table.remove_style(component);
    }
    table
}
