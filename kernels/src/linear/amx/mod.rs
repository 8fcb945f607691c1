//! The AMX-BF16 path for plain weights of a linear in bf16: takes the place of `task::Sums` and
//! leaves the same results for the same epilogue.
//!
//! - `tile`: the kernels in assembly, and the order of every sum.
//! - `plain`: bf16 weights straight from row-major memory, against pairs of x as `Pack` leaves
//!   them.
//!
//! Rows of x come in tiles of 16, and one of what is left. Everything around the tile
//! instructions is AVX-512.

mod plain;
mod tile;

use half::bf16;

use super::pack::Pack;
use super::reader::Plain;
use super::sizes::{NARROW_COLS, TASK_COLS};
use super::task::Sums;
use super::tiled::TILE_LEN;
use crate::simd::avx512::Avx512;

/// Rows of x in a tile, at most.
pub(crate) const TILE_ROWS: usize = crate::amx::tiles::TILE;

/// Floats of a task's sums in tiles.
pub(super) const SUMS_LEN: usize = plain::SUMS_LEN;

/// Columns of a task of `rows` rows at most. Few rows read the weights in one go; more come back to
/// x, which wide tasks do less often.
pub(super) const fn task_cols(rows: usize) -> usize {
    if rows <= plain::FEW_TILES * TILE_ROWS { NARROW_COLS } else { TASK_COLS }
}

const _: () = assert!(size_of::<plain::Scratch>() <= 4 * TILE_LEN);

/// Packs a range of blocks of one tile of rows, in pairs.
///
/// # Safety
/// The machine has AVX-512; the task's own conditions hold.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn pack(task: &Pack<bf16>) {
    // SAFETY: this function's own features.
    task.pairs(unsafe { Avx512::new() });
}

/// # Safety
/// The machine has AVX-512, AMX may be used by this process or is emulated, and the task's own
/// conditions hold.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn plain(task: &Sums<Plain<bf16>>) {
    // SAFETY: the caller's promise.
    unsafe { plain::sums(Avx512::new(), task.reader, &task.area) };
}
