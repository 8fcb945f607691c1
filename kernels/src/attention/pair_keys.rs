//! Scores of many queries over bf16 keys with AVX512-BF16 (prefill). A block of positions is stored
//! in scratch so that a vector holds one pair of elements of sixteen positions.
//!
//! No lanes then remain to be added within a vector, which costs `avx512_bf16.rs` more than its
//! products if heads are short. **Order of the sum:** that of `avx512_bf16.rs`, with a chain for
//! every sixteenth pair, and chains added like its lanes ([`sums`]).

#![allow(
    clippy::needless_range_loop,
    reason = "queries and vectors of a register tile are surer to stay in registers by index"
)]

use std::arch::x86_64::*;

use super::avx512_bf16::{Scores, Seen};
use super::block::{Block, PAIRS_POSITIONS};
use super::keys::{Keys, Queries};
use super::prefetch::Prefetcher;
use super::strided::Strided;
use crate::number::Number;
use crate::simd::Simd;
use crate::simd::avx512::{Avx512, dot_bf16};
use crate::unroll::unroll_16;

/// Positions of a tile: two vectors.
const TILE: usize = 2 * Avx512::LANES;
const _: () = assert!(PAIRS_POSITIONS.is_multiple_of(TILE));
/// Maximum number of queries of a tile.
const QUERIES: usize = 4;
/// Elements of a line, of which a vector holds one pair.
const LINE: usize = 32;

impl<S: Simd> Block<'_, S> {
    /// Writes the scores of all queries at the positions of `keys`, which start at position
    /// `first`; the rows of `out` start at position 0.
    ///
    /// # Safety
    /// Same contract as [`Block::scores`]; in addition, `T` is bf16, the machine has AVX512-BF16,
    /// and the queries are packed.
    #[inline(always)]
    pub(super) unsafe fn scores_of_many_pairs<T: Number>(
        &self,
        keys: Keys<T>,
        first: usize,
        out: Strided<*mut f32>,
        prefetcher: &mut Prefetcher<'_>,
    ) {
        let queries = self.queries();
        let tiles = queries.div_ceil(QUERIES);
        // SAFETY: the caller's promise; scratch has space for a block of pairs.
        unsafe {
            keys.transpose_pairs(self.s, self.transposed, prefetcher);
            for number in 0..tiles {
                let query = number * queries / tiles;
                let end = (number + 1) * queries / tiles;
                let by_one = self.start(query)..self.limit(end - 1);
                let by_all = self.start(end - 1)..self.limit(query);
                for at in (0..keys.width).step_by(TILE) {
                    let width = TILE.min(keys.width - at);
                    let (begin, behind) = (first + at, first + at + width);
                    if behind <= by_one.start || by_one.end <= begin {
                        continue;
                    }
                    let is_whole = by_all.start <= begin && behind <= by_all.end;
                    let block = self.transposed.wrapping_add(at * lines(keys.head_dim) * LINE / 2);
                    macro_rules! tile {
                        ($mr:literal) => {{
                            let stride = out.stride;
                            let to = out.base.wrapping_add(query * stride + begin);
                            let scores = Scores { to, stride, scale: self.shape.scale };
                            let seen = Seen::<$mr>::new(width, |i| match is_whole {
                                true => 0..width,
                                false => self.visible(query + i, begin, width),
                            });
                            let queries = self.packed_queries(query);
                            tile::<$mr>(block, keys.head_dim, queries, scores, &seen);
                        }};
                    }
                    match end - query {
                        1 => tile!(1),
                        2 => tile!(2),
                        3 => tile!(3),
                        _ => tile!(4),
                    }
                }
            }
        }
    }
}

