//! Panels and tiles, and where their memory lies.

use model::compressed::Bits;

use crate::linear::sizes::BLOCK_UNITS;
use crate::linear::tuning::VECTOR_COLS;

/// Rows of a tile, at most: what the registers hold sums of, for `PANELS` panels.
pub(super) const fn tile_rows(bits: Bits) -> usize {
    match bits {
        Bits::Four => 12,
        // A sum for each digit of x.
        _ => 6,
    }
}

/// Columns of a panel, and panels that are multiplied together.
pub(super) const COLS: usize = model::compressed::ROWS;
pub(super) const PANELS: usize = 2;
/// Units of a block of packed x without tiles of AMX: its rows are multiplied by it in one call.
pub(super) const BLOCK: usize = 2 * BLOCK_UNITS;

const _: () = assert!(VECTOR_COLS.is_multiple_of(PANELS * COLS));

/// Units of packed x, dwords, of so many inputs: two bytes each.
pub(super) const fn units_of(inputs: usize) -> usize {
    inputs / 2
}
