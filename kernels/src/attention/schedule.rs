//! Cuts a call into tasks and distributes them over threads: blocks of rows, heaviest first, each
//! some chunks of positions at a time; or chunks of each block if too few blocks would leave
//! threads idle.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::ops::Range;

use model::quantized_format::KvRecordFormat;

use super::compiled::AttentionTasks;
use super::pages::{AttentionUnits, PageLists};
use super::shape::{AttentionShape, AttentionUnit, CHUNK, chunks_of, record_bytes, score_stride};
use super::task::{
    AttentionSteps, BlockPart, BlockTask, ChunkResultsLayout, Tensors, heads_len, results_len,
};
use crate::Kernels;
use crate::number::Number;
use crate::quant::quantise_kv;
use crate::scratch::{AlignedBuffer, ScratchLimits, SharedPointer, ThreadScratch};
use crate::simd::MAX_LANES;
use crate::variant::Variant;

/// Maximum number of queries (row by head of the group) of a block, unless one row has more.
const MAX_BLOCK_QUERIES: usize = 64;
/// Floats of scores that stay in L2 in addition to the data being read: those of a chunk for a
/// limited number of queries.
const MAX_SCORES: usize = 96 << 10;
/// Number of fresh head rows that one task quantises.
const TASK_RECORDS: usize = 64;
/// Maximum number of blocks, or chunks of blocks, that are distributed in one run.
const MAX_ITEMS: usize = 8192;
/// Maximum number of KV heads whose fresh rows fit as records: a limit on address space, which
/// costs no memory before it is used.
const MAX_KV_HEADS: usize = 128;
/// Calls that access fewer bytes do not justify two runs.
const MIN_SPLIT_BYTES: usize = 1 << 20;

/// A block of rows of a unit.
#[derive(Debug, Clone, Copy)]
struct BlockItem {
    unit: u32,
    first: u32,
    rows: u32,
    /// Number of positions that its rows see.
    positions: u32,
    /// Thread that the item is assigned to.
    thread: usize,
    /// Offset of its results in the shared scratch.
    results_offset: usize,
}

impl BlockItem {
    fn heaviest_first(&self) -> Reverse<(u32, u32)> {
        Reverse((self.positions * self.rows, self.positions))
    }

    fn rows(&self) -> Range<usize> {
        self.first as usize..(self.first + self.rows) as usize
    }
}

/// One chunk of an item.
#[derive(Debug, Clone, Copy)]
struct ItemChunk {
    item: u32,
    chunk: u32,
}

/// Lists and shared scratch of attention, allocated once.
#[derive(Debug)]
pub(crate) struct Workspace {
    items: RefCell<Vec<BlockItem>>,
    chunks: RefCell<Vec<ItemChunk>>,
    /// Results of chunks that several threads share.
    results: AlignedBuffer,
    /// Fresh rows of K, then of V, as records for a quantised cache.
    fresh: AlignedBuffer,
}

impl Workspace {
    pub(crate) fn new(threads: usize, limits: &ScratchLimits) -> Self {
        // One block has to fit; more are processed at a time so that the threads can share them.
        let chunks = max_chunks(limits);
        let block = results_len(limits.group, chunks, limits.head_dim);
        let head_dim = limits.head_dim.next_multiple_of(2);
        let largest = KvRecordFormat::Eight;
        let record = largest.position_bytes(head_dim).unwrap_or(0);
        Workspace {
            items: RefCell::new(Vec::with_capacity(MAX_ITEMS)),
            chunks: RefCell::new(Vec::with_capacity(MAX_ITEMS.max(chunks))),
            results: AlignedBuffer::new(if threads > 1 { block * threads.max(8) } else { 0 }),
            fresh: AlignedBuffer::new((2 * limits.rows * MAX_KV_HEADS * record).div_ceil(4)),
        }
    }
}

/// Returns the maximum number of chunks of a unit's positions.
fn max_chunks(limits: &ScratchLimits) -> usize {
    limits.positions.div_ceil(CHUNK)
}

/// Returns the floats of a thread's scratch before the results of a block.
fn before_results(limits: &ScratchLimits) -> usize {
    let queries = limits.group.max(MAX_BLOCK_QUERIES);
    let scores = MAX_SCORES.max(limits.group * score_stride(CHUNK)) + queries * 2 * MAX_LANES;
    (heads_len(queries, limits.head_dim) + scores).next_multiple_of(16)
}

