//! Plain bf16 weights with AVX512-BF16, as dot products: a vector lane is every thirty-second pair
//! of inputs of one output.
//!
//! Columns then need no transposing: a line of a weight row is an operand as it lies in memory, and
//! a step of a register tile loads a line of each of its rows of x and of its columns. Each column
//! of a tile is read by an instruction of its own, which is how the processor recognises streams of
//! memory.
//!
//! **The order of every sum.** k is cut into blocks that depend on k alone ([`block`]). In a block
//! each of sixteen lanes is a chain of dot products of pairs along k; the lanes are added as
//! `results` says, and the blocks in order.
//!
//! - `pack`: activations as `[line][row]`, line by line.
//! - `tile`: some rows of x times some columns, along a block; `prefetch`: what it prefetches
//!   meanwhile; `results`: its lanes are added; `deferred_reduction`: the same while the next tile
//!   multiplies.
//! - `sums`: all tiles of a task; `streams`: those of up to four rows, `four_streams` the ones with
//!   long x; `all_rows`: those of five to eight.

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

/// Inputs of a line, and dwords of x that they take.
const LINE: usize = 32;
const LINE_UNITS: usize = LINE / 2;
/// Lines of a block at most: a tile's columns, the next tile's and a tile of x stay in the first
/// level of cache together.
const BLOCK_LINES: usize = 32;

/// Units of `k` inputs: whole lines of pairs.
const fn units(k: usize) -> usize {
    k.div_ceil(LINE) * LINE_UNITS
}

/// Units of a block: as few blocks as possible, of nearly equal length.
const fn block(k: usize) -> usize {
    let lines = k.div_ceil(LINE);
    lines.div_ceil(lines.div_ceil(BLOCK_LINES)) * LINE_UNITS
}

/// Columns of a tile in a pass of `rows` rows.
const fn tile_cols(rows: usize) -> usize {
    if rows <= 3 { 8 } else { 6 }
}

/// See the module header.
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
