//! `out = epilogue(x · weightᵀ + bias)` for row-major weights `[n, k]`, exactly as they lie in the
//! checkpoint: nothing is repacked.
//!
//! A task is a block of output columns for a block of rows. Within it: block of k, then tile of
//! weight rows (converted to f32 once when several row tiles follow), then tile of rows. See
//! `tile` for the order of sums, which none of this touches.

mod epilogue;
pub(crate) mod tile;

use crate::element::Element;
use crate::scratch::Shared;
use crate::simd::{MAX_LANES, Simd, SimdElement};
use crate::variant::SimdTask;
use crate::{Kernels, round_up};
use epilogue::Epilogue;
pub(crate) use epilogue::{load_up_to, store_up_to};
use tile::{TileShape, pack_row, tile};

/// Rows packed at a time; beyond it the weight is read again.
const PACK_ROWS: usize = 256;
/// Rows of one task: packed rows of one k block and their accumulators stay in L2.
const TASK_ROWS: usize = 128;
/// Output columns of one task; a multiple of every variant's tile.
const TASK_COLS: usize = 24;
/// Elements of k per block: a converted tile of weight rows stays in L1.
const BLOCK_K: usize = 512;
/// Padding of packed rows, f32: rows a power of two apart would share cache sets.
const ROW_PAD: usize = 16;
/// Packing more elements than this is worth a run of its own.
const PARALLEL_PACK: usize = 1 << 18;

