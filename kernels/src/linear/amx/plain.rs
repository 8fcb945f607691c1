//! Sums of plain bf16 weights, 32 columns of a task at a time.
//!
//! **Few rows**, at most two tiles of x: the columns of a panel are read from their first input to
//! their last, and multiplied as they arrive.
//!
//! **More rows**: all panels of the task process a part of k before any panel starts on the next
//! part, so that a part of x stays in the second-level cache for all of them. Meanwhile the next
//! panel's weights and a share of the next part of x are prefetched.

use half::bf16;

use super::tile;
use crate::amx::tiles::TILE;
use crate::linear::reader::Plain;
use crate::linear::sizes::{BLOCK_UNITS, PACK_ROWS, RESULT_STRIDE, TASK_COLS};
use crate::linear::task::TaskOperands;
use crate::linear::tuning::{AMX_CALL_BLOCKS, AMX_PREFETCH_BYTES};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;

/// Maximum number of tiles of x in a task with few rows, whose sums all fit in the tile registers.
pub(super) const FEW_TILES: usize = 2;
/// Pairs of inputs in a step.
const STEP: usize = 16;
/// Columns of a panel: two tiles of weight rows.
const PANEL: usize = 2 * TILE;
/// Maximum number of tiles of x rows in a pass.
const MAX_TILES: usize = PACK_ROWS.div_ceil(TILE);
/// Floats of the sums of a task:
/// `[panel][tile of x][tile of weight rows][16 weight rows][16 x rows]`.
pub(super) const SUMS_LEN: usize = TASK_COLS.div_ceil(PANEL) * MAX_TILES * PANEL * TILE;

/// Layout of a task's part of its thread's scratch: the last inputs of a panel's weight rows,
/// padded with zeros to whole steps.
pub(super) type Scratch = [[u8; 4 * STEP]; PANEL];

/// Computes the sums of the task's columns and rows and stores them in its results.
///
/// # Safety
/// AMX may be used by this process, or is emulated. `reader` has the columns of `area`, whose x is
/// packed in pairs by tiles of 16 rows and one tile of the remainder.
#[inline(always)]
pub(super) unsafe fn sums(s: Avx512, reader: Plain<bf16>, area: &TaskOperands) {
    let few = area.row_tiles.len() <= FEW_TILES;
    let panels = || area.cols.clone().step_by(PANEL).map(|col| Panel { reader, area, col });
    let mut tiles = tile::PlainTiles::new();
    let parts = || Part::all(reader.inputs(), AMX_CALL_BLOCKS[usize::from(!few)]);
    // SAFETY: the caller's promise, for some columns of the task and a part of k at a time, in
    // order.
    unsafe {
        if few {
            for panel in panels() {
                for part in parts() {
                    panel.multiply(&mut tiles, part, None);
                }
                panel.finish(s);
            }
        } else {
            for part in parts() {
                for panel in panels() {
                    panel.multiply(&mut tiles, part, Some(panel.after(part)));
                }
            }
            for panel in panels() {
                panel.finish(s);
            }
        }
    }
}

/// Up to 32 columns of a task.
#[derive(Clone, Copy)]
struct Panel<'a> {
    reader: Plain<bf16>,
    area: &'a TaskOperands,
    col: usize,
}

/// A part of k: pairs of inputs from `unit` on.
#[derive(Clone, Copy)]
struct Part {
    unit: usize,
    blocks: usize,
    steps: usize,
    /// Pairs of inputs per step.
    pairs: usize,
    /// True if a row may end within the part, so that it must be copied.
    is_rest: bool,
}

