//! One task of a call: a block of rows of one unit, whole or one chunk of its positions.
//!
//! Positions are cut into chunks of [`CHUNK`](super::shape::CHUNK), counted from position 0 on.
//! Every sum over positions is taken chunk by chunk, in order, whether one thread works on all
//! chunks of a block or many on one each; so the cut changes no bit.

use std::ops::Range;

use super::block::Source;
use super::four;
use super::pages::PageLists;
use super::prefetch::{OF_TASK, Prefetcher, Stretch};
use super::scores::BLOCK_POSITIONS;
use super::shape::{AttentionShape, Unit, head_stride, record_bytes, score_stride, within_chunk};
use crate::number::Number;
use crate::scratch::Shared;
use crate::simd::Simd;
use crate::variant::Variant;

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
    /// A sink for each query head; null for none.
    pub sinks: *const f32,
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
    /// The chunks that have results in it.
    pub first_chunk: usize,
    pub chunks: usize,
}

/// Floats of [`SplitScratch`] for `queries` queries, scores of `positions` positions and that many
/// chunks.
pub(super) fn split_len(queries: usize, positions: usize, chunks: usize, head_dim: usize) -> usize {
    let chunk = queries * (2 + head_stride(head_dim));
    (queries * score_stride(positions) + chunks * chunk).next_multiple_of(16)
}

/// Floats of scratch for a block of K or V multiplied by up to `queries` queries.
pub(super) fn transposed_len(head_dim: usize, queries: usize) -> usize {
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
    pub(super) pages: PageLists<'a>,
    pub(super) rows: Range<usize>,
    pub(super) steps: Steps,
    pub(super) tensors: &'a Tensors<T>,
    pub(super) part: Part,
    /// What this thread most likely does next.
    pub(super) next: Option<(Unit, Range<usize>, Part)>,
    /// This thread's scratch.
    pub(super) scratch: *mut f32,
    /// Null for whole blocks.
    pub(super) split: SplitScratch,
}

/// Where scores are read and written; position 0 of the block's first query, which need not be
/// there.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub from: *const f32,
    pub to: *mut f32,
    pub stride: usize,
}

impl<T: Number> BlockTask<'_, T> {
    /// What this task reads of the caches, and first what the next one will.
    pub(super) fn prefetcher(&self) -> Prefetcher<'_> {
        let next = match &self.next {
            Some((unit, rows, part)) => self.cached(unit, rows, *part),
            None => [Stretch::NONE; OF_TASK],
        };
        let this = self.cached(&self.unit, &self.rows, self.part);
        let pages = (self.pages.pages, self.shape.kv_heads);
        Prefetcher::new(self.variant, this, next, pages)
    }

    /// Prefetches what the first row of the next task reads and writes besides K and V: the stream
    /// of these evicts it from all caches, and the task stalls on each access to it.
    #[inline(always)]
    pub(super) fn ask_for_rows<S: Simd>(&self, s: S) {
        let Some((unit, _, Part::Whole | Part::Scores(_))) = &self.next else { return };
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

    /// Cached K and V of a part of rows of a unit, in the order of reading: each in two runs, or in
    /// pages.
    fn cached(&self, unit: &Unit, rows: &Range<usize>, part: Part) -> [Stretch; OF_TASK] {
        let seen = unit.seen(self.shape, rows);
        let (k, v) = match part {
            Part::Whole => (seen.clone(), seen),
            Part::Scores(chunk) => (within_chunk(&seen, chunk), 0..0),
            Part::Values(chunk) => (0..0, within_chunk(&seen, chunk)),
            Part::Exponentials(_) | Part::Finish => (0..0, 0..0),
        };
        let head_dim = self.shape.head_dim;
        let stretches = |source: Source<T>, positions: Range<usize>| {
            let (cache, place_bytes) = match source {
                Source::Plain { cache, .. } => (cache.cast(), head_dim * size_of::<T>()),
                Source::Four { cache, .. } => (cache, record_bytes(head_dim)),
            };
            let cache = cache.wrapping_add(unit.cache_offset / head_dim * place_bytes);
            let run = |positions: &Range<usize>| {
                if positions.is_empty() {
                    return (Stretch::NONE, positions.end);
                }
                let (place, end) = unit.run(positions);
                let bytes = (end - positions.start) * place_bytes;
                (Stretch::run(cache.wrapping_add(place * place_bytes), bytes), end)
            };
            let past = if unit.shared_row.is_some() { 0 } else { unit.past as usize };
            let end = positions.end.min(past);
            if self.pages.is_paged() && positions.start < end {
                let pages = self.paged(unit, cache, place_bytes, positions.start..end);
                return [pages, Stretch::NONE];
            }
            let (older, first) = run(&(positions.start..end));
            [older, run(&(first..end)).0]
        };
        let (k, v) =
            (if self.steps.scores { k } else { 0..0 }, if self.steps.values { v } else { 0..0 });
        let Tensors { k: keys, v: values, .. } = *self.tensors;
        let [[a, b], [c, d]] = [stretches(keys, k), stretches(values, v)];
        [a, b, c, d]
    }

    /// Cached positions of a unit whose caches are in pages, `place_bytes` each.
    fn paged(
        &self,
        unit: &Unit,
        cache: *const u8,
        place_bytes: usize,
        positions: Range<usize>,
    ) -> Stretch {
        let page_positions = self.pages.page_positions as usize;
        let page_bytes = page_positions * place_bytes;
        Stretch {
            from: cache.wrapping_add(unit.kv_head as usize * page_bytes),
            bytes: positions.len() * place_bytes,
            page_bytes,
            first_page: unit.first_page as usize + positions.start / page_positions,
            skipped_bytes: positions.start % page_positions * place_bytes,
        }
    }

    /// Scores of the call, or those in `scratch` or in the split scratch.
    #[inline(always)]
    pub(super) fn scores(&self, scratch: *mut f32) -> Scores {
        let positions = self.unit.positions();
        let Tensors { scores_in, scores_out, .. } = *self.tensors;
        if scores_in.is_null() && scores_out.is_null() {
            let to = if self.part == Part::Whole { scratch } else { self.split.at.pointer() };
            let span = self.unit.scores_span(self.shape, &self.rows);
            let to = to.wrapping_sub(span.start);
            return Scores { from: to, to, stride: score_stride(span.len()) };
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

    /// Maxima, sums and weighted values of a chunk behind the scores, of its first query.
    #[inline(always)]
    pub(super) fn chunk_results(
        &self,
        queries: usize,
        chunk: usize,
    ) -> (*mut f32, *mut f32, *mut f32) {
        let SplitScratch { at, first_chunk, chunks } = self.split;
        let span = self.unit.scores_span(self.shape, &self.rows);
        let maxima = at.pointer().wrapping_add(queries * score_stride(span.len()));
        let sums = maxima.wrapping_add(chunks * queries);
        let head = queries * head_stride(self.shape.head_dim);
        let heads = sums.wrapping_add(chunks * queries);
        let at = chunk.wrapping_sub(first_chunk);
        let row = at.wrapping_mul(queries);
        (
            maxima.wrapping_add(row),
            sums.wrapping_add(row),
            heads.wrapping_add(at.wrapping_mul(head)),
        )
    }
}