/// Where the result of a linear goes. All slices are `[rows, n]` and written in full.
#[derive(Debug)]
pub enum LinearOut<'a, T> {
    Store(&'a mut [T]),
    /// `max(result, 0)`.
    Relu(&'a mut [T]),
    /// The erf form.
    Gelu(&'a mut [T]),
    /// `silu(gate) * result`.
    SiluMul {
        gate: &'a [T],
        out: &'a mut [T],
    },
    /// `out += result`: the residual stream, in place.
    AddTo(&'a mut [f32]),
    StoreF32(&'a mut [f32]),
}

/// One linear operation.
#[derive(Debug)]
pub struct Linear<'a, T> {
    pub rows: usize,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// `[rows, k]`.
    pub x: &'a [T],
    /// `[n, k]`; fastest on a 64-byte boundary.
    pub weight: &'a [T],
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    pub out: LinearOut<'a, T>,
}

/// Floats of shared scratch for packed rows.
pub(crate) fn packed_len(rows: usize, k: usize) -> usize {
    rows.clamp(1, PACK_ROWS) * packed_stride(k)
}

/// Floats of scratch per thread.
pub(crate) fn thread_len() -> usize {
    ACCUMULATORS + WEIGHT_TILE
}

const ACCUMULATORS: usize = TASK_ROWS * TASK_COLS * MAX_LANES;
const WEIGHT_TILE: usize = 8 * (BLOCK_K + ROW_PAD);

fn packed_stride(k: usize) -> usize {
    round_up(k, 2 * MAX_LANES) + ROW_PAD
}

impl Kernels {
    /// Runs a linear. Each row's result depends on that row alone, bit for bit.
    pub fn linear<T: Element>(&self, linear: Linear<'_, T>) {
        let Linear { rows, n, k, x, weight, bias, out } = linear;
        assert!(k >= 1, "a linear has inputs");
        assert!(k <= self.limits.linear_inputs, "k {k} is beyond the scratch limits");
        assert_eq!(x.len(), rows * k, "x is [rows, k]");
        assert_eq!(weight.len(), n * k, "weight is [n, k]");
        assert!(bias.is_none_or(|bias| bias.len() == n), "bias is [n]");
        let epilogue = Epilogue::new(out, rows * n);
        let stride = packed_stride(k);
        let pass_rows = (self.packed.len() / stride).min(PACK_ROWS);
        assert!(pass_rows >= 1, "scratch holds at least one packed row");
        for first_row in (0..rows).step_by(pass_rows) {
            let pass = Pass {
                rows: pass_rows.min(rows - first_row),
                n,
                k,
                x: x[first_row * k..].as_ptr(),
                packed: Shared(self.packed.as_mut_ptr()),
                stride,
                weight: weight.as_ptr(),
                bias: bias.map(<[f32]>::as_ptr),
                epilogue: epilogue.skip(first_row * n),
            };
            self.linear_pass(pass);
        }
    }

    fn linear_pass<T: Element>(&self, pass: Pass<T>) {
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let pack = |first: usize, count: usize| {
            // SAFETY: the variant was checked when the kernels were built; rows `first..first +
            // count` of x and of the packed scratch exist, and no two tasks pack the same row.
            unsafe { T::pack(variant, Pack { pass, first, count }) };
        };
        if pass.rows * pass.k >= PARALLEL_PACK {
            let chunk = 8;
            self.run_linear(pass.rows.div_ceil(chunk), &|task, _| {
                pack(task * chunk, chunk.min(pass.rows - task * chunk));
            });
        } else {
            pack(0, pass.rows);
        }
        let row_blocks = pass.rows.div_ceil(TASK_ROWS);
        let block_rows = pass.rows.div_ceil(row_blocks);
        self.run_linear(pass.n.div_ceil(TASK_COLS) * row_blocks, &|task, thread| {
            // Row blocks of the same columns follow each other: the weight comes from memory once.
            let (block, columns) = (task % row_blocks, task / row_blocks);
            let rows = block * block_rows..pass.rows.min((block + 1) * block_rows);
            let cols = columns * TASK_COLS..pass.n.min((columns + 1) * TASK_COLS);
            let scratch = per_thread.of(thread);
            // SAFETY: the variant was checked when the kernels were built. Rows and columns lie
            // within the shapes asserted in `linear`, tasks write disjoint outputs, and `scratch`
            // belongs to this thread.
            unsafe { T::linear_block(variant, Block { pass, rows, cols, scratch }) };
        });
    }
}

/// One pass over the weight: pointers of a [`Linear`] for at most `PACK_ROWS` rows.
#[derive(Debug)]
pub struct Pass<T> {
    rows: usize,
    n: usize,
    k: usize,
    x: *const T,
    packed: Shared<f32>,
    stride: usize,
    weight: *const T,
    bias: Option<*const f32>,
    epilogue: Epilogue<T>,
}

impl<T> Clone for Pass<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Pass<T> {}

// SAFETY: the pointers come from slices borrowed for the whole call; inputs are only read, and
// outputs and packed rows are written by one task each.
unsafe impl<T: Sync> Sync for Pass<T> {}

/// Packs rows `first..first + count` of a pass.
#[derive(Debug)]
pub struct Pack<T> {
    pass: Pass<T>,
    first: usize,
    count: usize,
}

impl<T: Element> SimdTask for Pack<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pass { k, x, packed, stride, .. } = self.pass;
        for row in self.first..self.first + self.count {
            // SAFETY: the row lies within x and within the packed scratch, whose stride is at least
            // k in whole pairs.
            unsafe { pack_row(s, x.add(row * k), k, packed.pointer().add(row * stride)) };
        }
    }
}

/// One task: the outputs of some rows and columns.
#[derive(Debug)]
pub struct Block<T> {
    pass: Pass<T>,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
    scratch: *mut f32,
}

impl<T: Element> SimdTask for Block<T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Pass { k, .. } = self.pass;
        let (tile_rows, tile_cols) = S::TILE;
        let row_tiles = self.rows.len().div_ceil(tile_rows);
        // One tile of rows reads the weight straight through; more share it by blocks of k. Two
        // convert bf16 twice in registers, which costs less than a detour through L1.
        let block_k = if row_tiles == 1 { k } else { BLOCK_K };
        let convert = row_tiles > 2 && !T::IS_F32;
        for k0 in (0..k).step_by(block_k) {
            let k1 = k.min(k0 + block_k);
            for col in self.cols.clone().step_by(tile_cols) {
                let cols = tile_cols.min(self.cols.end - col);
                if convert {
                    self.converted(s, (k0, k1), (col, cols));
                } else {
                    self.direct(s, (k0, k1), (col, cols));
                }
            }
        }
        let Block { pass, rows, cols, scratch } = self;
        for row in rows.clone() {
            // SAFETY: the accumulators of this row are complete, and row and columns lie within the
            // outputs.
            unsafe {
                let acc = scratch.add((row - rows.start) * TASK_COLS * S::LANES);
                let bias = pass.bias.map(|bias| bias.add(cols.start));
                pass.epilogue.finish(s, acc, bias, row * pass.n + cols.start, cols.len());
            }
        }
    }
}

