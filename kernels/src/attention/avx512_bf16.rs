//! Scores over bf16 keys with AVX512-BF16. A position is stored in memory in the order that
//! `vdpbf16ps` takes, with every sixteenth pair of elements in the same lane, so that keys are
//! multiplied straight from memory without transposition.
//!
//! **Order of the sum.** Each lane is a chain of dot products of pairs along head_dim; the lanes
//! are added within quarters first (`simd::lanes`). Neighbours, tiles and blocks do not influence
//! the order.

#![allow(
    clippy::needless_range_loop,
    reason = "queries and positions are clearer, and surer to stay in registers, by index"
)]

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::keys::{Keys, Queries};
use super::prefetch::{Next, Prefetcher};
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, dot_bf16};
use crate::simd::lanes::{add_quarters, add_to_quarters};

/// Positions of a call, and the number of positions that are multiplied together.
const POSITIONS: usize = Avx512::LANES;
const TOGETHER: usize = 4;
/// Elements of a cache line.
const LINE: usize = 32;

/// Copies a query unchanged into whole lines, padded with zeros.
///
/// # Safety
/// `from` holds `head_dim` elements; `to` has space for whole lines.
pub(super) unsafe fn pack(from: *const bf16, head_dim: usize, to: *mut bf16) {
    // SAFETY: the caller's promise; zero bits are zero.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head_dim);
        std::ptr::write_bytes(to.add(head_dim), 0, head_dim.next_multiple_of(LINE) - head_dim);
    }
}

/// Destination of the scores of some queries at the positions of a call.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    /// Score of the first query and position.
    pub to: *mut f32,
    /// Distance in floats from one query to the next.
    pub stride: usize,
    /// Factor of each score.
    pub scale: f32,
}

/// Positions of a call that each of `MR` queries sees.
pub(super) struct Seen<const MR: usize> {
    by_each: [Range<usize>; MR],
    by_all: Range<usize>,
}

impl<const MR: usize> Seen<MR> {
    /// Returns, for each query `i`, the subset `visible(i)` of `width` positions.
    #[inline(always)]
    pub(super) fn new(width: usize, visible: impl Fn(usize) -> Range<usize>) -> Seen<MR> {
        let by_each: [_; MR] = std::array::from_fn(visible);
        let mut by_all = 0..width;
        for one in &by_each {
            by_all = by_all.start.max(one.start)..by_all.end.min(one.end);
        }
        Seen { by_each, by_all }
    }
}

impl Scores {
    /// Writes the sums of `MR` queries at the sixteen positions starting at `first`, omitting
    /// positions that a query does not see.
    ///
    /// # Safety
    /// `to` has space for the visible positions of each query.
    #[inline]
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn store<const MR: usize>(
        self,
        s: Avx512,
        sums: [__m512; MR],
        first: usize,
        seen: &Seen<MR>,
    ) {
        let scale = s.splat(self.scale);
        let by_all = seen.by_all.start <= first && first + POSITIONS <= seen.by_all.end;
        for i in 0..MR {
            let to = self.to.wrapping_add(i * self.stride + first);
            let scores = s.mul(sums[i], scale);
            if by_all {
                // SAFETY: the query sees all of these positions.
                unsafe { s.store(to, scores) };
                continue;
            }
            let before = |position: usize| {
                let lanes = position.saturating_sub(first).min(POSITIONS);
                (1u32 << lanes).wrapping_sub(1) as u16
            };
            let mask = before(seen.by_each[i].end) & !before(seen.by_each[i].start);
            // SAFETY: masked lanes are not accessed; the query sees the rest.
            unsafe { _mm512_mask_storeu_ps(to, mask, scores) };
        }
    }
}

