//! Sums of grouped weights, 16 columns of a task at a time: a block of k is decoded to pairs of bf16
//! once for all rows, and every group's products are scaled and added to the totals in order.

use half::bf16;

use super::tile::TILE;
use super::tile::grouped as tile;
use crate::linear::form::Form;
use crate::linear::task::Area;
use crate::linear::{BLOCK_UNITS, RowTiles, TASK_COLS};
use crate::scratch::Shared;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;

/// Groups of a block, at most.
const MAX_GROUPS: usize = 2 * BLOCK_UNITS / 32;
/// Pairs of inputs of a step.
const STEP: usize = 16;
/// Padding of packed rows, bf16: sixteen rows a power of two apart would share cache sets.
const ROW_PAD: usize = 32;

/// How far ahead of the records that are decoded others are asked for: a block and a half, because the
/// products of a block with few rows take less time than memory needs to answer.
const AHEAD_BYTES: usize = 3072;

/// What a task uses of its thread's scratch.
#[repr(C, align(64))]
pub(super) struct Scratch {
    /// `[pair of inputs][16 columns]`.
    decoded: [[f32; TILE]; BLOCK_UNITS],
    /// Scales and minimums of each group.
    scales: [[[f32; TILE]; 2]; MAX_GROUPS],
    /// `[group][16 rows][16 columns]`.
    parts: [[[f32; TILE]; TILE]; MAX_GROUPS],
}

/// Packed x of a grouped weight: rows of bf16, padded with zeros to whole groups, and behind them
/// `[group][row]` sums of x. Less than the f32 that the driver's scratch has for each input.
#[derive(Debug, Clone, Copy)]
struct Rows {
    at: *mut f32,
    rows: usize,
    /// Pairs of inputs, of whole groups.
    units: usize,
}

impl Rows {
    fn new(packed: Shared<f32>, tiles: RowTiles, units: usize) -> Self {
        Rows { at: packed.pointer(), rows: tiles.rows(), units }
    }

    fn stride_bytes(self) -> usize {
        4 * self.units + 2 * ROW_PAD
    }

    fn row(self, row: usize) -> *mut u8 {
        self.at.cast::<u8>().wrapping_add(row * self.stride_bytes())
    }

    fn sum(self, group: usize, row: usize) -> *mut f32 {
        self.row(self.rows).cast::<f32>().wrapping_add(group * self.rows + row)
    }
}

/// What to pack: pairs `units` of some rows.
pub(super) struct Packing {
    pub x: *const bf16,
    pub k: usize,
    pub packed: Shared<f32>,
    pub tiles: RowTiles,
    pub tile: usize,
    /// All pairs of inputs of the weight, and those to be packed: whole groups.
    pub units: usize,
    pub part: std::ops::Range<usize>,
    /// Inputs of a group.
    pub group: usize,
}

/// # Safety
/// x is `[rows, k]`, the scratch has room for `packed_row` floats a row, and nobody else packs this
/// part of these rows.
#[inline(always)]
pub(super) unsafe fn pack(s: Avx512, packing: &Packing) {
    let Packing { x, k, tiles, group, .. } = *packing;
    let rows = Rows::new(packing.packed, tiles, packing.units);
    let (first, end) = (2 * packing.part.start, 2 * packing.part.end);
    let values = end.min(k).saturating_sub(first);
    for row in tiles.start(packing.tile)..tiles.start(packing.tile + 1) {
        // SAFETY: `values` inputs of the row exist from `first` on, and packed rows have all units.
        unsafe {
            let to = rows.row(row).cast::<bf16>().add(first);
            std::ptr::copy_nonoverlapping(x.wrapping_add(row * k + first), to, values);
            std::ptr::write_bytes(to.add(values), 0, end - first - values);
        }
        // SAFETY: the row has been packed just now, and there is a sum for every group of it.
        unsafe { sum_groups(s, rows, row, first / group..end / group, group) };
    }
}

/// The sums over groups, each in the order of its inputs: a lane is a group.
///
/// # Safety
/// The groups of the row are packed.
#[inline(always)]
unsafe fn sum_groups(
    s: Avx512,
    rows: Rows,
    row: usize,
    groups: std::ops::Range<usize>,
    inputs: usize,
) {
    for first in groups.clone().step_by(TILE) {
        let count = TILE.min(groups.end - first);
        let at = rows.row(row).wrapping_add(2 * first * inputs);
        let mut sum = s.zero();
        for chunk in 0..2 * inputs / (4 * TILE) {
            let from = at.wrapping_add(chunk * 4 * TILE);
            // SAFETY: `count` groups exist; in place of others the first is read again.
            let dwords = unsafe {
                if count == TILE {
                    s.transpose(from, 2 * inputs)
                } else {
                    let mut some = [[0u8; 64]; 16];
                    for (group, to) in some.iter_mut().enumerate().take(count) {
                        let from = from.add(group * 2 * inputs);
                        std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), 4 * TILE);
                    }
                    s.transpose(some.as_ptr().cast(), 64)
                }
            };
            for &pair in dwords.as_ref() {
                sum = s.add(s.add(sum, s.low_bf16(pair)), s.high_bf16(pair));
            }
        }
        let mut sums = [0.0f32; 16];
        // SAFETY: a vector fits the array; there is a sum for every group.
        unsafe {
            s.store(sums.as_mut_ptr(), sum);
            for (group, sum) in sums.into_iter().enumerate().take(count) {
                *rows.sum(first + group, row) = sum;
            }
        }
    }
}

