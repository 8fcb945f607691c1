//! Register tiles of weighted values in pairs (`pair_values.rs`): over values in place in memory,
//! and over a block of interleaved pairs in scratch.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of a register tile are surer to stay in registers by index"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::prefetch::Next;
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, dot_bf16};

/// Elements of a cache line, and floats of its sums.
pub(super) const LINE: usize = 32;
/// Positions of a block in scratch.
pub(super) const BLOCK: usize = 128;

/// Pairs of positions at a constant distance in memory.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// Addresses of the even position of the first pair and of the odd one; null if it does not
    /// exist.
    pub low: *const bf16,
    pub high: *const bf16,
    /// Distance in elements from one pair to the next.
    pub step: usize,
    pub count: usize,
    /// End of the positions that exist.
    pub end: usize,
    /// True if [`Prefetcher`] prefetches them.
    pub cached: bool,
}

impl Run {
    /// Returns the masks of the two positions of its pairs: all ones, or zero for one that does not
    /// exist.
    #[inline(always)]
    fn there(self) -> [u32; 2] {
        [self.low, self.high].map(|at| if at.is_null() { 0 } else { u32::MAX })
    }
}

/// Queries whose weights and sums are at constant distances.
#[derive(Clone, Copy)]
pub(super) struct Queries {
    /// Pairs of weights, starting with that of the first pair.
    pub weights: *const u32,
    pub weights_stride: usize,
    pub sums: *mut f32,
    pub sums_stride: usize,
}

impl Queries {
    /// Returns the queries starting at `query`, with weights starting at pair `pair`.
    #[inline(always)]
    pub(super) fn from(self, query: usize, pair: usize) -> Queries {
        Queries {
            weights: self.weights.wrapping_add(query * self.weights_stride + pair),
            sums: self.sums.wrapping_add(query * self.sums_stride),
            ..self
        }
    }

    /// Returns the queries with sums starting at line `line`.
    #[inline(always)]
    pub(super) fn line(self, line: usize) -> Queries {
        Queries { sums: self.sums.wrapping_add(line * LINE), ..self }
    }
}

/// Returns the mask of the elements that exist in the last line of a head.
#[inline(always)]
pub(super) fn last_line(head_dim: usize) -> u32 {
    match head_dim % LINE {
        0 => u32::MAX,
        left => (1 << left) - 1,
    }
}

/// Zeroes the sums of a head.
///
/// # Safety
/// There is space for whole lines.
#[inline(always)]
pub(super) unsafe fn clear(query: Queries, head_dim: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(query.sums, 0, head_dim.next_multiple_of(LINE)) };
}

/// Loads one line of both positions of a pair with their elements interleaved: first the elements
/// whose index has bit 2 clear, then those whose index has it set.
///
/// # Safety
/// The elements that the masks select are readable.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn load_line(low: (*const bf16, u32), high: (*const bf16, u32)) -> [__m512; 2] {
    // SAFETY: masked elements are not accessed; the rest is the caller's promise.
    let (low, high) = unsafe {
        (
            _mm512_maskz_loadu_epi16(low.1, low.0.cast()),
            _mm512_maskz_loadu_epi16(high.1, high.0.cast()),
        )
    };
    [
        _mm512_castsi512_ps(_mm512_unpacklo_epi16(low, high)),
        _mm512_castsi512_ps(_mm512_unpackhi_epi16(low, high)),
    ]
}

/// `NL` lines of the sums of `MR` queries, in registers.
struct Sums<const MR: usize, const NL: usize>([[[__m512; 2]; NL]; MR]);

impl<const MR: usize, const NL: usize> Sums<MR, NL> {
    /// # Safety
    /// The sums of `queries` are whole lines.
    #[inline(always)]
    unsafe fn load(s: Avx512, queries: Queries) -> Self {
        let mut sums = [[[s.zero(); 2]; NL]; MR];
        for i in 0..MR {
            for l in 0..NL {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = queries.sums.add(i * queries.sums_stride + l * LINE).cast_const();
                    sums[i][l] = [s.load(at), s.load(at.add(LINE / 2))];
                }
            }
        }
        Sums(sums)
    }

    /// Adds the lines of a pair, multiplied by the weight of each query.
    ///
    /// # Safety
    /// The machine has AVX512-BF16; the weights of `queries` are readable.
    #[inline(always)]
    unsafe fn add(&mut self, values: [[__m512; 2]; NL], queries: Queries, pair: usize) {
        for i in 0..MR {
            // SAFETY: the caller's promise.
            unsafe {
                let weights = *queries.weights.add(i * queries.weights_stride + pair);
                let weights = _mm512_castsi512_ps(_mm512_set1_epi32(weights.cast_signed()));
                for l in 0..NL {
                    self.0[i][l][0] = dot_bf16(values[l][0], weights, self.0[i][l][0]);
                    self.0[i][l][1] = dot_bf16(values[l][1], weights, self.0[i][l][1]);
                }
            }
        }
    }

    /// # Safety
    /// Same contract as [`Sums::load`].
    #[inline(always)]
    unsafe fn store(self, s: Avx512, queries: Queries) {
        for i in 0..MR {
            for l in 0..NL {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = queries.sums.add(i * queries.sums_stride + l * LINE);
                    s.store(at, self.0[i][l][0]);
                    s.store(at.add(LINE / 2), self.0[i][l][1]);
                }
            }
        }
    }
}