/// Returns the floats of scratch per thread.
pub(crate) fn thread_len(limits: &ScratchLimits) -> usize {
    let queries = limits.group.max(MAX_BLOCK_QUERIES);
    before_results(limits) + results_len(queries, max_chunks(limits), limits.head_dim)
}

/// Orders items as the threads take them: every thread takes the same number, all of about the same
/// weight, heaviest first. Among equal items a thread takes consecutive ones: two threads that read
/// neighbours slow each other down.
fn assign_to_threads(items: &mut [BlockItem], threads: usize) {
    items.sort_unstable_by_key(|item| (item.heaviest_first(), item.unit, item.first));
    let mut odd = 0;
    for equal in items.chunk_by_mut(|a, b| a.heaviest_first() == b.heaviest_first()) {
        let each = equal.len() / threads;
        for (place, item) in equal.iter_mut().enumerate() {
            item.thread = match place.checked_div(each) {
                Some(thread) if thread < threads => thread,
                _ => {
                    odd += 1;
                    (odd - 1) % threads
                }
            };
        }
    }
    items.sort_unstable_by_key(|item| (item.thread, item.heaviest_first(), item.unit, item.first));
}

/// Returns the maximum number of rows of a block.
fn block_rows(shape: &AttentionShape) -> usize {
    (MAX_BLOCK_QUERIES / shape.group()).max(1)
}

/// Returns the number of chunks whose scores fit in scratch for that number of queries.
fn chunks_at_once(queries: usize) -> usize {
    (MAX_SCORES / (queries * CHUNK)).max(1)
}

/// Data of a call that every thread needs while it is distributed.
struct Call<'a, T> {
    variant: Variant,
    per_thread: &'a ThreadScratch,
    shape: &'a AttentionShape,
    units: &'a [AttentionUnit],
    pages: PageLists<'a>,
    steps: AttentionSteps,
    tensors: &'a Tensors<T>,
}

impl Kernels {
    fn attention_threads(&self) -> usize {
        self.threads().min(self.thread_limits.attention).max(1)
    }

    /// Quantises all fresh rows of K or V (`place` 0 or 1), `[rows, kv_heads * head_dim]`; returns
    /// their records in the same order.
    pub(super) fn quantise_fresh<T: Number>(
        &self,
        format: KvRecordFormat,
        shape: &AttentionShape,
        place: usize,
        fresh: &[T],
    ) -> *const u8 {
        let head_dim = shape.head_dim;
        let bytes = record_bytes(format, head_dim);
        let records = fresh.len() / head_dim;
        let half = self.attention.fresh.len() / 2 * 4;
        assert!(records * bytes <= half, "fresh rows are beyond the scratch limits");
        let all = SharedPointer(
            self.attention.fresh.as_mut_ptr().cast::<u8>().wrapping_add(place * half),
        );
        let variant = self.variant;
        self.run_attention(records.div_ceil(TASK_RECORDS), size_of_val(fresh), &|task, _| {
            let first = task * TASK_RECORDS;
            let count = TASK_RECORDS.min(records - first);
            // SAFETY: tasks write disjoint records of the scratch, which nothing else uses now.
            let out = unsafe {
                let to = all.pointer().add(first * bytes);
                std::slice::from_raw_parts_mut(to, count * bytes)
            };
            let from = &fresh[first * head_dim..(first + count) * head_dim];
            quantise_kv(variant, format, from, head_dim, out);
        });
        all.pointer().cast_const()
    }

    /// Runs `steps` on every unit.
    pub(super) fn attention_steps<T: AttentionTasks>(
        &self,
        shape: &AttentionShape,
        AttentionUnits { units, pages }: AttentionUnits<'_>,
        steps: AttentionSteps,
        tensors: &Tensors<T>,
    ) {
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let call = Call { variant, per_thread, shape, units, pages, steps, tensors };
        let mut items = self.attention.items.borrow_mut();
        let (mut unit, mut first) = (0, 0);
        while unit < units.len() {
            items.clear();
            while unit < units.len() && items.len() < MAX_ITEMS {
                let rows = units[unit].rows as usize;
                let count = block_rows(shape).min(rows - first);
                if count > 0 {
                    let seen = units[unit].seen(shape, &(first..first + count));
                    items.push(BlockItem {
                        unit: unit as u32,
                        first: first as u32,
                        rows: count as u32,
                        positions: seen.len() as u32,
                        thread: 0,
                        results_offset: 0,
                    });
                }
                first += count;
                if first == rows {
                    (unit, first) = (unit + 1, 0);
                }
            }
            assign_to_threads(&mut items, self.attention_threads());
            if call.is_unbalanced(self.attention_threads(), &items) {
                call.run_split(self, &mut items);
            } else {
                call.run_whole(self, &items);
            }
        }
    }
}

