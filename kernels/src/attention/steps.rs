//! The steps of a part of a block, each compiled as a function of its own.

use std::ops::Range;

use super::block::Block;
use super::prefetch::Prefetcher;
use super::shape::within_chunk;
use super::task::{BlockTask, Scores};
use crate::number::Number;
use crate::simd::{Part, Simd};

/// What a step works on: some chunks of a block, for whose units and scratch the task answers.
pub(super) struct Step<'a, T, S> {
    pub task: &'a BlockTask<'a, T>,
    pub block: &'a Block<'a, S>,
    pub scores: Scores,
    pub chunks: &'a Range<usize>,
}

impl<T, S> Clone for Step<'_, T, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, S> Copy for Step<'_, T, S> {}

/// Scores over fresh and cached K.
pub(super) struct PlainScores<'a, 'p, T, S> {
    pub step: Step<'a, T, S>,
    pub from: (*const T, *const T),
    pub prefetcher: &'a mut Prefetcher<'p>,
}

/// The same over 4-bit records.
pub(super) struct FourScores<'a, 'p, T, S> {
    pub step: Step<'a, T, S>,
    pub from: (*const u8, *const u8),
    pub prefetcher: &'a mut Prefetcher<'p>,
}

/// Scores become weights, or probabilities do again.
pub(super) struct Softmax<'a, 'p, T, S> {
    pub step: Step<'a, T, S>,
    pub prefetcher: &'a mut Prefetcher<'p>,
}

/// Weighted values of fresh and cached V.
pub(super) struct PlainValues<'a, 'p, T, S> {
    pub step: Step<'a, T, S>,
    pub from: (*const T, *const T),
    pub prefetcher: &'a mut Prefetcher<'p>,
}

/// The same over 4-bit records.
pub(super) struct FourValues<'a, 'p, T, S> {
    pub step: Step<'a, T, S>,
    pub from: (*const u8, *const u8),
    pub prefetcher: &'a mut Prefetcher<'p>,
}

impl<T: Number, S: Simd> Part<S> for PlainScores<'_, '_, T, S> {
    #[inline(always)]
    fn run(self, _: S) {
        let PlainScores { step: Step { task, block, scores, .. }, from, prefetcher } = self;
        let (out, positions) = ((scores.to, scores.stride_to), task.positions());
        // SAFETY: as the step says.
        unsafe {
            block.pack_queries(task.tensors.q);
            block.scores(from, out, positions, prefetcher);
        }
    }
}

impl<T: Number, S: Simd> Part<S> for FourScores<'_, '_, T, S> {
    #[inline(always)]
    fn run(self, _: S) {
        let FourScores { step: Step { task, block, scores, .. }, from, prefetcher } = self;
        let (out, positions) = ((scores.to, scores.stride_to), task.positions());
        // SAFETY: as the step says.
        unsafe {
            block.pack_four_queries(task.tensors.q);
            block.four_scores(from, out, positions, prefetcher);
        }
    }
}

impl<T: Number, S: Simd> Part<S> for Softmax<'_, '_, T, S> {
    #[inline(always)]
    fn run(self, s: S) {
        let Softmax { step: Step { task, block, scores, chunks }, prefetcher } = self;
        // SAFETY: as the step says; scores are those of this call, or probabilities.
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

impl<T: Number, S: Simd> Part<S> for PlainValues<'_, '_, T, S> {
    #[inline(always)]
    fn run(self, _: S) {
        let PlainValues { step: Step { task, block, scores, chunks }, from, prefetcher } = self;
        let weights = (scores.to.cast_const(), scores.stride_to);
        for chunk in chunks.clone() {
            let positions = within_chunk(&block.positions(), chunk);
            let sums = task.results(block.queries(), chunk).heads;
            // SAFETY: as the step says; the weights are there.
            unsafe { block.values(from, weights, positions, sums, prefetcher) };
        }
    }
}

impl<T: Number, S: Simd> Part<S> for FourValues<'_, '_, T, S> {
    #[inline(always)]
    fn run(self, _: S) {
        let FourValues { step: Step { task, block, scores, chunks }, from, prefetcher } = self;
        let weights = (scores.to.cast_const(), scores.stride_to);
        for chunk in chunks.clone() {
            let positions = within_chunk(&block.positions(), chunk);
            let sums = task.results(block.queries(), chunk).heads;
            // SAFETY: as the step says; the weights are there.
            unsafe { block.four_values(from, weights, positions, sums, prefetcher) };
        }
    }
}
