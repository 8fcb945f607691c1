//! Partial keys: a few skewed columns of each key, and the approximate scores that they give.
//!
//! Sums are plain multiplications and additions in one order, so that all variants choose the same
//! positions.

use std::ops::Range;

use half::bf16;

use crate::attention::pages::PageLists;
use crate::attention::shape::AttentionUnit;
use crate::number::Number;
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Number of columns that are summed in parallel.
const COLUMN_STEP: usize = 8;

/// Writes the partial key of `key`, `[head_dim]`: its product with a head's skew, `[head_dim,
/// columns]`, rounded to bf16.
///
/// # Panics
/// If the size of the skew does not match.
pub fn partial_key<T: Number>(key: &[T], skew: &[f32], partial: &mut [bf16]) {
    let columns = partial.len();
    assert_eq!(skew.len(), key.len() * columns, "a skew is [head_dim, columns]");
    for (first, partial) in (0..columns).step_by(COLUMN_STEP).zip(partial.chunks_mut(COLUMN_STEP)) {
        let sums = skewed(key, skew, columns, first, partial.len());
        for (to, sum) in partial.iter_mut().zip(sums) {
            *to = bf16::from_f32(sum);
        }
    }
}

/// Writes the partial query of `query` times `scale`, in f32.
#[inline(always)]
pub(super) fn partial_query<T: Number>(query: &[T], skew: &[f32], scale: f32, to: &mut [f32]) {
    let columns = to.len();
    for (first, to) in (0..columns).step_by(COLUMN_STEP).zip(to.chunks_mut(COLUMN_STEP)) {
        let sums = skewed(query, skew, columns, first, to.len());
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = sum * scale;
        }
    }
}

#[inline(always)]
fn skewed<T: Number>(
    head: &[T],
    skew: &[f32],
    columns: usize,
    first: usize,
    count: usize,
) -> [f32; COLUMN_STEP] {
    let mut sums = [0.0; COLUMN_STEP];
    for (element, row) in head.iter().zip(skew.chunks_exact(columns)) {
        let element = element.to_f32();
        for (sum, factor) in sums.iter_mut().zip(&row[first..first + count]) {
            *sum += element * factor;
        }
    }
    sums
}

/// Partial keys of a layer's caches, in the order of their places.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialKeys<'a> {
    pub keys: &'a [bf16],
    pub columns: usize,
    pub kv_heads: usize,
    /// Elements of a key, which is the distance between places in `AttentionUnit::cache_offset`.
    pub head_dim: usize,
    pub pages: PageLists<'a>,
}

impl<'a> PartialKeys<'a> {
    /// Returns the partial keys of the longest contiguous prefix of `positions` of a unit, and its
    /// end.
    #[inline(always)]
    fn run(&self, unit: &AttentionUnit, positions: &Range<usize>) -> (&'a [bf16], usize) {
        let (place, end) = self.pages.run(unit, self.kv_heads, positions);
        let first = unit.cache_offset / self.head_dim + place;
        let (first, count) = (first * self.columns, (end - positions.start) * self.columns);
        (&self.keys[first..first + count], end)
    }
}

/// Task that writes the approximate scores of a unit's queries, `[queries, columns]`, and its first
/// `positions` positions to `scores`, `[queries, positions]`.
pub(super) struct ApproximateScores<'a> {
    pub unit: AttentionUnit,
    pub queries: &'a [f32],
    pub partial: PartialKeys<'a>,
    pub positions: usize,
    pub scores: &'a mut [f32],
}

impl ApproximateScores<'_> {
    pub(super) fn compute(self, variant: Variant) {
        // SAFETY: needed to reach wide instructions; the variant was checked when the kernels were
        // built.
        unsafe { dispatch(variant, self) }
    }
}

impl SimdTask for ApproximateScores<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let ApproximateScores { unit, queries, partial, positions, scores } = self;
        let mut first = 0;
        while first < positions {
            let (keys, end) = partial.run(&unit, &(first..positions));
            for (index, query) in queries.chunks_exact(partial.columns).enumerate() {
                let row = index * positions;
                let scores = &mut scores[row + first..row + end];
                for (score, key) in scores.iter_mut().zip(keys.chunks_exact(partial.columns)) {
                    *score = dot(query, key);
                }
            }
            first = end;
        }
    }
}

/// Returns the dot product; both lengths are a multiple of [`COLUMN_STEP`].
#[inline(always)]
fn dot(query: &[f32], key: &[bf16]) -> f32 {
    let mut sums = [0.0f32; COLUMN_STEP];
    for (query, key) in query.chunks_exact(COLUMN_STEP).zip(key.chunks_exact(COLUMN_STEP)) {
        for i in 0..COLUMN_STEP {
            sums[i] += query[i] * Number::to_f32(key[i]);
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