impl<T: Number> Keys<T> {
    /// Writes pair after pair of every two vectors of positions to `to`, line after line; vectors
    /// of positions that do not exist are left unchanged.
    ///
    /// # Safety
    /// The positions are readable; `to` has space for them, two vectors at a time, in whole lines.
    #[inline(always)]
    unsafe fn transpose_pairs<S: Simd>(&self, s: S, to: *mut f32, prefetcher: &mut Prefetcher<'_>) {
        let of_tile = lines(self.head_dim) * LINE / 2 * TILE;
        for position in (0..self.width).step_by(S::LANES) {
            let to = to.wrapping_add(position / TILE * of_tile + position % TILE);
            for at in (0..self.head_dim).step_by(LINE) {
                // SAFETY: the caller's promise.
                let block = unsafe { self.columns(s, position, at, prefetcher) };
                unroll_16!(S::LANES, P => {
                    let pair = at / 2 + P;
                    // SAFETY: the caller's promise covers whole lines.
                    unsafe { s.store(to.add(pair * TILE), s.bits(block.as_ref()[P])) };
                });
            }
        }
    }
}

fn lines(head_dim: usize) -> usize {
    head_dim.div_ceil(LINE)
}

/// Writes the scores of `MR` queries at the positions of a tile.
///
/// # Safety
/// The machine has AVX512-BF16; `keys` is a tile as written by `transpose_pairs`; `queries` are
/// `MR` heads as written by `pack`; `scores` has space for every query's visible positions.
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile<const MR: usize>(
    keys: *const f32,
    head_dim: usize,
    queries: Queries,
    scores: Scores,
    seen: &Seen<MR>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let s = Avx512::new();
        let sums = match lines(head_dim) {
            2 => sums::<MR, 2>(s, keys, 2, queries),
            4 => sums::<MR, 4>(s, keys, 4, queries),
            lines => sums::<MR, 0>(s, keys, lines, queries),
        };
        for vector in 0..2 {
            let mut of_vector = [s.zero(); MR];
            for i in 0..MR {
                of_vector[i] = sums[i][vector];
            }
            scores.store(s, of_vector, vector * Avx512::LANES, seen);
        }
    }
}

/// Returns the sums of `MR` queries and the two vectors of a tile. Chains two apart are added
/// within quarters, then neighbours; then quarters two apart, then neighbours.
///
/// # Safety
/// Same contract as [`tile`]; `LINES` is `lines`, or 0.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn sums<const MR: usize, const LINES: usize>(
    s: Avx512,
    keys: *const f32,
    lines: usize,
    queries: Queries,
) -> [[__m512; 2]; MR] {
    let lines = if LINES == 0 { lines } else { LINES };
    let mut quarters = [[[s.zero(); 2]; MR]; 4];
    for quarter in 0..4 {
        // Adds the products of pair `$number` of the quarter over all lines.
        macro_rules! chain {
            ($number:literal) => {{
                let mut sums = [[s.zero(); 2]; MR];
                for line in 0..lines {
                    let pair = line * (LINE / 2) + 4 * quarter + $number;
                    // SAFETY: the caller's promise.
                    unsafe {
                        let key = keys.add(pair * TILE);
                        let key = [s.load(key), s.load(key.add(Avx512::LANES))];
                        for i in 0..MR {
                            let query = s.splat(*queries.from.add(i * queries.stride + pair));
                            sums[i][0] = dot_bf16(key[0], query, sums[i][0]);
                            sums[i][1] = dot_bf16(key[1], query, sums[i][1]);
                        }
                    }
                }
                sums
            }};
        }
        let even = add(s, chain!(0), chain!(2));
        quarters[quarter] = add(s, even, add(s, chain!(1), chain!(3)));
    }
    let [first, second, third, fourth] = quarters;
    add(s, add(s, first, third), add(s, second, fourth))
}

#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn add<const MR: usize>(
    s: Avx512,
    a: [[__m512; 2]; MR],
    b: [[__m512; 2]; MR],
) -> [[__m512; 2]; MR] {
    let mut sums = a;
    for i in 0..MR {
        sums[i] = [s.add(a[i][0], b[i][0]), s.add(a[i][1], b[i][1])];
    }
    sums
}
