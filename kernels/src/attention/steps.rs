//! Steps of a part of a block, each compiled as a separate function, over plain caches, over 4-bit
//! records (`u8`) and over 8-bit ones (`i8`). The code that constructs one guarantees that its
//! pointers are valid: they are those of the task.

use std::ops::Range;

use super::block::Block;
use super::prefetch::Prefetcher;
use super::strided::{KvPointers, Strided};
use super::task::{BlockTask, ScoresPointers};
use crate::number::Number;
use crate::simd::{OutOfLine, Simd};

/// Computes the scores of `positions` over fresh and cached K, with packed queries.
pub(super) struct ScoresOf<'a, 'p, S, E> {
    pub block: &'a Block<'a, S>,
    pub keys: KvPointers<E>,
    pub to: Strided<*mut f32>,
    pub positions: Range<usize>,
    pub prefetcher: &'a mut Prefetcher<'p>,
}

impl<S: Simd, T: Number> OutOfLine<S> for ScoresOf<'_, '_, S, T> {
    #[inline(always)]
    fn run(self, _: S) {
        let ScoresOf { block, keys, to, positions, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe { block.scores(keys, to, positions, prefetcher) }
    }
}

impl<S: Simd> OutOfLine<S> for ScoresOf<'_, '_, S, u8> {
    #[inline(always)]
    fn run(self, _: S) {
        let ScoresOf { block, keys, to, positions, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe { block.kv4_scores(keys, to, positions, prefetcher) }
    }
}

impl<S: Simd> OutOfLine<S> for ScoresOf<'_, '_, S, i8> {
    #[inline(always)]
    fn run(self, _: S) {
        let ScoresOf { block, keys, to, positions, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe { block.kv8_scores(keys, to, positions, prefetcher) }
    }
}

/// Converts the scores of some chunks to weights, or their probabilities back to weights.
pub(super) struct Softmax<'a, 'p, T, S> {
    pub task: &'a BlockTask<'a, T>,
    pub block: &'a Block<'a, S>,
    pub scores: ScoresPointers,
    pub chunks: &'a Range<usize>,
    pub prefetcher: &'a mut Prefetcher<'p>,
}

impl<T: Number, S: Simd> OutOfLine<S> for Softmax<'_, '_, T, S> {
    #[inline(always)]
    fn run(self, s: S) {
        let Softmax { task, block, scores, chunks, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe {
            if task.steps.softmax {
                prefetcher.fill_pause(s);
                task.run_weights(block, scores, chunks, prefetcher);
            } else {
                task.recover_weights(block, scores, chunks);
            }
        }
    }
}

/// Computes the weighted values of `positions` of one chunk, of fresh and cached V.
pub(super) struct ValuesOf<'a, 'p, S, E> {
    pub block: &'a Block<'a, S>,
    pub values: KvPointers<E>,
    pub weights: Strided<*const f32>,
    pub positions: Range<usize>,
    pub sums: *mut f32,
    pub prefetcher: &'a mut Prefetcher<'p>,
}

impl<S: Simd, T: Number> OutOfLine<S> for ValuesOf<'_, '_, S, T> {
    #[inline(always)]
    fn run(self, _: S) {
        let ValuesOf { block, values, weights, positions, sums, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe { block.values(values, weights, positions, sums, prefetcher) }
    }
}

impl<S: Simd> OutOfLine<S> for ValuesOf<'_, '_, S, u8> {
    #[inline(always)]
    fn run(self, _: S) {
        let ValuesOf { block, values, weights, positions, sums, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe { block.kv4_values(values, weights, positions, sums, prefetcher) }
    }
}

impl<S: Simd> OutOfLine<S> for ValuesOf<'_, '_, S, i8> {
    #[inline(always)]
    fn run(self, _: S) {
        let ValuesOf { block, values, weights, positions, sums, prefetcher } = self;
        // SAFETY: guaranteed by the code that constructs the step.
        unsafe { block.kv8_values(values, weights, positions, sums, prefetcher) }
    }
}