impl<T: Element> Block<T> {
    /// All row tiles against weight rows `col..col + cols`, read in their own format.
    #[inline(always)]
    fn direct<S: Simd>(&self, s: S, (k0, k1): (usize, usize), (col, cols): (usize, usize)) {
        let pair = 2 * S::LANES;
        let k = self.pass.k;
        let shape = TileShape {
            x_stride: self.pass.stride,
            w_stride: k,
            pairs: (k1 - k0) / pair,
            tail: (k1 - k0) % pair,
            acc_stride: TASK_COLS * S::LANES,
            fresh: k0 == 0,
        };
        // SAFETY: `k0` is a whole number of pairs; the weight rows and k range lie within `[n, k]`.
        unsafe {
            let weight = self.pass.weight.add(col * k + k0);
            self.row_tiles(s, k0, (col, cols), weight, shape, |_| ());
        }
    }

    /// As `direct`, with the weight rows first converted to f32 in L1.
    #[inline(always)]
    fn converted<S: Simd>(&self, s: S, (k0, k1): (usize, usize), (col, cols): (usize, usize)) {
        let pair = 2 * S::LANES;
        let k = self.pass.k;
        let w_stride = BLOCK_K + ROW_PAD;
        let shape = TileShape {
            x_stride: self.pass.stride,
            w_stride,
            pairs: (k1 - k0).div_ceil(pair),
            tail: 0,
            acc_stride: TASK_COLS * S::LANES,
            fresh: k0 == 0,
        };
        // SAFETY: the scratch behind the accumulators holds eight rows of a k block; the weight rows
        // lie within `[n, k]`. Prefetches may point anywhere.
        unsafe {
            let converted = self.scratch.add(ACCUMULATORS);
            for j in 0..cols {
                let from = self.pass.weight.add((col + j) * k + k0);
                pack_row(s, from, k1 - k0, converted.add(j * w_stride));
            }
            let next = self.pass.weight.wrapping_add((col + cols) * k + k0);
            let tiles = self.rows.len().div_ceil(S::TILE.0);
            let lines = (k1 - k0) * size_of::<T>() / 64 + 1;
            self.row_tiles(s, k0, (col, cols), converted.cast_const(), shape, |tile| {
                // The next tile of weight rows, a share of it beside each tile of rows.
                for j in 0..S::TILE.1 {
                    for line in tile * lines / tiles..(tile + 1) * lines / tiles {
                        s.prefetch(next.wrapping_add(j * k).cast::<u8>().wrapping_add(line * 64));
                    }
                }
            });
        }
    }

    /// # Safety
    /// `weight` and `shape` describe `cols` weight rows for the k block that starts at `k0`.
    #[inline(always)]
    unsafe fn row_tiles<S: Simd, W: SimdElement>(
        &self,
        s: S,
        k0: usize,
        (col, cols): (usize, usize),
        weight: *const W,
        shape: TileShape,
        mut before: impl FnMut(usize),
    ) {
        let tile_rows = S::TILE.0;
        for row in self.rows.clone().step_by(tile_rows) {
            let local = row - self.rows.start;
            before(local / tile_rows);
            let rows = tile_rows.min(self.rows.end - row);
            // SAFETY: packed rows and accumulators of these rows and columns lie within their
            // scratch; the caller answers for the weight.
            unsafe {
                let x = self.pass.packed.pointer().add(row * self.pass.stride + k0);
                let acc = (local * TASK_COLS + col - self.cols.start) * S::LANES;
                tile(s, (rows, cols), x, weight, self.scratch.add(acc), shape);
            }
        }
    }
}
