//! bf16 weights against whole sixteens of rows, with AVX-512: vector lanes are eight rows by two columns.
//!
//! Two neighbouring columns are widened into one stream, their inputs in turn, which takes a quarter of
//! the shuffles that vectors of columns take. Two weights are one broadcast; it is multiplied by the even
//! rows, each twice, and by the odd rows, each twice, which loads make of packed x on their way. So 16
//! loads feed 28 products: one column to a broadcast would need a load for each product at 16 rows, and
//! the machines give fewer. Each output is the same chain of multiply-adds as in `tiled`.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::ahead::{Ahead, Lines};
use super::form::Plain;
use super::task::{Area, Sums};
use super::tiled::TILE_LEN;
use super::{BLOCK_UNITS, PACK_ROWS, TASK_COLS};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use crate::variant::Variant;

/// Rows of a tile.
pub(super) const ROWS: usize = Avx512::LANES;
/// Rows of a linear at most: beyond, widening counts for less, and `tiled` is as fast.
const MOST_ROWS: usize = 2 * ROWS;
/// Outputs and inputs of a linear at least: short columns end before the rest is in flow, and few of
/// them make uneven tasks.
const LEAST: usize = 2048;
/// Pairs of columns of the register tile, which leaves registers for x and two broadcasts.
const PAIRS: usize = 14;
/// Columns widened together.
pub(super) const COLS: usize = 2 * PAIRS;
/// Columns of a task at most.
pub(super) const MOST_COLS: usize = TASK_COLS / COLS * COLS;
/// Inputs of a widened chunk of a column.
const CHUNK: usize = 2 * Avx512::LANES;
/// Dwords of a chunk that lie in one 128-bit lane, which is as far as interleaving reaches.
const LANE: usize = 4;
/// Inputs of a dword.
const PER_DWORD: usize = 2;
/// Floats of a widened pair of columns.
const PAIR_LEN: usize = 2 * BLOCK_UNITS;

const _: () = assert!(PAIRS * PAIR_LEN <= TILE_LEN);
const _: () = assert!((TASK_COLS + MOST_COLS) * MOST_ROWS <= PACK_ROWS * TASK_COLS);

/// Whether the rows of a linear on plain bf16 weights are worked on here.
pub(super) fn fits(variant: Variant, rows: usize, n: usize, k: usize) -> bool {
    variant == Variant::Avx512
        && rows.is_multiple_of(ROWS)
        && rows <= MOST_ROWS
        && n.min(k) >= LEAST
}

/// Leaves the sums of the task's columns and rows in its results.
///
/// # Safety
/// The machine has AVX-512; x is packed by tiles of `ROWS` rows; the task's own conditions hold.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn linear_plain(task: &Sums<Plain<bf16>>) {
    // SAFETY: the caller's promise.
    unsafe { sums(Avx512::new(), task.form, &task.area) };
}

/// # Safety
/// As [`linear_plain`].
#[inline(always)]
unsafe fn sums(s: Avx512, form: Plain<bf16>, area: &Area) {
    let cols = area.cols.clone();
    let group = |first: usize| first..cols.end.min(first + COLS);
    let blocks = form.inputs().div_ceil(BLOCK_UNITS);
    let tiles = area.row_tiles.len();
    for (run, last_run) in area.runs(blocks) {
        for first in cols.clone().step_by(COLS) {
            let totals = totals(area).wrapping_add((first - cols.start) * tiles * ROWS);
            for block in run.clone() {
                let next = if block + 1 < run.end {
                    form.lines(group(first), block + 1, PER_DWORD)
                } else if first + COLS < cols.end {
                    form.lines(group(first + COLS), run.start, PER_DWORD)
                } else if !last_run {
                    form.lines(group(cols.start), run.end, PER_DWORD)
                } else {
                    Lines::NONE
                };
                let part = Part { form, cols: group(first), block, totals };
                // SAFETY: columns and block exist; packed rows and scratch are the task's.
                unsafe { part.add(s, area, next) };
            }
        }
    }
    // SAFETY: all totals are complete.
    unsafe { finish(area) };
}

/// Sums so far, beyond the results: for every pair of columns a tile's even rows, then its odd rows.
fn totals(area: &Area) -> *mut f32 {
    area.results().wrapping_add(MOST_ROWS * TASK_COLS)
}