impl Part {
    /// Returns the parts of `inputs` inputs in order: up to `blocks` whole blocks each, then whole
    /// steps, then the remainder.
    fn all(inputs: usize, blocks: usize) -> impl Iterator<Item = Part> {
        // The last of an odd number of inputs has no partner in memory and belongs to the
        // remainder.
        let (pairs, units) = (inputs / 2, inputs.div_ceil(2));
        let whole = pairs / BLOCK_UNITS;
        let of_blocks = move |block: usize| Part {
            unit: block * BLOCK_UNITS,
            blocks: blocks.min(whole - block),
            steps: BLOCK_UNITS / STEP,
            pairs: STEP,
            is_rest: false,
        };
        let unit = whole * BLOCK_UNITS;
        let steps = (pairs - unit) / STEP;
        let of_steps = Part { unit, blocks: 1, steps, pairs: STEP, is_rest: false };
        let unit = unit + steps * STEP;
        let rest = Part { unit, blocks: 1, steps: 1, pairs: units - unit, is_rest: true };
        let blocks = (0..whole).step_by(blocks).map(of_blocks);
        blocks.chain((steps > 0).then_some(of_steps)).chain((unit < units).then_some(rest))
    }

    /// Returns the number of pairs of inputs in all blocks.
    fn units(self) -> usize {
        self.blocks * self.steps * self.pairs
    }
}

