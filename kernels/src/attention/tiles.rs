//! The register tiles of attention, and what they ask of memory ahead of time.
//!
//! Decode reads every K and V once, at the speed of memory or not at all: the tiles touch whole
//! positions in order and prefetch a fixed distance ahead, across pages, where the processor's own
//! prefetcher stops.
//!
//! **The order of every sum.** A score has one accumulator of `LANES` lanes that walks along
//! head_dim in pairs; its lanes are added by the tree of `Simd::sum_lanes`. A weighted value adds
//! position after position. The size of a tile does not enter.

use crate::element::Element;
use crate::simd::{Simd, SimdElement};

/// How far ahead of the reading K and V are asked for.
pub(super) const PREFETCH_BYTES: usize = 4 << 10;

/// Asks for the cache lines of a pair.
#[inline(always)]
fn prefetch_pair<S: Simd, T: SimdElement>(s: S, at: *const T) {
    s.prefetch(at.cast());
    if 2 * S::LANES * size_of::<T>() > 64 {
        s.prefetch(at.wrapping_add(S::LANES).cast());
    }
}

/// Packs `k` elements of one row as f32 in pair order, zero-padded to whole pairs.
///
/// # Safety
/// `from` is valid for `k` elements, `to` for `k` rounded up to whole pairs.
#[inline(always)]
pub(super) unsafe fn pack_row<S: Simd, T: SimdElement>(
    s: S,
    from: *const T,
    k: usize,
    to: *mut f32,
) {
    let pair = 2 * S::LANES;
    let whole = k / pair;
    // SAFETY: `whole` pairs lie within `k` elements, and a tail within its rounded length.
    unsafe {
        for step in 0..whole {
            let value = T::load_pair(s, from.add(step * pair));
            <f32 as SimdElement>::store_pair(s, to.add(step * pair), value);
        }
        let tail = k - whole * pair;
        if tail > 0 {
            let value = T::load_pair_partial(s, from.add(whole * pair), tail);
            <f32 as SimdElement>::store_pair(s, to.add(whole * pair), value);
        }
    }
}

/// Queries times positions of scores, `LANES` of them.
pub(super) struct ScoresTile<T> {
    /// Packed queries, `q_stride` apart.
    pub queries: *const f32,
    pub q_stride: usize,
    /// K of the first position; `width >= 1` positions are there.
    pub keys: *const T,
    pub k_stride: usize,
    pub width: usize,
    pub head_dim: usize,
    /// Keys to ask for meanwhile, as far apart; any address.
    pub ahead: *const T,
}

impl<T: Element> ScoresTile<T> {
    /// Lane `i * NR + j` is query `i` times position `j`; lanes of positions that are not there
    /// repeat the last one that is.
    ///
    /// # Safety
    /// The operands cover `MR` packed queries and `width` positions.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) -> S::F {
        let pair = 2 * S::LANES;
        let mut sums = [[s.zero(); NR]; MR];
        let mut offsets = [0; NR];
        for (j, offset) in offsets.iter_mut().enumerate() {
            *offset = j.min(self.width - 1) * self.k_stride;
        }
        // SAFETY: the caller's promise covers every offset used here; packed queries are padded to
        // whole pairs.
        unsafe {
            for at in (0..self.head_dim).step_by(pair) {
                let tail = (self.head_dim - at).min(pair);
                // The fewer of the two operands wait in registers for the others.
                if NR <= MR {
                    let mut k = [(s.zero(), s.zero()); NR];
                    for (k, offset) in k.iter_mut().zip(offsets) {
                        *k = self.load_key(s, offset + at, tail);
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let from = self.queries.add(i * self.q_stride + at);
                        let q = (s.load(from), s.load(from.add(S::LANES)));
                        for (sum, k) in sums.iter_mut().zip(k) {
                            *sum = s.fma(k.1, q.1, s.fma(k.0, q.0, *sum));
                        }
                    }
                } else {
                    let mut q = [(s.zero(), s.zero()); MR];
                    for (i, q) in q.iter_mut().enumerate() {
                        let from = self.queries.add(i * self.q_stride + at);
                        *q = (s.load(from), s.load(from.add(S::LANES)));
                    }
                    for (j, offset) in offsets.into_iter().enumerate() {
                        let k = self.load_key(s, offset + at, tail);
                        for (sums, q) in sums.iter_mut().zip(q) {
                            sums[j] = s.fma(k.1, q.1, s.fma(k.0, q.0, sums[j]));
                        }
                    }
                }
            }
        }
        s.sum_lanes_of_each(sums)
    }

    /// `count` elements of K from `offset` on, at most a pair, while the same ahead are asked for.
    ///
    /// # Safety
    /// As [`ScoresTile::run`].
    #[inline(always)]
    unsafe fn load_key<S: Simd>(&self, s: S, offset: usize, count: usize) -> (S::F, S::F) {
        prefetch_pair(s, self.ahead.wrapping_add(offset));
        // SAFETY: the caller's promise covers these elements.
        unsafe {
            let from = self.keys.add(offset);
            if count == 2 * S::LANES {
                T::load_pair(s, from)
            } else {
                T::load_pair_partial(s, from, count)
            }
        }
    }
}

