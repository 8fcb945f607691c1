//! Plain bf16 weights with AVX-512, quarter by quarter: a vector holds sixteen bytes of each of four
//! columns, and is multiplied by the same four inputs of x for each of them.
//!
//! Whole columns in lanes would need every line transposed to the last dword, and a load of x for each
//! input. Sixteen bytes at a time are half of the shuffles, and x comes four inputs at a load, which is
//! what counts: the machines give fewer loads than products.
//!
//! **The order of every sum.** An output is four chains of multiply-adds, one for each dword of sixteen
//! bytes, along all of k in order; the four are then added in order. `direct` and `tiled` make the same.
//!
//! - `panel`: four columns, and their lines as vectors of quarters.
//! - `pack`: activations in the order in which they are multiplied.
//! - `direct`: few rows, weights straight from registers.
//! - `tiled`: more rows, a block of some columns widened once into L1 for all of them.

mod direct;
mod pack;
mod panel;
mod tiled;

use std::ops::Range;

use half::bf16;

use super::form::Plain;
use super::task::Sums;
use super::tiled::TILE_LEN;
use super::{Pack, TASK_COLS, VECTOR_COLS};
use crate::element::Element;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use crate::simd::quarters::add_chains;
use crate::variant::Variant;

/// Inputs of a line of weights.
const LINE: usize = 32;
/// Vectors that a line of a panel widens to: the low and the high halves of the dwords of each quarter.
const STEPS: usize = 8;
/// Columns of a panel.
const COLS: usize = 4;
/// Rows that `direct` takes, as one tile, and rows of a tile of `tiled` at most.
const DIRECT_ROWS: usize = 8;
const TILE_ROWS: usize = 6;
/// Panels that `tiled` widens and multiplies together.
const PANELS: usize = 4;
/// Rows from which on larger blocks pay: what is left of the first level of cache for x counts for less,
/// and sums are loaded and stored less often.
const MANY_ROWS: usize = 40;

const _: () = assert!(PANELS * COLS * block(MANY_ROWS) <= TILE_LEN);

/// Whether a linear on plain weights is worked on here.
pub(super) fn fits<T: Element>(variant: Variant) -> bool {
    variant == Variant::Avx512 && !T::IS_F32
}

/// Rows of a tile of `rows` rows at most.
pub(super) const fn tile_rows(rows: usize) -> usize {
    if rows <= DIRECT_ROWS { DIRECT_ROWS } else { TILE_ROWS }
}

/// Inputs of a widened block for `rows` rows.
pub(super) const fn block(rows: usize) -> usize {
    if rows < MANY_ROWS { 8 * LINE } else { 12 * LINE }
}

/// Columns of a task of `rows` rows at most: chains of more would leave the second level of cache no room
/// for x.
pub(super) const fn task_cols(rows: usize) -> usize {
    if rows < 2 * MANY_ROWS { VECTOR_COLS } else { VECTOR_COLS / 2 }
}

/// Floats for the chains of any task of a pass of up to `rows` rows.
pub(super) const fn chains_len(rows: usize) -> usize {
    // One column less than a whole panel makes a panel of each of the others.
    const fn panels(cols: usize) -> usize {
        cols / COLS - 1 + COLS - 1
    }
    let few_rows = if rows < 2 * MANY_ROWS { rows } else { 2 * MANY_ROWS - 1 };
    let few = few_rows * panels(task_cols(few_rows));
    let many = rows * panels(task_cols(rows));
    Avx512::LANES * if few > many { few } else { many }
}

/// Packs a range of blocks of one tile of rows.
///
/// # Safety
/// The machine has AVX-512; the task's own conditions hold.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn pack(task: &Pack<bf16>) {
    // SAFETY: the caller's promise.
    unsafe { pack::pack(task) };
}

