//! Sizes of panels, tiles and packed blocks.

use model::quantized_format::Bits;

use crate::linear::sizes::BLOCK_UNITS;
use crate::linear::tuning::VECTOR_COLS;

/// Returns the maximum number of rows in a tile, such that the registers hold the sums for `PANELS`
/// panels.
pub(super) const fn tile_rows(bits: Bits) -> usize {
    match bits {
        Bits::Four => 12,
        // Each digit of x has a sum of its own.
        _ => 6,
    }
}

/// Columns of a panel. `PANELS` panels are multiplied together.
pub(super) const COLS: usize = model::quantized_format::ROWS;
pub(super) const PANELS: usize = 2;
/// Units of a block of packed x without AMX tiles; one call multiplies the rows of a block.
pub(super) const BLOCK: usize = 2 * BLOCK_UNITS;

const _: () = assert!(VECTOR_COLS.is_multiple_of(PANELS * COLS));

/// Returns the number of units of packed x for the given number of inputs: dwords, with two bytes
/// per input.
pub(super) const fn units_of(inputs: usize) -> usize {
    inputs / 2
}
