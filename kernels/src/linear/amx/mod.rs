//! The AMX-BF16 path for plain weights of bf16 linears. It replaces `task::Sums` and stores its
//! results in the same layout for the same epilogue.
//!
//! - `tile`: the kernels in assembly, and the order of every sum.
//! - `plain`: bf16 weights read directly from row-major memory, multiplied by pairs of x as packed
//!   by `Pack`.
//!
//! Rows of x are divided into tiles of 16 and one tile of the remainder. Everything except the tile
//! instructions is AVX-512.

mod plain;
mod tile;

use half::bf16;

use super::pack::Pack;
use super::path::{MultiplicationPath, PackedLayout, Shape};
use super::reader::Plain;
use super::rows::RowTiles;
use super::sizes::{BLOCK_UNITS, TASK_COLS};
use super::task::Sums;
use super::tiled::TILE_LEN;
use super::tuning::NARROW_COLS;
use crate::amx::tiles::TILE;
use crate::simd::avx512::Avx512;
use crate::variant::Variant;

/// Returns the maximum number of columns of a task of `rows` rows. With few rows, a task reads its
/// weights in one pass; with more rows, x is read repeatedly, and wide tasks do that less often.
pub(super) const fn task_cols(rows: usize) -> usize {
    if rows <= plain::FEW_TILES * TILE { NARROW_COLS } else { TASK_COLS }
}

const _: () = assert!(size_of::<plain::Scratch>() <= 4 * TILE_LEN);

/// The AMX path; see the module documentation.
pub(super) enum Multiplication {}

impl MultiplicationPath for Multiplication {
    type Reader = Plain<bf16>;

    const UNFINISHED_LEN: usize = plain::SUMS_LEN;

    fn fits(variant: Variant, _: Shape) -> bool {
        variant == Variant::Amx
    }

    /// Returns the layout of x: packed in pairs of inputs.
    fn layout(Shape { rows, k, .. }: Shape) -> PackedLayout {
        let tiles = RowTiles::whole(rows, TILE, task_cols(rows), BLOCK_UNITS);
        PackedLayout { tiles, units: k.div_ceil(2), sums: 0 }
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(task: &Pack<bf16>) {
        // SAFETY: this function's own features.
        task.pairs(unsafe { Avx512::new() });
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply(task: &Sums<Plain<bf16>>) {
        // SAFETY: the caller's promise.
        unsafe { plain::sums(Avx512::new(), task.reader, &task.area) };
    }
}