/// Queries times positions of weighted values: the sums stay in registers, lanes along head_dim.
pub(super) struct ValuesTile<T> {
    pub values: *const T,
    pub v_stride: usize,
    pub probabilities: *const f32,
    pub p_stride: usize,
    pub sums: *mut f32,
    pub sums_stride: usize,
    pub positions: usize,
    /// The position to ask for while the first one is at work, and the last one there is; both
    /// count from `values`.
    pub ahead: usize,
    pub last: usize,
    /// Elements of the only, incomplete pair; 0 when pairs are whole.
    pub tail: usize,
}

impl<T: Element> ValuesTile<T> {
    /// One chain of additions per element, position after position, continued from the sums.
    ///
    /// # Safety
    /// The operands cover `positions`, `MR` queries and `NP` pairs.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd, const MR: usize, const NP: usize>(self, s: S) {
        let pair = 2 * S::LANES;
        let mut sums = [[(s.zero(), s.zero()); NP]; MR];
        // SAFETY: the caller's promise covers every offset used here.
        unsafe {
            for (i, row) in sums.iter_mut().enumerate() {
                for (j, sum) in row.iter_mut().enumerate() {
                    let from = self.sums.add(i * self.sums_stride + j * pair);
                    *sum = (s.load(from), s.load(from.add(S::LANES)));
                }
            }
            for position in 0..self.positions {
                let values = self.values.add(position * self.v_stride);
                let ahead = (position + self.ahead).min(self.last) * self.v_stride;
                let ahead = self.values.wrapping_add(ahead);
                let mut v = [(s.zero(), s.zero()); NP];
                for (j, v) in v.iter_mut().enumerate() {
                    prefetch_pair(s, ahead.wrapping_add(j * pair));
                    *v = if self.tail == 0 {
                        T::load_pair(s, values.add(j * pair))
                    } else {
                        T::load_pair_partial(s, values, self.tail)
                    };
                }
                for (i, row) in sums.iter_mut().enumerate() {
                    let p = s.splat(*self.probabilities.add(i * self.p_stride + position));
                    for (sum, v) in row.iter_mut().zip(v) {
                        *sum = (s.fma(p, v.0, sum.0), s.fma(p, v.1, sum.1));
                    }
                }
            }
            for (i, row) in sums.iter().enumerate() {
                for (j, sum) in row.iter().enumerate() {
                    let to = self.sums.add(i * self.sums_stride + j * pair);
                    s.store(to, sum.0);
                    s.store(to.add(S::LANES), sum.1);
                }
            }
        }
    }
}
