//! One task of a call: a block of rows of one unit, whole or one chunk of its positions.
//!
//! Positions are cut into chunks of [`CHUNK`]. Every sum over positions is taken chunk by chunk, in
//! order, whether one thread works on all chunks of a block or many on one each; so the cut changes
//! no bit.

use super::block::{Block, Source};
use super::four;
use super::prefetch::{Prefetcher, Stretch};
use super::scores::BLOCK_POSITIONS;
use super::shape::{AttentionShape, Unit, head_stride, record_bytes, score_stride};
use super::softmax::{exponentials, maximum, multiply};
use crate::number::Number;
use crate::scratch::Shared;
use crate::simd::Simd;
use crate::variant::{SimdTask, Variant};

/// Positions of a chunk, a multiple of every vector.
pub(super) const CHUNK: usize = 1024;

/// Which of the three operations a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    pub scores: bool,
    pub softmax: bool,
    pub values: bool,
}

/// The tensors of a call; those that its steps do not touch are null.
#[derive(Debug)]
pub(super) struct Tensors<T> {
    pub q: *const T,
    pub k: Source<T>,
    pub v: Source<T>,
    pub out: *mut T,
    /// Scores to read; null for those of the same call.
    pub scores_in: *const f32,
    /// Scores or probabilities to write; null for scratch.
    pub scores_out: *mut f32,
}

// SAFETY: the pointers come from slices borrowed for the whole call; tasks write disjoint parts.
unsafe impl<T: Send + Sync> Sync for Tensors<T> {}

/// How much of a block a task does. Phases of a split block follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// Scores of a chunk, and their maximum.
    Scores(usize),
    /// Exponentials of a chunk, and their sum.
    Exponentials(usize),
    /// Probabilities and weighted values of a chunk.
    Values(usize),
    /// The sum of all chunks' weighted values.
    Finish,
}

/// What the chunks of a split block leave for its next phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitScratch {
    /// One block of it, from here on.
    pub at: Shared<f32>,
    pub chunks: usize,
}

/// Floats of [`SplitScratch`] for `queries` queries and `positions` positions.
pub(super) fn split_len(queries: usize, positions: usize, head_dim: usize) -> usize {
    let chunk = queries * (2 + head_stride(head_dim));
    (queries * score_stride(positions) + positions.div_ceil(CHUNK) * chunk).next_multiple_of(16)
}

/// Floats of scratch for a block of K or V multiplied by up to `queries` queries.
fn transposed_len(head_dim: usize, queries: usize) -> usize {
    let plain = head_stride(head_dim) * BLOCK_POSITIONS;
    plain.max(four::scratch_len(head_dim, queries))
}

/// Floats of scratch of a thread for blocks of up to `queries` queries, besides their scores.
pub(super) fn heads_len(queries: usize, head_dim: usize) -> usize {
    3 * queries * head_stride(head_dim) + transposed_len(head_dim, queries)
}

/// One task; see the module header.
#[derive(Debug)]
pub struct BlockTask<'a, T> {
    pub(super) variant: Variant,
    pub(super) shape: &'a AttentionShape,
    pub(super) unit: Unit,
    pub(super) rows: std::ops::Range<usize>,
    pub(super) steps: Steps,
    pub(super) tensors: &'a Tensors<T>,
    pub(super) part: Part,
    /// What this thread most likely does next.
    pub(super) next: Option<(Unit, Part)>,
    /// This thread's scratch.
    pub(super) scratch: *mut f32,
    /// Null for whole blocks.
    pub(super) split: SplitScratch,
}

/// Where scores are read and written; position 0 of the block's first query.
#[derive(Clone, Copy)]
struct Scores {
    from: *const f32,
    to: *mut f32,
    stride: usize,
}

impl<T: Number> SimdTask for BlockTask<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let group = self.shape.group();
        let head = self.rows.len() * group * head_stride(self.shape.head_dim);
        let transposed = self.scratch.wrapping_add(3 * head);
        let block = Block {
            s,
            shape: self.shape,
            unit: self.unit,
            rows: self.rows.clone(),
            group,
            packed: self.scratch,
            pairs: !T::IS_F32 && self.variant.multiplies_pairs(),
            transposed,
        };
        // SAFETY: units were checked against all slices; scratch was sized for the blocks that the
        // schedule makes.
        unsafe {
            let scores = self.scores(
                self.scratch
                    .wrapping_add(3 * head + transposed_len(self.shape.head_dim, block.queries())),
            );
            let mut prefetcher = self.prefetcher();
            prefetcher.fill_pause(s);
            self.ask_for_rows(s);
            self.run_scores(&block, scores, &mut prefetcher);
            if self.steps.softmax {
                prefetcher.fill_pause(s);
                self.run_softmax(&block, scores, &mut prefetcher);
            }
            if self.steps.values {
                self.run_values(&block, scores, self.scratch.wrapping_add(head), &mut prefetcher);
            }
            prefetcher.finish(s);
        }
    }
}

