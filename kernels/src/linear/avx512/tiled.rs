//! Kernel for more rows: a block of `PANELS` panels is widened to f32 once, into L1, and a register
//! tile of some rows by `PANELS` vectors runs over it for every tile of rows.

#![allow(
    clippy::needless_range_loop,
    reason = "panels and rows are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::chains::{COLS, Chains, LINE, PANELS, STEPS};
use super::panel::{Panel, widen};
use crate::linear::prefetch::{Lines, Prefetcher};
use crate::linear::reader::Plain;
use crate::linear::task::TaskOperands;
use crate::simd::Simd;
use crate::simd::avx512::Avx512;

/// Steps of the product per step of the prefetcher.
const PREFETCH_STEPS: usize = 4;
/// Floats of a step of a widened block.
const STEP_LEN: usize = PANELS * Avx512::LANES;

/// Computes the chains of all columns and rows of a task.
///
/// # Safety
/// x is packed, and the operands of the task are valid as described by its types.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn chains(reader: Plain<bf16>, area: &TaskOperands, chains: &Chains) {
    let size = area.tiles.block;
    let inputs = |block: usize| block * size..reader.inputs().min((block + 1) * size);
    for (run, is_last) in area.runs(size, reader.inputs().div_ceil(size)) {
        for panel in chains.groups() {
            let count = chains.together(panel);
            for block in run.clone() {
                let lines = |panel: usize, block: usize| {
                    let cols = chains.together(panel) * chains.width(panel);
                    let first = chains.column(panel);
                    reader.lines(first..first + cols, inputs(block))
                };
                let next = if block + 1 < run.end {
                    lines(panel, block + 1)
                } else if panel + count < chains.panels() {
                    lines(panel + count, run.start)
                } else if !is_last {
                    lines(0, run.end)
                } else {
                    Lines::NONE
                };
                let part = Part { reader, area, chains, panel, inputs: inputs(block) };
                // SAFETY: these panels and the block exist; the rest is the caller's promise.
                unsafe {
                    if count == PANELS { part.add::<PANELS>(next) } else { part.add::<1>(next) }
                }
            }
        }
    }
}

/// A block of some panels.
struct Part<'a> {
    reader: Plain<bf16>,
    area: &'a TaskOperands,
    chains: &'a Chains,
    /// First of the panels.
    panel: usize,
    inputs: Range<usize>,
}

impl Part<'_> {
    /// Adds the block's products to the chains; the first block sets them. Meanwhile prefetches
    /// `next`.
    ///
    /// # Safety
    /// `P` panels from the first on and the block exist; `area` has packed x and space for a block.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add<const P: usize>(self, next: Lines) {
        let Part { reader, area, chains, panel, inputs } = self;
        for p in 0..P {
            let panel = Panel::of(reader, chains, panel + p);
            // SAFETY: the panel has these inputs; the scratch has space for a block.
            unsafe { expand(panel, inputs.clone(), area.scratch.add(p * Avx512::LANES)) };
        }
        let lines = inputs.len().div_ceil(LINE);
        let tiles = area.row_tiles.clone();
        let mut prefetcher = Prefetcher::new(next, lines * STEPS / PREFETCH_STEPS * tiles.len());
        let first_row = area.tiles.start(tiles.start);
        for tile in tiles {
            let row = area.tiles.start(tile);
            let product = Product::<P> {
                x: area
                    .packed
                    .pointer()
                    .wrapping_add(inputs.start * area.tiles.rows + row * lines * LINE),
                weight: area.scratch,
                lines,
                chains: chains.of(panel, row - first_row),
                is_first: inputs.start == 0,
            };
            macro_rules! rows {
                ($($rows:literal)*) => {
                    match area.tiles.height(tile) {
                        // SAFETY: packed rows, chains and the widened block are as described by
                        // `product`.
                        $($rows => unsafe { product.multiply::<$rows>(&mut prefetcher) },)*
                        _ => unreachable!("more rows than `direct` takes are in tiles of 4 to 6"),
                    }
                };
            }
            rows!(4 5 6);
        }
    }
}

/// Widens inputs of a panel to f32, with steps `STEP_LEN` apart.
///
/// # Safety
/// The inputs exist, and the first is at the start of a line; `to` has space for them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn expand(panel: Panel, inputs: Range<usize>, to: *mut f32) {
    let (first, whole, left) = (inputs.start / LINE, inputs.len() / LINE, inputs.len() % LINE);
    // SAFETY: the caller's promise.
    unsafe {
        for line in 0..whole {
            store(panel.line(first + line), to.add(line * STEPS * STEP_LEN));
        }
        if left > 0 {
            store(panel.part(first + whole, left), to.add(whole * STEPS * STEP_LEN));
        }
    }
}

/// Stores the widened steps of a line.
///
/// # Safety
/// `to` has space for them.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(quarters: [__m512i; COLS], to: *mut f32) {
    for step in 0..STEPS {
        let weights = widen(quarters[step / 2], step % 2 == 1);
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to.add(step * STEP_LEN), weights) };
    }
}

/// A tile of rows times a widened block of `P` panels.
#[derive(Clone, Copy)]
struct Product<const P: usize> {
    x: *const f32,
    weight: *const f32,
    lines: usize,
    /// Chains of the tile's first row and all panels, followed by those of the other rows.
    chains: *mut f32,
    is_first: bool,
}

impl<const P: usize> Product<P> {
    /// Adds the products of `R` rows to their chains; sets them if `is_first`.
    ///
    /// # Safety
    /// The memory to which `self` points has `R` rows and `lines` lines.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn multiply<const R: usize>(self, prefetcher: &mut Prefetcher) {
        // SAFETY: this function's own features.
        let s = unsafe { Avx512::new() };
        let Product { mut x, mut weight, .. } = self;
        let mut sums = [[_mm512_setzero_ps(); P]; R];
        if !self.is_first {
            for r in 0..R {
                for p in 0..P {
                    // SAFETY: the chains of every panel have `R` rows from here on.
                    sums[r][p] = unsafe { s.load(self.chains.add((r * P + p) * Avx512::LANES)) };
                }
            }
        }
        for _ in 0..self.lines * STEPS / PREFETCH_STEPS {
            prefetcher.step(s);
            for step in 0..PREFETCH_STEPS {
                // SAFETY: these are steps of x and of the widened block.
                unsafe {
                    let mut weights = [_mm512_setzero_ps(); P];
                    for p in 0..P {
                        weights[p] = s.load(weight.add(step * STEP_LEN + p * Avx512::LANES));
                    }
                    for r in 0..R {
                        let x = _mm_loadu_ps(x.add((step * R + r) * 4));
                        let x = _mm512_broadcast_f32x4(x);
                        for p in 0..P {
                            sums[r][p] = _mm512_fmadd_ps(weights[p], x, sums[r][p]);
                        }
                    }
                }
            }
            x = x.wrapping_add(PREFETCH_STEPS * R * 4);
            weight = weight.wrapping_add(PREFETCH_STEPS * STEP_LEN);
        }
        for r in 0..R {
            for p in 0..P {
                // SAFETY: as above.
                unsafe { s.store(self.chains.add((r * P + p) * Avx512::LANES), sums[r][p]) };
            }
        }
    }
}