/// Leaves the sums of the task's columns and rows in its results.
///
/// # Safety
/// AMX may be used by this process, or is emulated. `form` has the columns of `area`, whose x was
/// packed by [`pack`].
#[inline(always)]
pub(super) unsafe fn sums<W: Form<Avx512>>(s: Avx512, form: W, area: &Area) {
    let (tiles, row_tiles) = (area.tiles, area.row_tiles.clone());
    let x = Rows::new(area.packed, tiles, form.units());
    let high = row_tiles.clone().map(|tile| tiles.height(tile)).max().unwrap_or(0);
    let low = row_tiles.clone().map(|tile| tiles.height(tile)).min().unwrap_or(0);
    // SAFETY: the caller's promise.
    let configured = unsafe { tile::GroupedTiles::new(low, high) };
    for col in area.cols.clone().step_by(TILE) {
        let panel = Panel { form, area, x, col, configured: &configured };
        for block in 0..form.units().div_ceil(BLOCK_UNITS) {
            // SAFETY: the caller's promise, for a block of some columns.
            unsafe { panel.block(s, block) };
        }
    }
}

/// 16 columns of a task, the last of which may not exist: records are padded.
struct Panel<'a, W> {
    form: W,
    area: &'a Area,
    x: Rows,
    col: usize,
    configured: &'a tile::GroupedTiles,
}

impl<W> Panel<'_, W> {
    fn scratch(&self) -> *mut Scratch {
        self.area.scratch.cast()
    }

    /// # Safety
    /// As [`sums`]; the block exists.
    #[inline(always)]
    unsafe fn block(&self, s: Avx512, block: usize)
    where
        W: Form<Avx512>,
    {
        let units = BLOCK_UNITS.min(self.form.units() - block * BLOCK_UNITS);
        let (per_group, groups) = (self.form.segment(), units / self.form.segment());
        let first_group = block * BLOCK_UNITS / per_group;
        // SAFETY: these groups exist.
        unsafe { self.decode(s, block, groups) };
        let (tiles, row_tiles) = (self.area.tiles, self.area.row_tiles.clone());
        let first_row = tiles.start(row_tiles.start);
        let col = self.col - self.area.cols.start;
        for tile in row_tiles {
            let (row, rows) = (tiles.start(tile), tiles.height(tile));
            // SAFETY: packed x has these rows and groups, and the scratch the decoded weights;
            // results have room for whole vectors of columns.
            unsafe {
                let call = tile::GroupedCall {
                    x: self.x.row(row).wrapping_add(4 * block * BLOCK_UNITS),
                    x_stride: self.x.stride_bytes(),
                    rows,
                    weight: (&raw const (*self.scratch()).decoded).cast(),
                    groups,
                    steps: per_group / STEP,
                    parts: (&raw mut (*self.scratch()).parts).cast(),
                };
                tile::grouped_parts(self.configured, &call);
                for r in 0..rows {
                    let to = self.area.results().add((row + r - first_row) * TASK_COLS + col);
                    let mut total = if block == 0 { s.zero() } else { s.load(to) };
                    for group in 0..groups {
                        let part = s.load((*self.scratch()).parts[group][r].as_ptr());
                        let [scale, min] = &(*self.scratch()).scales[group];
                        let x_sum = s.splat(*self.x.sum(first_group + group, row + r));
                        total = s.fma(s.load(scale.as_ptr()), part, total);
                        total = s.fma(s.load(min.as_ptr()), x_sum, total);
                    }
                    s.store(to, total);
                }
            }
        }
    }

    /// Decodes the groups of a block of the columns, and their scales; asks for memory meanwhile.
    ///
    /// # Safety
    /// The groups exist, and are at most a block.
    #[inline(always)]
    unsafe fn decode(&self, s: Avx512, block: usize, groups: usize)
    where
        W: Form<Avx512>,
    {
        let (panel, first) = (self.col / TILE, block * BLOCK_UNITS / self.form.segment());
        let mut unit = 0;
        // Records follow each other to the end of the task, also from a panel to the next.
        let mut ask = self.form.lines(panel, 1, block).at.wrapping_add(AHEAD_BYTES);
        let mut ask_line = || {
            s.prefetch(ask);
            ask = ask.wrapping_add(64);
        };
        for group in 0..groups {
            // SAFETY: the group exists, and the scratch has room for the units and scales of a
            // block.
            unsafe {
                let scratch = self.scratch();
                for index in 0..self.form.segment() / W::UNITS {
                    ask_line();
                    let dwords = self.form.chunk(s, panel, first + group, index);
                    for i in 0..W::UNITS {
                        let value = W::unit(s, dwords.as_ref()[0], i);
                        s.store((*scratch).decoded[unit].as_mut_ptr(), value);
                        unit += 1;
                    }
                }
                ask_line();
                let (scale, min) = self.form.scale(s, panel, first + group);
                s.store((*scratch).scales[group][0].as_mut_ptr(), scale);
                s.store((*scratch).scales[group][1].as_mut_ptr(), min);
            }
        }
    }
}