/// Leaves the sums of the task's columns and rows in its results.
///
/// # Safety
/// The machine has AVX-512; x was packed by [`pack`]; the task's own conditions hold.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn linear_plain(task: &Sums<Plain<bf16>>) {
    let Sums { form, area } = task;
    let first_row = area.tiles.start(area.row_tiles.start);
    let few = area.tiles.rows() <= DIRECT_ROWS;
    let chains = Chains {
        at: area.unfinished(),
        rows: area.tiles.start(area.row_tiles.end) - first_row,
        cols: area.cols.clone(),
        group: if few { direct::panels(area.tiles.rows()) } else { PANELS },
    };
    let chains_len = chains.panels() * chains.rows * Avx512::LANES;
    debug_assert!(chains_len <= self::chains_len(area.tiles.rows()), "{chains:?}");
    // SAFETY: the caller's promise; columns exist and the scratch has room for the chains.
    unsafe {
        if few {
            direct::chains(*form, area, &chains);
        } else {
            tiled::chains(*form, area, &chains);
        }
        chains.add(area.results());
    }
}

/// The chains of a task's outputs: for every group of panels of columns, row by row, their vectors.
/// Columns after the last whole panel are panels of their own, four times the same column; panels after
/// the last whole group are groups of their own.
#[derive(Debug)]
struct Chains {
    at: *mut f32,
    rows: usize,
    cols: Range<usize>,
    /// Panels of a group.
    group: usize,
}

impl Chains {
    fn whole_panels(&self) -> usize {
        self.cols.len() / COLS
    }

    fn panels(&self) -> usize {
        self.whole_panels() + self.cols.len() % COLS
    }

    /// Columns of a panel.
    fn width(&self, panel: usize) -> usize {
        if panel < self.whole_panels() { COLS } else { 1 }
    }

    /// The first column of a panel.
    fn column(&self, panel: usize) -> usize {
        let whole = self.whole_panels().min(panel);
        self.cols.start + whole * COLS + panel - whole
    }

    /// Panels of the group of a panel.
    #[inline(always)]
    fn together(&self, panel: usize) -> usize {
        if panel < self.whole_panels() / self.group * self.group { self.group } else { 1 }
    }

    /// The first panel of every group.
    fn groups(&self) -> impl Iterator<Item = usize> {
        let whole = self.whole_panels() / self.group * self.group;
        (0..whole).step_by(self.group).chain(whole..self.panels())
    }

    /// The vector of a panel and a row of the task.
    #[inline(always)]
    fn of(&self, panel: usize, row: usize) -> *mut f32 {
        let together = self.together(panel);
        let first = panel / together * together;
        let vector = first * self.rows + row * together + panel - first;
        self.at.wrapping_add(vector * Avx512::LANES)
    }

    /// Adds the chains of all outputs into `results`, whose rows are `TASK_COLS` apart.
    ///
    /// # Safety
    /// All chains are complete, the results have room.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add(&self, results: *mut f32) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        for first in (0..self.panels()).step_by(4) {
            let panels: [usize; 4] = std::array::from_fn(|i| (first + i).min(self.panels() - 1));
            let whole = self.whole_panels().saturating_sub(first);
            for row in 0..self.rows {
                let to = results.wrapping_add(row * TASK_COLS);
                // SAFETY: the caller's promise. Results are as wide as whole sixteens of columns.
                unsafe {
                    let v = panels.map(|panel| s.load(self.of(panel, row)));
                    let sums = add_chains(v);
                    if whole >= 4 {
                        s.store(to.add(first * COLS), sums);
                        continue;
                    }
                    let mut lanes = [0.0; Avx512::LANES];
                    s.store(lanes.as_mut_ptr(), sums);
                    for panel in first..self.panels().min(first + 4) {
                        let at = self.column(panel) - self.cols.start;
                        let from = lanes.as_ptr().add((panel - first) * COLS);
                        std::ptr::copy_nonoverlapping(from, to.add(at), self.width(panel));
                    }
                }
            }
        }
    }
}
