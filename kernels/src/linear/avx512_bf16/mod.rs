//! Plain bf16 weights with AVX512-BF16, as dot products: a vector lane contains every sixteenth
//! pair of inputs of one output.
//!
//! Columns then need no transposition: a line of a weight row is an operand as it is stored in
//! memory, and a step of a register tile loads a line of each of its rows of x and of its columns.
//! Each column of a tile is read by an instruction of its own, by which the processor recognises
//! memory streams.
//!
//! **The order of every sum.** k is divided into blocks that depend on k alone ([`block`]). In a
//! block each of sixteen lanes is a chain of dot products of pairs along k. The lanes are added in
//! the order defined in `results`, and the blocks in ascending order.
//!
//! - `pack`: activations as `[line][row]`, line by line.
//! - `tile`: some rows of x times some columns, along a block; `prefetch`: the memory that a tile
//!   prefetches meanwhile; `results`: addition of its lanes; `deferred_reduction`: addition of its
//!   lanes while the next tile multiplies.
//! - `sums`: all tiles of a task; `streams`: tasks of up to four rows; `four_streams`: those of
//!   them with long x; `all_rows`: tasks of five to eight rows.

mod all_rows;
mod deferred_reduction;
mod four_streams;
mod pack;
mod prefetch;
mod results;
mod streams;
mod sums;
mod tile;

use half::bf16;

use super::pack::Pack;
use super::path::{MultiplicationPath, PackedLayout, Shape};
use super::reader::Plain;
use super::rows::RowTiles;
use super::sizes::AVX512_BF16_ROWS;
use super::task::Sums;
use super::tuning::VECTOR_COLS;
use crate::variant::Variant;

/// Inputs of a line. They take `LINE_UNITS` dwords of x.
const LINE: usize = 32;
const LINE_UNITS: usize = LINE / 2;
/// Maximum number of lines in a block, such that a tile's columns, the next tile's columns and a
/// tile of x fit in the first-level cache together.
const BLOCK_LINES: usize = 32;

/// Returns the number of units of `k` inputs: whole lines of pairs.
const fn units(k: usize) -> usize {
    k.div_ceil(LINE) * LINE_UNITS
}

/// Returns the number of units of a block, for as few blocks as possible of nearly equal length.
const fn block(k: usize) -> usize {
    let lines = k.div_ceil(LINE);
    lines.div_ceil(lines.div_ceil(BLOCK_LINES)) * LINE_UNITS
}

/// Returns the number of columns of a tile in a pass of `rows` rows.
const fn tile_cols(rows: usize) -> usize {
    if rows <= 3 { 8 } else { 6 }
}

/// The AVX512-BF16 path; see the module documentation.
pub(super) enum Multiplication {}

impl MultiplicationPath for Multiplication {
    type Reader = Plain<bf16>;

    fn fits(variant: Variant, _: Shape) -> bool {
        variant == Variant::Avx512Bf16
    }

    fn layout(Shape { rows, k, .. }: Shape) -> PackedLayout {
        let tiles = RowTiles::whole(rows, AVX512_BF16_ROWS, VECTOR_COLS, block(k));
        PackedLayout { tiles, units: units(k), sums: 0 }
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(task: &Pack<bf16>) {
        // SAFETY: the caller's promise.
        unsafe { pack::pack(task) };
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply(task: &Sums<Plain<bf16>>) {
        // SAFETY: the caller's promise.
        unsafe { sums::sums(task.reader, &task.area) };
    }
}