/// A block of some columns.
struct Part {
    form: Plain<bf16>,
    cols: Range<usize>,
    block: usize,
    /// Of the first pair of columns.
    totals: *mut f32,
}

impl Part {
    /// Adds the block to the totals, which the first block sets. `next` is the memory to ask for
    /// meanwhile.
    ///
    /// # Safety
    /// At most `COLS` columns, which exist, as the block does; `area` has x and room for totals.
    #[inline(always)]
    unsafe fn add(self, s: Avx512, area: &Area, next: Lines) {
        let first = self.block * BLOCK_UNITS;
        let units = BLOCK_UNITS.min(self.form.inputs() - first);
        for (pair, column) in self.cols.clone().step_by(2).enumerate() {
            let column_of = |column: usize| self.form.row(column).wrapping_add(first).cast();
            // Of an odd number of columns the last is its own partner.
            let partner = (column + 1).min(self.cols.end - 1);
            // SAFETY: the columns have these units; the scratch has room for the pair.
            unsafe {
                let to = area.scratch.add(pair * PAIR_LEN);
                widen(s, [column_of(column), column_of(partner)], units, to);
            }
        }
        let tiles = area.row_tiles.len();
        let mut ahead = Ahead::new(next, units / LANE * tiles);
        for tile in 0..tiles {
            let row = area.tiles.start(area.row_tiles.start + tile);
            let product = Product {
                x: area.packed.pointer().wrapping_add(first * area.tiles.rows() + row * units),
                weight: area.scratch,
                units,
                totals: self.totals.wrapping_add(tile * 2 * ROWS),
                stride: tiles * 2 * ROWS,
                is_first: self.block == 0,
            };
            // SAFETY: packed rows, totals and the widened block hold what `product` says.
            unsafe { product.multiply(s, &mut ahead) };
        }
    }
}

/// Where a dword of a chunk lies in the widened chunk of a pair: its even unit; the odd one is a vector
/// further.
const fn place(dword: usize) -> usize {
    dword % LANE / 2 * 2 * Avx512::LANES + (dword / LANE * 2 + dword % 2) * 2
}

/// Writes the units of two columns as f32, in turn.
///
/// # Safety
/// The columns have `units <= BLOCK_UNITS` units; `to` has room for `PAIR_LEN`.
#[inline(always)]
unsafe fn widen(s: Avx512, columns: [*const u8; 2], units: usize, to: *mut f32) {
    let (whole, left) = (units / CHUNK, units % CHUNK);
    for chunk in 0..whole {
        // SAFETY: the chunk exists in full.
        unsafe {
            let [a, b] = columns.map(|column| column.add(2 * CHUNK * chunk));
            store_pair(s, s.load_dwords(a), s.load_dwords(b), to.add(2 * CHUNK * chunk));
        }
    }
    if left > 0 {
        let mut buffer = [[0u8; 2 * CHUNK]; 2];
        for (column, to) in columns.into_iter().zip(&mut buffer) {
            // SAFETY: these units exist, fewer than a chunk.
            unsafe {
                let from = column.add(2 * CHUNK * whole);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), 2 * left);
            }
        }
        // SAFETY: the buffers hold a chunk, and a block is a whole number of chunks.
        unsafe {
            let [a, b] = buffer.each_ref().map(|chunk| chunk.as_ptr());
            store_pair(s, s.load_dwords(a), s.load_dwords(b), to.add(2 * CHUNK * whole));
        }
    }
}