/// Adds the pairs of a run to `NL` lines of the sums of `MR` queries; `last` is the mask of the
/// last line.
///
/// # Safety
/// The machine has AVX512-BF16; the pairs and their weights are readable; sums are whole lines.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn add_run<const MR: usize, const NL: usize>(
    run: Run,
    last: u32,
    queries: Queries,
    mut next: Option<Next>,
) {
    // SAFETY: the caller's promise covers every offset used here.
    unsafe {
        let s = Avx512::new();
        let mut sums = Sums::<MR, NL>::load(s, queries);
        let [low_there, high_there] = run.there();
        for pair in 0..run.count {
            let (low, high) =
                (run.low.wrapping_add(pair * run.step), run.high.wrapping_add(pair * run.step));
            let mut values = [[_mm512_setzero_ps(); 2]; NL];
            for l in 0..NL {
                if let Some(next) = &mut next {
                    next.prefetch(s);
                    next.prefetch(s);
                }
                let mask = if l + 1 < NL { u32::MAX } else { last };
                values[l] = load_line(
                    (low.wrapping_add(l * LINE), mask & low_there),
                    (high.wrapping_add(l * LINE), mask & high_there),
                );
            }
            sums.add(values, queries, pair);
        }
        sums.store(s, queries);
    }
}

/// Interleaves the pairs of a run in scratch, starting with pair `pair` of the block: line by line,
/// with all pairs of the block for each line.
///
/// # Safety
/// The pairs are readable; `scratch` has space for a block.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn interleave(run: Run, head_dim: usize, scratch: *mut f32, pair: usize) {
    // SAFETY: the caller's promise covers every offset used here.
    unsafe {
        let s = Avx512::new();
        let [low_there, high_there] = run.there();
        for line in 0..head_dim.div_ceil(LINE) {
            let last = (line + 1) * LINE >= head_dim;
            let mask = if last { last_line(head_dim) } else { u32::MAX };
            let to = scratch.add((line * (BLOCK / 2) + pair) * LINE);
            for i in 0..run.count {
                let at = i * run.step + line * LINE;
                let values = load_line(
                    (run.low.wrapping_add(at), mask & low_there),
                    (run.high.wrapping_add(at), mask & high_there),
                );
                s.store(to.add(i * LINE), values[0]);
                s.store(to.add(i * LINE + LINE / 2), values[1]);
            }
        }
    }
}

/// Adds pairs of a block in scratch to the sums of `count` queries.
///
/// # Safety
/// Same contract as [`add_run`]; weights start with the block's first pair.
#[inline(always)]
pub(super) unsafe fn add_scratch(
    scratch: *const f32,
    pairs: Range<usize>,
    head_dim: usize,
    queries: Queries,
    count: usize,
) {
    let all = head_dim.div_ceil(LINE);
    for line in (0..all).step_by(2) {
        let from = scratch.wrapping_add(line * (BLOCK / 2) * LINE);
        let (pairs, queries) = (pairs.clone(), queries.line(line));
        macro_rules! tile {
            ($lines:literal: $($mr:literal)*) => {
                match count {
                    $($mr => add_tile::<$mr, $lines>(from, pairs, queries),)*
                    _ => unreachable!("a tile has at most six queries"),
                }
            };
        }
        // SAFETY: the caller's promise.
        unsafe {
            if all - line >= 2 {
                tile!(2: 1 2 3 4 5 6);
            } else {
                tile!(1: 1 2 3 4 5 6);
            }
        }
    }
}

/// Adds pairs of a block to `NL` lines of the sums of `MR` queries.
///
/// # Safety
/// Same contract as [`add_scratch`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn add_tile<const MR: usize, const NL: usize>(
    scratch: *const f32,
    pairs: Range<usize>,
    queries: Queries,
) {
    // SAFETY: the caller's promise covers every offset used here.
    unsafe {
        let s = Avx512::new();
        let mut sums = Sums::<MR, NL>::load(s, queries);
        for pair in pairs {
            let mut values = [[_mm512_setzero_ps(); 2]; NL];
            for l in 0..NL {
                let at = scratch.add((l * (BLOCK / 2) + pair) * LINE);
                values[l] = [s.load(at), s.load(at.add(LINE / 2))];
            }
            sums.add(values, queries, pair);
        }
        sums.store(s, queries);
    }
}

/// Rounds the sums of a head to bf16, with elements in their original order.
///
/// # Safety
/// `from` holds whole lines, `to` has space for `head_dim` elements.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn store_head(from: *const f32, head_dim: usize, to: *mut bf16) {
    // SAFETY: the caller's promise covers every offset used here.
    unsafe {
        let s = Avx512::new();
        let early = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        let late = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
        for at in (0..head_dim).step_by(LINE) {
            let (without, with) = (s.load(from.add(at)), s.load(from.add(at + LINE / 2)));
            let mut line = [bf16::ZERO; LINE];
            s.store_bf16(line.as_mut_ptr(), _mm512_permutex2var_ps(without, early, with));
            let half = line.as_mut_ptr().add(LINE / 2);
            s.store_bf16(half, _mm512_permutex2var_ps(without, late, with));
            std::ptr::copy_nonoverlapping(line.as_ptr(), to.add(at), LINE.min(head_dim - at));
        }
    }
}