impl<T: AttentionTasks> Call<'_, T> {
    /// Returns the bytes of K and V of one position.
    fn position_bytes(&self) -> usize {
        2 * self.shape.head_dim * size_of::<T>()
    }

    /// Returns true if whole items could leave the threads idle for more than a twentieth of the
    /// run.
    fn is_unbalanced(&self, threads: usize, items: &[BlockItem]) -> bool {
        let positions = |items: &[BlockItem]| -> usize {
            items.iter().map(|item| item.positions as usize).sum()
        };
        let total = positions(items);
        let of_threads = items.chunk_by(|a, b| a.thread == b.thread).map(positions);
        let busiest = of_threads.max().unwrap_or(0);
        threads > 1
            && items.iter().any(|item| item.positions as usize > CHUNK)
            && items.iter().all(|item| item.rows == 1)
            && total * self.position_bytes() >= MIN_SPLIT_BYTES
            && (threads * busiest - total) * 20 > total
    }

    fn run_whole(&self, kernels: &Kernels, items: &[BlockItem]) {
        let positions: usize =
            items.iter().map(|item| item.positions as usize * item.rows as usize).sum();
        let results_at = before_results(&kernels.limits);
        kernels.run_attention(items.len(), positions * self.position_bytes(), &|task, thread| {
            let (item, all) = (&items[task], self.chunks(&items[task]));
            let base = SharedPointer(self.per_thread.for_thread(thread).wrapping_add(results_at));
            let results = ChunkResultsLayout { base, first_chunk: all.start, chunks: all.len() };
            let mut part = self.first_part(item);
            while let Some(this) = part {
                let next = self.next_part(item, this);
                let ahead = next.map(|part| (item, part)).or_else(|| {
                    let item = items.get(task + 1)?;
                    Some((item, self.first_part(item)?))
                });
                let finishes = next.is_none() && self.has_finish();
                self.run(item, this, finishes, ahead, results, thread);
                part = next;
            }
        });
    }

    /// Returns true if the results of chunks are combined; scores alone have none.
    fn has_finish(&self) -> bool {
        self.steps.softmax || self.steps.values
    }

    /// Returns the first chunks of an item, as many as are processed at once.
    fn first_part(&self, item: &BlockItem) -> Option<BlockPart> {
        let first = self.chunks(item).start;
        self.next_part(item, BlockPart::Chunks(first, first))
    }

    /// Returns the chunks of an item after those of a part.
    fn next_part(&self, item: &BlockItem, part: BlockPart) -> Option<BlockPart> {
        let (all, BlockPart::Chunks(_, first)) = (self.chunks(item), part) else { return None };
        let most = chunks_at_once(item.rows as usize * self.shape.group());
        (first < all.end).then(|| BlockPart::Chunks(first, all.end.min(first + most)))
    }

    /// Runs as many items at a time as fit in the scratch.
    fn run_split(&self, kernels: &Kernels, items: &mut [BlockItem]) {
        let mut chunks = kernels.attention.chunks.borrow_mut();
        let capacity = kernels.attention.results.len();
        let mut start = 0;
        while start < items.len() {
            chunks.clear();
            let (mut end, mut used) = (start, 0);
            while let Some(item) = items.get_mut(end) {
                let len = self.results_len(item);
                let of_item = self.chunks(item);
                if end > start
                    && (used + len > capacity || chunks.len() + of_item.len() > MAX_ITEMS)
                {
                    break;
                }
                item.results_offset = used;
                used += len;
                chunks.extend(
                    of_item.map(|chunk| ItemChunk { item: end as u32, chunk: chunk as u32 }),
                );
                end += 1;
            }
            assert!(used <= capacity, "the results of a block have room");
            self.run_phases(kernels, items, start..end, &chunks);
            start = end;
        }
    }

    fn results_len(&self, item: &BlockItem) -> usize {
        let queries = item.rows as usize * self.shape.group();
        results_len(queries, self.chunks(item).len(), self.shape.head_dim)
    }

    /// Returns the chunks that contain an item's positions.
    fn chunks(&self, item: &BlockItem) -> Range<usize> {
        chunks_of(&self.units[item.unit as usize].seen(self.shape, &item.rows()))
    }

    fn run_phases(
        &self,
        kernels: &Kernels,
        items: &[BlockItem],
        range: Range<usize>,
        chunks: &[ItemChunk],
    ) {
        let shared = SharedPointer(kernels.attention.results.as_mut_ptr());
        let results = |item: &BlockItem| {
            let chunks = self.chunks(item);
            let base = SharedPointer(shared.pointer().wrapping_add(item.results_offset));
            ChunkResultsLayout { base, first_chunk: chunks.start, chunks: chunks.len() }
        };
        let of = |ItemChunk { item, chunk }: &ItemChunk| {
            let chunk = *chunk as usize;
            (&items[*item as usize], BlockPart::Chunks(chunk, chunk + 1))
        };
        kernels.run_attention(chunks.len(), usize::MAX, &|task, thread| {
            let (item, part) = of(&chunks[task]);
            let next = chunks.get(task + 1).map(of);
            self.run(item, part, false, next, results(item), thread);
        });
        if self.has_finish() {
            kernels.run_attention(range.len(), usize::MAX, &|task, thread| {
                let item = &items[range.start + task];
                self.run(item, BlockPart::Combine, true, None, results(item), thread);
            });
        }
    }

    fn run(
        &self,
        item: &BlockItem,
        part: BlockPart,
        is_last: bool,
        next: Option<(&BlockItem, BlockPart)>,
        results: ChunkResultsLayout,
        thread: usize,
    ) {
        let task = BlockTask {
            variant: self.variant,
            shape: self.shape,
            unit: self.units[item.unit as usize],
            pages: self.pages,
            rows: item.rows(),
            steps: self.steps,
            tensors: self.tensors,
            part,
            is_last,
            next: next.map(|(item, part)| (self.units[item.unit as usize], item.rows(), part)),
            scratch: self.per_thread.for_thread(thread),
            results,
        };
        // SAFETY: the variant was checked when the kernels were built; every unit was checked
        // against every slice that these steps touch, and the scratch is this thread's.
        unsafe { T::attention_block(self.variant, task) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(positions: &[u32]) -> Vec<BlockItem> {
        let item = |(unit, &positions): (usize, &u32)| BlockItem {
            unit: unit as u32,
            first: 0,
            rows: 1,
            positions,
            thread: 0,
            results_offset: 0,
        };
        positions.iter().enumerate().map(item).collect()
    }

    #[test]
    fn threads_get_as_many_items_and_neighbours_of_their_own() {
        let mut equal = items(&[512; 9]);
        assign_to_threads(&mut equal, 2);
        let units: Vec<u32> = equal.iter().map(|item| item.unit).collect();
        assert_eq!(units, [0, 1, 2, 3, 8, 4, 5, 6, 7]);
        // Two sequences of four heads, and one head of a third.
        let mut ragged = items(&[64, 64, 64, 64, 900, 900, 900, 900, 80]);
        for threads in [1, 2, 3, 4] {
            assign_to_threads(&mut ragged, threads);
            for thread in 0..threads {
                // The share of each thread in a pool: the first ones have one more.
                let count = ragged.len() / threads + usize::from(thread < ragged.len() % threads);
                let own: Vec<_> = ragged.iter().filter(|item| item.thread == thread).collect();
                assert_eq!(own.len(), count, "{threads} threads, {thread}");
                assert!(own.is_sorted_by_key(|item| item.heaviest_first()));
            }
            assert!(ragged.is_sorted_by_key(|item| item.thread));
        }
        assign_to_threads(&mut ragged, 2);
        let units: Vec<u32> = ragged.iter().map(|item| item.unit).collect();
        assert_eq!(units, [4, 5, 8, 0, 1, 6, 7, 2, 3]);
    }
}