/// A chunk of two columns.
///
/// # Safety
/// `to` has room for it.
#[inline(always)]
unsafe fn store_pair(s: Avx512, a: __m512i, b: __m512i, to: *mut f32) {
    // SAFETY: the token says that the instructions exist; the rest is the caller's promise.
    unsafe {
        let halves = [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
        for (half, dwords) in halves.into_iter().enumerate() {
            let to = to.add(half * 2 * Avx512::LANES);
            s.store(to, s.low_bf16(dwords));
            s.store(to.add(Avx512::LANES), s.high_bf16(dwords));
        }
    }
}

/// A tile of rows times the widened columns.
struct Product {
    /// `[unit][row]`.
    x: *const f32,
    weight: *const f32,
    units: usize,
    /// Of the first pair of columns; pairs are `stride` apart.
    totals: *mut f32,
    stride: usize,
    is_first: bool,
}

impl Product {
    /// # Safety
    /// What `self` points to has `PAIRS` pairs of columns and `ROWS` rows.
    #[inline(always)]
    unsafe fn multiply(self, s: Avx512, ahead: &mut Ahead) {
        let Product { mut x, mut weight, .. } = self;
        let mut parts = [[s.zero(); 2]; PAIRS];
        for _ in 0..self.units / CHUNK {
            for _ in 0..Avx512::LANES / LANE {
                for half in 0..2 {
                    ahead.step(s);
                    for dword in 0..2 {
                        for odd in 0..2 {
                            let at = place(2 * half + dword) + odd * Avx512::LANES;
                            // SAFETY: these are units of x and of the widened columns.
                            unsafe { multiply_unit(s, weight.add(at), x, &mut parts) };
                            x = x.wrapping_add(ROWS);
                        }
                    }
                }
                weight = weight.wrapping_add(LANE);
            }
            weight = weight.wrapping_add(2 * CHUNK - Avx512::LANES);
        }
        for unit in 0..self.units % CHUNK {
            let at = place(unit / 2) + unit % 2 * Avx512::LANES;
            // SAFETY: as above.
            unsafe { multiply_unit(s, weight.add(at), x, &mut parts) };
            x = x.wrapping_add(ROWS);
        }
        for (pair, parts) in parts.into_iter().enumerate() {
            for (odd, part) in parts.into_iter().enumerate() {
                // SAFETY: there is room for the totals of all pairs.
                unsafe {
                    let to = self.totals.add(pair * self.stride + odd * Avx512::LANES);
                    let total = if self.is_first { s.zero() } else { s.load(to) };
                    s.store(to, s.add(total, part));
                }
            }
        }
    }
}

/// One unit of all columns.
///
/// # Safety
/// `weight` holds two values for every pair of columns, `x` one for every row.
#[inline(always)]
unsafe fn multiply_unit(
    s: Avx512,
    weight: *const f32,
    x: *const f32,
    parts: &mut [[__m512; 2]; PAIRS],
) {
    // SAFETY: the caller's promise, and the token says that the instructions exist.
    unsafe {
        let (even, odd) = rows_twice(x);
        for (pair, parts) in parts.iter_mut().enumerate() {
            let two = weight.add(pair * PAIR_LEN).cast::<f64>().read_unaligned();
            let weights = _mm512_castpd_ps(_mm512_set1_pd(two));
            *parts = [s.fma(weights, even, parts[0]), s.fma(weights, odd, parts[1])];
        }
    }
}

/// The even rows, each twice, and the odd ones. As instructions of their own they stay loads, where one
/// load and two shuffles would take a port from the products.
///
/// # Safety
/// The machine has AVX-512; `from` holds `ROWS` values.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn rows_twice(from: *const f32) -> (__m512, __m512) {
    let (even, odd): (__m512, __m512);
    // SAFETY: the caller's promise; nothing is written but the two registers.
    unsafe {
        std::arch::asm!(
            "vmovsldup {even}, [{from}]",
            "vmovshdup {odd}, [{from}]",
            even = out(zmm_reg) even,
            odd = lateout(zmm_reg) odd,
            from = in(reg) from,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    (even, odd)
}

/// Brings totals into the order of results.
///
/// # Safety
/// The totals are complete.
#[inline(always)]
unsafe fn finish(area: &Area) {
    let tiles = area.row_tiles.len();
    for row in 0..tiles * ROWS {
        let (tile, row_of_tile) = (row / ROWS, row % ROWS);
        let from = totals(area).wrapping_add(tile * 2 * ROWS);
        let from = from.wrapping_add(row_of_tile % 2 * ROWS + row_of_tile / 2 * 2);
        let to = area.results().wrapping_add(row * TASK_COLS);
        for pair in 0..area.cols.len().div_ceil(2) {
            // SAFETY: there are totals of every pair and row; a row of results has room for pairs.
            unsafe {
                let two = from.add(pair * tiles * 2 * ROWS).cast::<[f32; 2]>().read();
                to.add(2 * pair).cast::<[f32; 2]>().write(two);
            }
        }
    }
}
