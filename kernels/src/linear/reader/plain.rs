//! Row-major weights, transposed in registers.

use std::ops::Range;

use half::bf16;

use super::{Lines, WeightReader};
use crate::linear::sizes::BLOCK_UNITS;
use crate::linear::tuning::PLAIN_PREFETCH_BYTES;
use crate::simd::{MAX_LANES, Simd};

/// Row-major rows of `T`, as in a checkpoint: the weight, or activations to be packed.
#[derive(Debug)]
pub struct Plain<T> {
    rows: *const T,
    n: usize,
    k: usize,
}

impl<T> Clone for Plain<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Plain<T> {}

impl<T> Plain<T> {
    /// Creates a reader of `rows`, which is `[n, k]`.
    pub fn new(rows: *const T, n: usize, k: usize) -> Self {
        Plain { rows, n, k }
    }

    /// Returns the number of rows.
    #[inline(always)]
    pub fn outputs(self) -> usize {
        self.n
    }

    /// Returns the number of inputs in a row.
    #[inline(always)]
    pub fn inputs(self) -> usize {
        self.k
    }

    /// Returns the start of a row, which need not exist.
    #[inline(always)]
    pub fn row(self, row: usize) -> *const T {
        self.rows.wrapping_add(row * self.k)
    }

    #[inline(always)]
    fn stride(self) -> usize {
        self.k * size_of::<T>()
    }

    #[inline(always)]
    fn at<S: Simd>(
        self,
        panel: usize,
        segment: usize,
        index: usize,
        per_dword: usize,
    ) -> *const u8 {
        let chunk = segment * (BLOCK_UNITS / (per_dword * S::LANES)) + index;
        self.rows.cast::<u8>().wrapping_add(panel * S::LANES * self.stride() + chunk * 4 * S::LANES)
    }

    #[inline(always)]
    unsafe fn padded<S: Simd>(
        self,
        s: S,
        panel: usize,
        from: *const u8,
        offset: usize,
    ) -> S::Block {
        let rows = S::LANES.min(self.n - panel * S::LANES);
        let bytes = (4 * S::LANES).min(self.stride() - offset);
        let mut buffer = [[0u8; 4 * MAX_LANES]; MAX_LANES];
        for (row, to) in buffer.iter_mut().enumerate().take(rows) {
            // SAFETY: these bytes of these rows exist, and fit the buffer. The whole length as a
            // constant is a vector move instead of a call.
            unsafe {
                let from = from.add(row * self.stride());
                if bytes == 4 * S::LANES {
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), 4 * S::LANES);
                } else {
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes);
                }
            }
        }
        // SAFETY: the buffer holds LANES rows.
        unsafe { s.transpose(buffer.as_ptr().cast(), 4 * MAX_LANES) }
    }

    /// Prefetches later inputs of each row of a panel or, near the end of the rows, the start of
    /// the next panel's rows, since short rows would otherwise start with cache misses.
    #[inline(always)]
    fn prefetch_rows<S: Simd>(self, s: S, at: *const u8, offset: usize) {
        let next = if offset + PLAIN_PREFETCH_BYTES < self.stride() { 0 } else { S::LANES - 1 };
        let at = at.wrapping_add(PLAIN_PREFETCH_BYTES + next * self.stride());
        for row in 0..S::LANES {
            s.prefetch(at.wrapping_add(row * self.stride()));
        }
    }

    /// Returns the cache lines of some inputs of some rows.
    #[inline(always)]
    pub fn lines(self, rows: Range<usize>, inputs: Range<usize>) -> Lines {
        Lines {
            at: self.row(rows.start).wrapping_add(inputs.start).cast(),
            stride: self.stride(),
            rows: rows.len(),
            lines: (inputs.len() * size_of::<T>()).div_ceil(64),
        }
    }

    #[inline(always)]
    fn lines_of_panels<S: Simd>(
        self,
        panel: usize,
        panels: usize,
        block: usize,
        per_dword: usize,
    ) -> Lines {
        let rows = panel * S::LANES..self.n.min((panel + panels) * S::LANES);
        let inputs = BLOCK_UNITS / per_dword * 4 / size_of::<T>();
        self.lines(rows, self.k.min(block * inputs)..self.k.min((block + 1) * inputs))
    }
}

macro_rules! plain_reader {
    ($units:literal, $inputs:literal, |$s:ident, $d:ident, $index:ident| $unit:expr) => {
        const UNITS: usize = $units;
        const DWORDS: usize = S::LANES;
        const GROUPED: bool = false;

        #[inline(always)]
        fn unit($s: S, $d: S::D, $index: usize) -> S::F {
            $unit
        }

        #[inline(always)]
        fn columns(self) -> usize {
            self.0.n
        }

        #[inline(always)]
        fn units(self) -> usize {
            self.0.k.div_ceil($inputs)
        }

        #[inline(always)]
        fn segment(self) -> usize {
            BLOCK_UNITS
        }

        #[inline(always)]
        fn is_full(self, panel: usize) -> bool {
            (panel + 1) * S::LANES <= self.0.n
        }

        #[inline(always)]
        unsafe fn chunk(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            // The last of an odd number of inputs has no partner in memory except the first input
            // of the next row.
            let end = segment * BLOCK_UNITS * 4 / $units + (index + 1) * 4 * S::LANES;
            if $inputs > 1 && end > self.0.stride() {
                // SAFETY: the caller's promise.
                return unsafe { self.edge(s, panel, segment, index) };
            }
            // SAFETY: the caller promises that these rows and inputs exist.
            unsafe { s.transpose(self.0.at::<S>(panel, segment, index, $units), self.0.stride()) }
        }

        #[inline(always)]
        unsafe fn edge(self, s: S, panel: usize, segment: usize, index: usize) -> S::Block {
            let offset = segment * BLOCK_UNITS * 4 / $units + index * 4 * S::LANES;
            // SAFETY: the caller promises that the first column and input exist.
            unsafe {
                self.0.padded(s, panel, self.0.at::<S>(panel, segment, index, $units), offset)
            }
        }

        #[inline(always)]
        fn prefetch(self, s: S, panel: usize, segment: usize, index: usize) {
            let offset = segment * BLOCK_UNITS * 4 / $units + index * 4 * S::LANES;
            self.0.prefetch_rows(s, self.0.at::<S>(panel, segment, index, $units), offset);
        }

        #[inline(always)]
        unsafe fn scale(self, s: S, _: usize, _: usize) -> (S::F, S::F) {
            (s.zero(), s.zero())
        }

        #[inline(always)]
        fn lines(self, panel: usize, panels: usize, block: usize) -> Lines {
            self.0.lines_of_panels::<S>(panel, panels, block, $units)
        }
    };
}

/// f32 weights: a unit is a dword.
#[derive(Debug, Clone, Copy)]
pub struct PlainF32(pub Plain<f32>);

impl<S: Simd> WeightReader<S> for PlainF32 {
    plain_reader!(1, 1, |s, d, _index| s.bits(d));
}

/// bf16 weights, widened: two units per dword.
#[derive(Debug, Clone, Copy)]
pub struct PlainBf16(pub Plain<bf16>);

impl<S: Simd> WeightReader<S> for PlainBf16 {
    plain_reader!(2, 1, |s, d, index| if index == 0 { s.low_bf16(d) } else { s.high_bf16(d) });
}

/// bf16 weights, not widened: a unit is a dword with two inputs.
#[derive(Debug, Clone, Copy)]
pub struct PairsBf16(pub Plain<bf16>);

impl<S: Simd> WeightReader<S> for PairsBf16 {
    plain_reader!(1, 2, |s, d, _index| s.bits(d));
}
