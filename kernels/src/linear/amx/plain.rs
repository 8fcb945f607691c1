//! Sums of plain bf16 weights, 32 columns of a task at a time.

use half::bf16;

use super::tile::{self, TILE};
use crate::linear::form::Plain;
use crate::linear::task::Area;
use crate::linear::{BLOCK_UNITS, PACK_ROWS, TASK_COLS};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;

/// Whole blocks of packed x of a kernel call, at most. The weight rows of a call stay in L2 for the
/// other tiles of x; reading and writing its sums is little beside it.
const CALL_BLOCKS: usize = 16;
/// Pairs of inputs of a step.
const STEP: usize = 16;
/// Tiles of x rows of a pass, at most.
const MAX_TILES: usize = PACK_ROWS.div_ceil(TILE);

/// What a task uses of its thread's scratch.
#[repr(C, align(64))]
pub(super) struct Scratch {
    /// `[tile of x][tile of weight rows][16 weight rows][16 x rows]`.
    sums: [[[f32; TILE * TILE]; 2]; MAX_TILES],
    /// The last inputs of the weight rows, with zeros up to whole steps.
    tail: [[u8; 4 * STEP]; 2 * TILE],
}

/// Leaves the sums of the task's columns and rows in its results.
///
/// # Safety
/// AMX may be used by this process, or is emulated. `form` has the columns of `area`, whose x is
/// packed in pairs by tiles of at most 16 rows.
#[inline(always)]
pub(super) unsafe fn sums(s: Avx512, form: Plain<bf16>, area: &Area) {
    for col in area.cols.clone().step_by(2 * TILE) {
        let panel = Panel { form, area, col };
        // SAFETY: the caller's promise, for some columns of the task.
        unsafe {
            panel.multiply();
            panel.finish(s);
        }
    }
}

/// Up to 32 columns of a task.
struct Panel<'a> {
    form: Plain<bf16>,
    area: &'a Area,
    col: usize,
}

/// A part of k: pairs of inputs from `unit` on.
#[derive(Clone, Copy)]
struct Part {
    unit: usize,
    blocks: usize,
    steps: usize,
    /// Of a step.
    pairs: usize,
}

impl Panel<'_> {
    /// # Safety
    /// As [`sums`].
    unsafe fn multiply(&self) {
        // Of an odd number of inputs the last has no partner in memory: it belongs to the tail.
        let (pairs, units) = (self.form.inputs() / 2, self.form.inputs().div_ceil(2));
        let row_bytes = 2 * self.form.inputs();
        let first_row = self.form.row(self.col).cast::<u8>();
        let at = |unit: usize| (first_row.wrapping_add(4 * unit), row_bytes);
        let whole = pairs / BLOCK_UNITS;
        for block in (0..whole).step_by(CALL_BLOCKS) {
            let unit = block * BLOCK_UNITS;
            let blocks = CALL_BLOCKS.min(whole - block);
            let part = Part { unit, blocks, steps: BLOCK_UNITS / STEP, pairs: STEP };
            // SAFETY: these blocks exist in whole.
            unsafe { self.multiply_part(part, at(unit)) };
        }
        let unit = whole * BLOCK_UNITS;
        let steps = (pairs - unit) / STEP;
        if steps > 0 {
            // SAFETY: these steps exist in whole.
            unsafe { self.multiply_part(Part { unit, blocks: 1, steps, pairs: STEP }, at(unit)) };
        }
        let unit = unit + steps * STEP;
        if unit < units {
            let part = Part { unit, blocks: 1, steps: 1, pairs: units - unit };
            // SAFETY: the last pairs exist, at least in half, and at most one step of them is left.
            unsafe {
                let tail = self.copy_tail(unit);
                self.multiply_part(part, (tail, 4 * STEP));
            }
        }
    }

    /// Columns of the first and of the second tile of weight rows.
    fn columns(&self) -> [usize; 2] {
        let left = self.area.cols.end - self.col;
        [left.min(TILE), left.saturating_sub(TILE).min(TILE)]
    }

    fn scratch(&self) -> *mut Scratch {
        self.area.scratch.cast()
    }

    /// Sums of tile `tile` of x: two tiles.
    fn tile_sums(&self, tile: usize) -> *mut f32 {
        let index = tile - self.area.row_tiles.start;
        debug_assert!(index < MAX_TILES);
        self.scratch().cast::<f32>().wrapping_add(index * 2 * TILE * TILE)
    }

    /// Packed x of tile `tile` from pair `unit` on.
    fn x(&self, tile: usize, unit: usize) -> *const u8 {
        let tiles = self.area.tiles;
        let (block, within) = (unit / BLOCK_UNITS, unit % BLOCK_UNITS);
        let first = block * BLOCK_UNITS;
        let units = BLOCK_UNITS.min(self.form.inputs().div_ceil(2) - first);
        let at = first * tiles.rows() + tiles.start(tile) * units + within * tiles.height(tile);
        self.area.packed.pointer().wrapping_add(at).cast_const().cast()
    }

    /// All tiles of x times a part of the weight, which lies at `weight`, rows `stride` bytes apart.
    ///
    /// # Safety
    /// As [`sums`]; the part exists, of columns and x.
    unsafe fn multiply_part(&self, part: Part, (weight, stride): (*const u8, usize)) {
        let Part { unit, blocks, steps, pairs } = part;
        let (tiles, row_tiles) = (self.area.tiles, self.area.row_tiles.clone());
        for tile in row_tiles.clone().step_by(2) {
            let second = tile + 1 < row_tiles.end;
            let call = tile::PlainCall {
                weight,
                weight_stride: stride,
                weight_rows: self.columns(),
                x: [self.x(tile, unit), if second { self.x(tile + 1, unit) } else { weight }],
                x_rows: [tiles.height(tile), if second { tiles.height(tile + 1) } else { 0 }],
                x_block: 4 * BLOCK_UNITS * tiles.rows(),
                blocks,
                steps,
                pairs,
                sums: self.tile_sums(tile),
                is_first: unit == 0,
                // The other tiles of x find the weight in L2.
                prefetch: tile == row_tiles.start,
            };
            // SAFETY: the caller's promise, for two tiles of x at most.
            unsafe { tile::plain(&call) };
        }
    }

    /// Copies the weights from pair `unit` on, at most one step, with zeros behind them.
    ///
    /// # Safety
    /// The columns exist.
    unsafe fn copy_tail(&self, unit: usize) -> *const u8 {
        let bytes = 2 * (self.form.inputs() - 2 * unit);
        // SAFETY: the scratch is the thread's own and large enough; a row has `bytes` bytes from
        // `unit` on.
        unsafe {
            let tail = &mut (*self.scratch()).tail;
            for (row, to) in tail.iter_mut().enumerate().take(self.columns().iter().sum()) {
                let from = self.form.row(self.col + row).add(2 * unit).cast::<u8>();
                *to = [0; 4 * STEP];
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes);
            }
            tail.as_ptr().cast()
        }
    }

    /// Turns the sums `[weight row][x row]` into results `[x row][column]`.
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
                // SAFETY: a tile of sums is 16 rows of 64 bytes; results have room for whole vectors
                // of columns, whatever the lanes beyond the last column hold.
                unsafe {
                    let rows = s.transpose(from.cast_const().cast(), 4 * TILE);
                    for (r, &values) in rows.as_ref().iter().enumerate().take(tiles.height(tile)) {
                        let to = self.area.results().add((row + r) * TASK_COLS + col);
                        s.store(to, s.bits(values));
                    }
                }
            }
        }
    }
}
