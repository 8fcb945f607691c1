//! Plain bf16 weights with AVX-512, quarter by quarter: a vector holds sixteen bytes of each of
//! four columns, and is multiplied by the same four inputs of x for each of them.
//!
//! Whole columns in lanes would require that every line is transposed down to single dwords, and a
//! load of x for each input. Sixteen bytes at a time take half of the shuffles, and a load of x
//! fetches four inputs, which matters most: processors execute fewer loads than products per cycle.
//!
//! **The order of every sum.** An output consists of four chains of multiply-adds, one for each
//! dword of sixteen bytes, along all of k in order; the four chains are then added in order.
//! `direct` and `tiled` produce the same sums.
//!
//! - `chains`: sums that are not yet results.
//! - `panel`: four columns, and their lines as vectors of quarters.
//! - `pack`: activations in the order in which they are multiplied.
//! - `direct`: few rows, weights directly from registers.
//! - `tiled`: more rows; a block of some columns is widened once into L1 for all of them.

mod chains;
mod direct;
mod pack;
mod panel;
mod tiled;

use chains::{COLS, Chains, LINE, PANELS};
use half::bf16;

use super::pack::Pack;
use super::path::{MultiplicationPath, PackedLayout, Shape};
use super::reader::Plain;
use super::rows::RowTiles;
use super::sizes::PACK_ROWS;
use super::task::Sums;
use super::tiled::TILE_LEN;
use super::tuning::{AVX512_MANY_ROWS, NARROW_COLS};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use crate::variant::Variant;

/// Maximum number of rows for `direct`, which processes them as one tile. A tile of `tiled` has at
/// most `TILE_ROWS` rows.
const DIRECT_ROWS: usize = 8;
const TILE_ROWS: usize = 6;

const _: () = assert!(PANELS * COLS * block(AVX512_MANY_ROWS) <= TILE_LEN);

/// Returns the maximum number of rows in a tile of a pass of `rows` rows.
const fn tile_rows(rows: usize) -> usize {
    if rows <= DIRECT_ROWS { DIRECT_ROWS } else { TILE_ROWS }
}

/// Returns the number of inputs in a widened block for `rows` rows.
const fn block(rows: usize) -> usize {
    if rows < AVX512_MANY_ROWS { 8 * LINE } else { 12 * LINE }
}

/// Returns the maximum number of columns of a task of `rows` rows. With more columns the chains
/// would leave no space for x in the second-level cache.
const fn task_cols(rows: usize) -> usize {
    if rows < 2 * AVX512_MANY_ROWS { NARROW_COLS } else { NARROW_COLS / 2 }
}

/// Returns the number of floats for the chains of any task of a pass of up to `rows` rows.
const fn chains_len(rows: usize) -> usize {
    // The worst case is one column less than whole panels: each column of the last, partial panel
    // is then a panel of its own.
    const fn panels(cols: usize) -> usize {
        cols / COLS - 1 + COLS - 1
    }
    let few_rows = if rows < 2 * AVX512_MANY_ROWS { rows } else { 2 * AVX512_MANY_ROWS - 1 };
    let few = few_rows * panels(task_cols(few_rows));
    let many = rows * panels(task_cols(rows));
    Avx512::LANES * if few > many { few } else { many }
}

/// The AVX-512 path; see the module documentation.
pub(super) enum Multiplication {}

impl MultiplicationPath for Multiplication {
    type Reader = Plain<bf16>;

    const UNFINISHED_LEN: usize = chains_len(PACK_ROWS);

    fn fits(variant: Variant, _: Shape) -> bool {
        variant == Variant::Avx512
    }

    /// Returns the layout of x: packed in whole lines, for which a row of scratch has sufficient
    /// padding.
    fn layout(Shape { rows, k, .. }: Shape) -> PackedLayout {
        let tiles = RowTiles::even(rows, tile_rows(rows), task_cols(rows), block(rows));
        PackedLayout { tiles, units: k.next_multiple_of(LINE), sums: 0 }
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn pack(task: &Pack<bf16>) {
        // SAFETY: the caller's promise.
        unsafe { pack::pack(task) };
    }

    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply(task: &Sums<Plain<bf16>>) {
        let Sums { reader, area } = task;
        let first_row = area.tiles.start(area.row_tiles.start);
        let few = area.tiles.rows <= DIRECT_ROWS;
        let chains = Chains {
            at: area.unfinished(),
            rows: area.tiles.start(area.row_tiles.end) - first_row,
            cols: area.cols.clone(),
            group: if few { direct::panels(area.tiles.rows) } else { PANELS },
        };
        let chains_len = chains.panels() * chains.rows * Avx512::LANES;
        debug_assert!(chains_len <= self::chains_len(area.tiles.rows), "{chains:?}");
        // SAFETY: the caller's promise; columns exist and the scratch has space for the chains.
        unsafe {
            if few {
                direct::chains(*reader, area, &chains);
            } else {
                tiled::chains(*reader, area, &chains);
            }
            chains.add(area.results());
        }
    }
}
