//! One task of a call: some chunks of the positions of a block of rows of one unit, or the
//! combination of the results of all of them.
//!
//! Positions are cut into chunks of [`CHUNK`](super::shape::CHUNK), counted from position 0. The
//! results of a chunk depend on nothing outside it, and the results of a block's chunks are
//! combined in order; the assignment of chunks to tasks and threads therefore changes no bit.

use std::ops::Range;

use model::quantized_format::KvRecordFormat;

use super::block::KvSource;
use super::kv4;
use super::kv8;
use super::pages::PageLists;
use super::prefetch::{PrefetchRange, Prefetcher, TASK_RANGES};
use super::scores::BLOCK_POSITIONS;
use super::shape::{
    AttentionShape, AttentionUnit, CHUNK, head_stride, record_bytes, score_stride, within_chunks,
};
use super::strided::KvPointers;
use super::values::pairs_len;
use crate::number::Number;
use crate::scratch::SharedPointer;
use crate::simd::Simd;
use crate::variant::Variant;

/// Selects the operations that a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttentionSteps {
    pub scores: bool,
    pub softmax: bool,
    pub values: bool,
}

/// Tensors of a call; those that its steps do not access are null.
#[derive(Debug)]
pub(super) struct Tensors<T> {
    pub q: *const T,
    pub k: KvSource<T>,
    pub v: KvSource<T>,
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

/// Part of a block that a task computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockPart {
    /// Range of chunks, first to end: scores, weights, and weighted values.
    Chunks(usize, usize),
    /// Combination of the results of all chunks.
    Combine,
}

/// Location of the results of a block's chunks, starting with the first chunk that the block sees:
/// weighted values of all chunks, then factors, then sums.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkResultsLayout {
    pub base: SharedPointer<f32>,
    pub first_chunk: usize,
    pub chunks: usize,
}

/// Addresses of the results of a chunk, for its first query.
pub(super) struct ChunkResults {
    /// Highest scores, which are replaced by factors; see `softmax.rs`.
    pub factors: *mut f32,
    /// Sums of the weights.
    pub sums: *mut f32,
    /// Weighted values, a head for each query.
    pub heads: *mut f32,
}

/// Returns the floats of [`ChunkResultsLayout`] for `queries` queries and `chunks` chunks.
pub(super) fn results_len(queries: usize, chunks: usize, head_dim: usize) -> usize {
    (chunks * queries * (2 + head_stride(head_dim))).next_multiple_of(16)
}

/// Returns the floats of scratch for a block of K or V multiplied by up to `queries` queries.
pub(super) fn transposed_len(head_dim: usize, queries: usize) -> usize {
    let plain = head_stride(head_dim) * BLOCK_POSITIONS;
    let kv8 = plain + kv8::decoded_len(head_dim);
    kv8.max(kv4::scratch_len(head_dim, queries)).max(pairs_len(head_dim))
}

/// Returns the floats of a thread's scratch for blocks of up to `queries` queries, excluding their
/// scores.
pub(super) fn heads_len(queries: usize, head_dim: usize) -> usize {
    2 * queries * head_stride(head_dim) + transposed_len(head_dim, queries)
}

/// One task; see the module header.
#[derive(Debug)]
pub struct BlockTask<'a, T> {
    pub(super) variant: Variant,
    pub(super) shape: &'a AttentionShape,
    pub(super) unit: AttentionUnit,
    pub(super) pages: PageLists<'a>,
    pub(super) rows: Range<usize>,
    pub(super) steps: AttentionSteps,
    pub(super) tensors: &'a Tensors<T>,
    pub(super) part: BlockPart,
    /// True if the part is the last one of the block and this thread had all others.
    pub(super) is_last: bool,
    /// Most likely next task of this thread.
    pub(super) next: Option<(AttentionUnit, Range<usize>, BlockPart)>,
    /// This thread's scratch.
    pub(super) scratch: *mut f32,
    pub(super) results: ChunkResultsLayout,
}

/// Addresses where scores are read, and where scores, weights or probabilities are written:
/// position 0 of the block's first query, which may be outside the allocation.
#[derive(Clone, Copy)]
pub(super) struct ScoresPointers {
    pub from: *const f32,
    pub to: *mut f32,
    /// Distance in floats from one query to the next, for reads and for writes.
    pub stride: usize,
    pub stride_to: usize,
}