impl<T: Number> BlockTask<'_, T> {
    /// What this task reads of the caches, and first what the next one will.
    fn prefetcher(&self) -> Prefetcher {
        let next = match &self.next {
            Some((unit, part)) => self.cached(unit, *part),
            None => [Stretch::NONE; 2],
        };
        Prefetcher::new(self.variant, self.cached(&self.unit, self.part), next)
    }

    /// Prefetches what the first row of the next task reads and writes besides K and V: the stream
    /// of these evicts it from all caches, and the task stalls on each access to it.
    #[inline(always)]
    fn ask_for_rows<S: Simd>(&self, s: S) {
        let Some((unit, Part::Whole | Part::Scores(_))) = &self.next else { return };
        let AttentionShape { kv_heads, head_dim, .. } = *self.shape;
        let prefetch = |from: *const T, heads: usize| {
            for at in (0..heads * head_dim * size_of::<T>()).step_by(64) {
                s.prefetch(from.cast::<u8>().wrapping_add(at));
            }
        };
        let head = unit.row0 as usize * kv_heads + unit.kv_head as usize;
        let group = self.shape.group();
        let Tensors { q, k, v, out, .. } = *self.tensors;
        prefetch(q.wrapping_add(head * group * head_dim), group);
        prefetch(out.wrapping_add(head * group * head_dim), group);
        for source in [k, v] {
            if let Source::Plain { fresh, .. } = source {
                prefetch(fresh.wrapping_add(head * head_dim), 1);
            }
        }
    }

    /// Cached K and V of a part of a unit, in the order of reading.
    fn cached(&self, unit: &Unit, part: Part) -> [Stretch; 2] {
        let past = unit.cached() as usize;
        let of_chunk = |chunk: usize| (chunk * CHUNK).min(past)..((chunk + 1) * CHUNK).min(past);
        let (k, v) = match part {
            Part::Whole => (0..past, 0..past),
            Part::Scores(chunk) => (of_chunk(chunk), 0..0),
            Part::Values(chunk) => (0..0, of_chunk(chunk)),
            Part::Exponentials(_) | Part::Finish => (0..0, 0..0),
        };
        let stretch = |wanted: bool, source: Source<T>, positions: std::ops::Range<usize>| {
            let head_dim = self.shape.head_dim;
            let (cache, position_bytes) = match source {
                Source::Plain { cache, .. } => (cache.cast(), head_dim * size_of::<T>()),
                Source::Four { cache, .. } => (cache, record_bytes(head_dim)),
            };
            if !wanted || positions.is_empty() {
                return Stretch::NONE;
            }
            let first = unit.cache_offset / head_dim + positions.start;
            let from = cache.wrapping_add(first * position_bytes);
            Stretch { from, bytes: positions.len() * position_bytes }
        };
        let Tensors { k: keys, v: values, .. } = *self.tensors;
        [stretch(self.steps.scores, keys, k), stretch(self.steps.values, values, v)]
    }

    /// Scores of the call, or those in `scratch` or in the split scratch.
    #[inline(always)]
    fn scores(&self, scratch: *mut f32) -> Scores {
        let positions = self.unit.positions();
        let Tensors { scores_in, scores_out, .. } = *self.tensors;
        if scores_in.is_null() && scores_out.is_null() {
            let to = if self.part == Part::Whole { scratch } else { self.split.at.pointer() };
            return Scores { from: to, to, stride: score_stride(positions) };
        }
        let at = self.unit.scores_offset + self.rows.start * self.shape.group() * positions;
        let to = scores_out.wrapping_add(at);
        if scores_in.is_null() {
            return Scores { from: to, to, stride: positions };
        }
        let from = scores_in.wrapping_add(at);
        // The weighted values alone only read.
        let to = if scores_out.is_null() { from.cast_mut() } else { to };
        Scores { from, to, stride: positions }
    }

    /// # Safety
    /// As the caller, [`SimdTask::run`].
    #[inline(always)]
    unsafe fn run_scores<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: Scores,
        prefetcher: &mut Prefetcher,
    ) {
        let positions = match self.part {
            Part::Whole => 0..block.positions(),
            Part::Scores(chunk) => chunk * CHUNK..block.positions().min((chunk + 1) * CHUNK),
            _ => return,
        };
        if self.steps.scores {
            // SAFETY: the caller's promise.
            unsafe {
                let out = (scores.to, scores.stride);
                match self.tensors.k {
                    Source::Plain { fresh, cache } => {
                        block.pack_queries(self.tensors.q);
                        block.scores((fresh, cache), out, positions, prefetcher);
                    }
                    Source::Four { fresh, cache } => {
                        block.pack_four_queries(self.tensors.q);
                        block.four_scores((fresh, cache), out, positions, prefetcher);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As the caller, [`SimdTask::run`].
    #[inline(always)]
    unsafe fn run_softmax<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: Scores,
        prefetcher: &mut Prefetcher,
    ) {
        let (s, queries) = (block.s, block.queries());
        for query in 0..queries {
            let limit = block.limit(query);
            let (chunks, row) = (limit.div_ceil(CHUNK), query * scores.stride);
            let at = |chunk: usize| (row + chunk * CHUNK, CHUNK.min(limit - chunk * CHUNK));
            let result = |sum: usize, chunk: usize| {
                let results = self.chunk_results(queries, chunk);
                if sum == 0 { results.0.wrapping_add(query) } else { results.1.wrapping_add(query) }
            };
            let whole = self.part == Part::Whole;
            let within = match self.part {
                Part::Whole => 0..chunks,
                Part::Scores(chunk) | Part::Exponentials(chunk) | Part::Values(chunk) => {
                    chunk.min(chunks)..chunks.min(chunk + 1)
                }
                Part::Finish => return,
            };
            // SAFETY: the caller's promise: chunks of visible positions, and a float of each kind
            // for every query of every chunk.
            unsafe {
                let mut highest = f32::NEG_INFINITY;
                if whole || matches!(self.part, Part::Scores(_)) {
                    for chunk in within.clone() {
                        let (at, len) = at(chunk);
                        highest = highest.max(maximum(s, scores.from.add(at), len));
                        if !whole {
                            *result(0, chunk) = highest;
                        }
                    }
                } else if matches!(self.part, Part::Exponentials(_)) {
                    for chunk in 0..chunks {
                        highest = highest.max(*result(0, chunk));
                    }
                }
                let mut sum = 0.0;
                if whole || matches!(self.part, Part::Exponentials(_)) {
                    for chunk in within.clone() {
                        let (at, len) = at(chunk);
                        let row = (scores.from.add(at), scores.to.add(at), len);
                        let part = exponentials(s, row, highest, prefetcher);
                        sum = if chunk == 0 { part } else { sum + part };
                        if !whole {
                            *result(1, chunk) = part;
                        }
                    }
                } else if matches!(self.part, Part::Values(_)) {
                    for chunk in 0..chunks {
                        let part = *result(1, chunk);
                        sum = if chunk == 0 { part } else { sum + part };
                    }
                }
                if whole && self.steps.values {
                    // What is read soon after is multiplied chunk by chunk.
                    *block.factor(query) = 1.0 / sum;
                } else if whole || matches!(self.part, Part::Values(_)) {
                    for chunk in within {
                        let (at, len) = at(chunk);
                        multiply(s, scores.to.add(at), len, 1.0 / sum);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As the caller, [`SimdTask::run`]; `scratch` has room for two heads of every query.
    #[inline(always)]
    unsafe fn run_values<S: Simd>(
        &self,
        block: &Block<'_, S>,
        scores: Scores,
        scratch: *mut f32,
        prefetcher: &mut Prefetcher,
    ) {
        let whole = self.part == Part::Whole;
        let positions = block.positions();
        let (chunks, totals) = match self.part {
            Part::Whole => (0..positions.div_ceil(CHUNK), scratch),
            Part::Values(chunk) => (chunk..chunk + 1, self.chunk_results(block.queries(), chunk).2),
            Part::Finish => (0..0, self.chunk_results(block.queries(), 0).2),
            _ => return,
        };
        let head = block.queries() * head_stride(self.shape.head_dim);
        // SAFETY: the caller's promise.
        unsafe {
            for chunk in chunks {
                let first = chunk * CHUNK;
                let weights = (scores.to.cast_const(), scores.stride);
                let added = whole && chunk > 0;
                let sums = if added { scratch.add(head) } else { totals };
                let range = first..positions.min(first + CHUNK);
                if whole && self.steps.softmax {
                    for query in 0..block.queries() {
                        let seen = block.limit(query).min(range.end);
                        if seen > first {
                            let row = scores.to.add(query * scores.stride + first);
                            multiply(block.s, row, seen - first, *block.factor(query));
                        }
                    }
                }
                match self.tensors.v {
                    Source::Plain { fresh, cache } => {
                        block.values((fresh, cache), weights, range, sums, prefetcher);
                    }
                    Source::Four { fresh, cache } => {
                        block.four_values((fresh, cache), weights, range, sums, prefetcher);
                    }
                }
                if added {
                    block.add_sums(sums, totals, first);
                }
            }
            if self.part == Part::Finish {
                for chunk in 1..self.split.chunks {
                    let sums = self.chunk_results(block.queries(), chunk).2;
                    block.add_sums(sums, totals, chunk * CHUNK);
                }
            }
            if whole || self.part == Part::Finish {
                match self.tensors.v {
                    Source::Plain { .. } => block.store_heads(totals, self.tensors.out),
                    Source::Four { .. } => block.store_four_heads(totals, self.tensors.out),
                }
            }
        }
    }

    /// Maxima, sums and weighted values of a chunk behind the scores, of its first query.
    #[inline(always)]
    fn chunk_results(&self, queries: usize, chunk: usize) -> (*mut f32, *mut f32, *mut f32) {
        let SplitScratch { at, chunks } = self.split;
        let maxima = at.pointer().wrapping_add(queries * score_stride(self.unit.positions()));
        let sums = maxima.wrapping_add(chunks * queries);
        let head = queries * head_stride(self.shape.head_dim);
        let heads = sums.wrapping_add(chunks * queries);
        let at = chunk * queries;
        (maxima.wrapping_add(at), sums.wrapping_add(at), heads.wrapping_add(chunk * head))
    }
}