impl Panel<'_> {
    /// Returns the weights of the panel from pair `unit` on.
    fn weight(&self, unit: usize) -> *const u8 {
        self.reader.row(self.col).cast::<u8>().wrapping_add(4 * unit)
    }

    /// Returns the weights that are multiplied after a part of this panel when there are many rows:
    /// the same part of the next panel, or the next part of the first panel.
    fn after(&self, part: Part) -> *const u8 {
        let col = self.col + PANEL;
        if col < self.area.cols.end {
            Panel { col, ..*self }.weight(part.unit)
        } else {
            Panel { col: self.area.cols.start, ..*self }.weight(part.unit + part.units())
        }
    }

    /// Adds the products of a part with all rows to the panel's sums, and prefetches the weights at
    /// `next`.
    ///
    /// # Safety
    /// The conditions of [`sums`] hold, and the preceding parts have been multiplied.
    unsafe fn multiply(
        &self,
        configured: &mut tile::PlainTiles,
        part: Part,
        next: Option<*const u8>,
    ) {
        let (weight, stride) = if part.is_rest {
            // SAFETY: the last pairs exist, at least in half, and at most one step of them is left.
            (unsafe { self.copy_rest(part.unit) }, 4 * STEP)
        } else {
            (self.weight(part.unit), 2 * self.reader.inputs())
        };
        let (tiles, row_tiles) = (self.area.tiles, self.area.row_tiles.clone());
        let calls = row_tiles.len().div_ceil(2);
        let prefetch_rows = tile::PrefetchRows::of_rows(next.map(|_| calls));
        let panel = (self.col - self.area.cols.start) / PANEL;
        for (call, tile) in row_tiles.clone().step_by(2).enumerate() {
            let second = tile + 1 < row_tiles.end;
            let prefetch_at = match next {
                // Later inputs of the same rows.
                None => weight.wrapping_add(AMX_PREFETCH_BYTES),
                Some(next) => next.wrapping_add(call * prefetch_rows.rows() * stride),
            };
            let call = tile::PlainCall {
                weight,
                weight_stride: stride,
                weight_rows: self.columns(),
                x: [
                    self.x(tile, part.unit),
                    if second { self.x(tile + 1, part.unit) } else { weight },
                ],
                x_rows: [tiles.height(tile), if second { tiles.height(tile + 1) } else { 0 }],
                // The buffer of packed x extends one vector beyond its last row.
                whole: next.is_some(),
                x_block: 4 * BLOCK_UNITS * tiles.rows,
                blocks: part.blocks,
                steps: part.steps,
                pairs: part.pairs,
                sums: self.tile_sums(tile),
                is_first: part.unit == 0,
                prefetch_rows,
                prefetch_at,
                prefetch_x_at: self.share_of_x_after(part, panel * calls + call),
            };
            // SAFETY: the caller's promise, for two tiles of x at most.
            unsafe { tile::plain(configured, &call) };
        }
    }

    /// Returns the address of the x that one call of a part prefetches for the next part when there
    /// are many rows. The calls of all panels prefetch their shares in order. After the last part
    /// another task starts with the first part.
    fn share_of_x_after(&self, part: Part, call: usize) -> *const u8 {
        let pair_bytes = 4 * self.area.tiles.rows;
        let after = part.unit + part.units();
        let at = if 2 * after < self.reader.inputs() { after * pair_bytes } else { 0 };
        let share = part.blocks * part.steps * tile::PREFETCH_X_BYTES;
        self.area.packed.pointer().cast_const().cast::<u8>().wrapping_add(at + call * share)
    }

    /// Returns the numbers of columns in the first and in the second tile of weight rows.
    fn columns(&self) -> [usize; 2] {
        let left = self.area.cols.end - self.col;
        [left.min(TILE), left.saturating_sub(TILE).min(TILE)]
    }

    /// Returns the sums of tile `tile` of x, which are two tiles.
    fn tile_sums(&self, tile: usize) -> *mut f32 {
        let (first, count) = (self.area.row_tiles.start, self.area.row_tiles.len());
        let panel = (self.col - self.area.cols.start) / PANEL;
        let at = (panel * count + tile - first) * PANEL * TILE;
        debug_assert!(at + PANEL * TILE <= SUMS_LEN);
        self.area.unfinished().wrapping_add(at)
    }

    /// Returns packed x of tile `tile` from pair `unit` on.
    fn x(&self, tile: usize, unit: usize) -> *const u8 {
        let tiles = self.area.tiles;
        let (block, within) = (unit / BLOCK_UNITS, unit % BLOCK_UNITS);
        let first = block * BLOCK_UNITS;
        let units = BLOCK_UNITS.min(self.reader.inputs().div_ceil(2) - first);
        let at = first * tiles.rows + tiles.start(tile) * units + within * tiles.height(tile);
        self.area.packed.pointer().wrapping_add(at).cast_const().cast()
    }

    /// Copies the weights from pair `unit` on, at most one step, and pads them with zeros.
    ///
    /// # Safety
    /// The columns exist.
    unsafe fn copy_rest(&self, unit: usize) -> *const u8 {
        let bytes = 2 * (self.reader.inputs() - 2 * unit);
        // SAFETY: the scratch is the thread's own and large enough; a row has `bytes` bytes from
        // `unit` on.
        unsafe {
            let rest = &mut *self.area.scratch.cast::<Scratch>();
            for (row, to) in rest.iter_mut().enumerate().take(self.columns().iter().sum()) {
                let from = self.reader.row(self.col + row).add(2 * unit).cast::<u8>();
                *to = [0; 4 * STEP];
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes);
            }
            rest.as_ptr().cast()
        }
    }

    /// Transposes the sums `[weight row][x row]` into results `[x row][column]`.
    ///
    /// # Safety
    /// The sums of all tiles of x are complete.
    #[inline(always)]
    unsafe fn finish(&self, s: Avx512) {
        let (tiles, row_tiles) = (self.area.tiles, self.area.row_tiles.clone());
        let first_row = tiles.start(row_tiles.start);
        for tile in row_tiles {
            for (half, columns) in self.columns().into_iter().enumerate().filter(|half| half.1 > 0)
            {
                let from = self.tile_sums(tile).wrapping_add(half * TILE * TILE);
                let row = tiles.start(tile) - first_row;
                let col = self.col - self.area.cols.start + half * TILE;
                debug_assert!(columns <= TILE && col + TILE <= TASK_COLS);
                // SAFETY: a tile of sums is 16 rows of 64 bytes; results have space for whole
                // vectors of columns, whatever the lanes beyond the last column hold.
                unsafe {
                    let rows = s.transpose(from.cast_const().cast(), 4 * TILE);
                    for (r, &values) in rows.as_ref().iter().enumerate().take(tiles.height(tile)) {
                        let to = self.area.results().add((row + r) * RESULT_STRIDE + col);
                        s.store(to, s.bits(values));
                    }
                }
            }
        }
    }
}