impl<T: Number> BlockTask<'_, T> {
    /// Returns the prefetcher of this task's cache reads and of the beginning of the next task's.
    pub(super) fn prefetcher(&self) -> Prefetcher<'_> {
        let next = match &self.next {
            Some((unit, rows, part)) => self.cached(unit, rows, *part),
            None => [PrefetchRange::NONE; TASK_RANGES],
        };
        let this = self.cached(&self.unit, &self.rows, self.part);
        let pages = (self.pages.pages, self.shape.kv_heads);
        Prefetcher::new(self.variant, this, next, pages)
    }

    /// Prefetches the data other than K and V that the first row of the next task reads and writes:
    /// the stream of K and V evicts it from all caches, and the task would stall on each access to
    /// it.
    #[inline(always)]
    pub(super) fn ask_for_rows<S: Simd>(&self, s: S) {
        let Some((unit, _, BlockPart::Chunks(..))) = &self.next else { return };
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
            if let KvSource::Plain(KvPointers { fresh, .. }) = source {
                prefetch(fresh.wrapping_add(head * head_dim), 1);
            }
        }
    }

    /// Returns the cached K and V of a part of rows of a unit, in the order of reading: each in two
    /// runs, or in pages.
    fn cached(
        &self,
        unit: &AttentionUnit,
        rows: &Range<usize>,
        part: BlockPart,
    ) -> [PrefetchRange; TASK_RANGES] {
        let read = match part {
            BlockPart::Chunks(first, end) => {
                within_chunks(&unit.seen(self.shape, rows), &(first..end))
            }
            BlockPart::Combine => 0..0,
        };
        let head_dim = self.shape.head_dim;
        let stretches = |source: KvSource<T>, positions: Range<usize>| {
            let (cache, place_bytes) = match source {
                KvSource::Plain(kv) => (kv.cache.cast(), head_dim * size_of::<T>()),
                KvSource::Kv4(kv) => (kv.cache, record_bytes(KvRecordFormat::Four, head_dim)),
                KvSource::Kv8(kv) => {
                    (kv.cache.cast(), record_bytes(KvRecordFormat::Eight, head_dim))
                }
            };
            let cache = cache.wrapping_add(unit.cache_offset / head_dim * place_bytes);
            let run = |positions: &Range<usize>| {
                if positions.is_empty() {
                    return (PrefetchRange::NONE, positions.end);
                }
                let (place, end) = unit.run(positions);
                let bytes = (end - positions.start) * place_bytes;
                (PrefetchRange::run(cache.wrapping_add(place * place_bytes), bytes), end)
            };
            let past = if unit.shared_row.is_some() { 0 } else { unit.past as usize };
            let end = positions.end.min(past);
            if self.pages.is_paged() && positions.start < end {
                let pages = self.paged(unit, cache, place_bytes, positions.start..end);
                return [pages, PrefetchRange::NONE];
            }
            let (older, first) = run(&(positions.start..end));
            [older, run(&(first..end)).0]
        };
        let k = if self.steps.scores { read.clone() } else { 0..0 };
        let v = if self.steps.values { read } else { 0..0 };
        let Tensors { k: keys, v: values, .. } = *self.tensors;
        let [[a, b], [c, d]] = [stretches(keys, k), stretches(values, v)];
        [a, b, c, d]
    }

    /// Returns the cached positions of a unit whose caches are in pages, `place_bytes` each.
    fn paged(
        &self,
        unit: &AttentionUnit,
        cache: *const u8,
        place_bytes: usize,
        positions: Range<usize>,
    ) -> PrefetchRange {
        let page_positions = self.pages.page_positions as usize;
        let page_bytes = page_positions * place_bytes;
        PrefetchRange {
            from: cache.wrapping_add(unit.kv_head as usize * page_bytes),
            bytes: positions.len() * place_bytes,
            page_bytes,
            first_page: unit.first_page as usize + positions.start / page_positions,
            skipped_bytes: positions.start % page_positions * place_bytes,
        }
    }

    /// Returns the positions of the part's chunks that the block's rows see.
    #[inline(always)]
    pub(super) fn positions(&self) -> Range<usize> {
        let seen = self.unit.seen(self.shape, &self.rows);
        match self.part {
            BlockPart::Chunks(first, end) => within_chunks(&seen, &(first..end)),
            BlockPart::Combine => seen,
        }
    }

    /// Returns the scores of the call, or those in `scratch`, which has space for the part's
    /// positions.
    #[inline(always)]
    pub(super) fn scores(&self, scratch: *mut f32) -> ScoresPointers {
        // The space begins with a chunk, so that vectors of positions are aligned.
        let Range { start, end } = self.positions();
        let start = start / CHUNK * CHUNK;
        let to = scratch.wrapping_sub(start);
        let room = score_stride(end - start);
        let positions = self.unit.positions();
        let at = self.unit.scores_offset + self.rows.start * self.shape.group() * positions;
        let Tensors { scores_in, scores_out, .. } = *self.tensors;
        let (from, stride) = match scores_in.is_null() {
            true if scores_out.is_null() => (to.cast_const(), room),
            true => (scores_out.wrapping_add(at).cast_const(), positions),
            false => (scores_in.wrapping_add(at), positions),
        };
        match scores_out.is_null() {
            true => ScoresPointers { from, to, stride, stride_to: room },
            false => {
                let to = scores_out.wrapping_add(at);
                ScoresPointers { from, to, stride, stride_to: positions }
            }
        }
    }

    /// Returns the location of the results of a chunk.
    #[inline(always)]
    pub(super) fn results(&self, queries: usize, chunk: usize) -> ChunkResults {
        let ChunkResultsLayout { base, first_chunk, chunks } = self.results;
        let head = queries * head_stride(self.shape.head_dim);
        let index = chunk.wrapping_sub(first_chunk);
        let heads = base.pointer();
        let factors = heads.wrapping_add(chunks * head);
        let sums = factors.wrapping_add(chunks * queries);
        ChunkResults {
            factors: factors.wrapping_add(index * queries),
            sums: sums.wrapping_add(index * queries),
            heads: heads.wrapping_add(index * head),
        }
    }
}
