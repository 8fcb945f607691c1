//! Style of the tables that all commands print.

use comfy_table::{CellAlignment, Table, TableComponent, presets::UTF8_HORIZONTAL_ONLY};

/// Aligns columns of numbers to the right.
pub fn right_aligned(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Returns a table with lines only above, below and under its header.
pub fn plain_table() -> Table {
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