/// Writes the scores of `MR` queries at all visible positions of `keys`.
///
/// # Safety
/// The machine has AVX512-BF16; the positions are readable; `queries` are `MR` heads as written by
/// `pack`; `out` has space for every query's visible positions.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn scores<const MR: usize>(
    keys: &Keys<bf16>,
    queries: Queries,
    out: Scores,
    seen: &Seen<MR>,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
) {
    // SAFETY: the caller's promise.
    let s = unsafe { Avx512::new() };
    for first in (0..keys.width).step_by(POSITIONS) {
        let block = Keys {
            from: keys.from.wrapping_add(first * keys.stride),
            width: POSITIONS.min(keys.width - first),
            ..*keys
        };
        // SAFETY: the caller's promise; only what is visible is written.
        unsafe {
            let sums = of_block::<MR>(s, &block, queries, prefetcher.as_deref_mut());
            out.store(s, sums, first, seen);
        }
    }
}

/// Returns the sums of `MR` queries and up to sixteen positions, one position per lane; lanes of
/// positions that do not exist are meaningless.
///
/// # Safety
/// Same contract as [`scores`].
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn of_block<const MR: usize>(
    s: Avx512,
    keys: &Keys<bf16>,
    queries: Queries,
    mut prefetcher: Option<&mut Prefetcher<'_>>,
) -> [__m512; MR] {
    let mut lines = match prefetcher.as_deref_mut() {
        Some(Prefetcher::Lines(lines)) if keys.fresh_distance.is_none() => {
            Some(lines.next(s, keys.width * keys.head_dim * size_of::<bf16>()))
        }
        _ => None,
    };
    let mut quarters = [[_mm512_setzero_ps(); TOGETHER]; MR];
    for four in 0..TOGETHER {
        if let (None, Some(prefetcher)) = (lines, prefetcher.as_mut()) {
            // One part at a time: prefetches stall if too many are issued at once.
            for at in (four * LINE..keys.head_dim).step_by(TOGETHER * LINE) {
                keys.prefetch(s, 0, at, prefetcher);
            }
        }
        let mut at = [std::ptr::null(); TOGETHER];
        for i in 0..TOGETHER {
            // The last position substitutes for positions after the end.
            let position = (four * TOGETHER + i).min(keys.width - 1);
            at[i] = keys.from.wrapping_add(position * keys.stride);
        }
        // SAFETY: the positions exist, and queries are packed in whole lines.
        let sums = unsafe { multiply::<MR>(s, at, keys.head_dim, queries, &mut lines) };
        for i in 0..MR {
            quarters[i][four] = add_quarters(sums[i]);
        }
    }
    let mut sums = [_mm512_setzero_ps(); MR];
    for i in 0..MR {
        sums[i] = add_to_quarters(quarters[i]);
    }
    sums
}

/// Returns the lanes of the sums of `MR` queries and some positions.
///
/// # Safety
/// Each pointer of `at` points to `head_dim` elements; the queries are packed in whole lines.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn multiply<const MR: usize>(
    s: Avx512,
    at: [*const bf16; TOGETHER],
    head_dim: usize,
    queries: Queries,
    lines: &mut Option<Next>,
) -> [[__m512; TOGETHER]; MR] {
    let mut sums = [[_mm512_setzero_ps(); TOGETHER]; MR];
    for element in (0..head_dim).step_by(LINE) {
        let left = head_dim - element;
        let mask = if left >= LINE { u32::MAX } else { (1 << left) - 1 };
        // SAFETY: masked elements are not accessed; the rest is the caller's promise.
        unsafe {
            let mut q = [_mm512_setzero_ps(); MR];
            for i in 0..MR {
                q[i] = s.load(queries.from.add(i * queries.stride + element / 2));
            }
            for p in 0..TOGETHER {
                if let Some(lines) = lines {
                    lines.prefetch(s);
                }
                let key = _mm512_maskz_loadu_epi16(mask, at[p].add(element).cast());
                for i in 0..MR {
                    sums[i][p] = dot_bf16(_mm512_castsi512_ps(key), q[i], sums[i][p]);
                }
            }
        }
    }
    sums
}
