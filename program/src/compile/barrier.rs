//! FlexGen's loop as a schedule, including its known inefficiency, for comparison
//! (`generation_loop_overlap_multi_batch` in its code).
//!
//! Entries are ordered layer by layer and batch by batch; each (layer, batch) pair is an iteration
//! that ends with a barrier. The copies for what comes next run concurrently with its computation:
//! the KV of the next batch, and the weights of the next layer, all during the first batch. A layer
//! therefore takes the maximum of its weight transfer and one batch, plus its other batches;
//! `BarrierSpread` removes this restriction.

use model::ops::Op;

use crate::ir::Rows;
use crate::map::{ComputeDevice, Schedule};

use super::emit::Emitter;
use super::schedule::Entry;

/// Lists all entries with barriers and early copies.
pub(super) fn emit(emitter: &mut Emitter<'_, '_>, entries: &[Entry]) {
    let iterations: Vec<&[Entry]> = entries.split_inclusive(|entry| entry.ends_segment).collect();
    let streams = streams(&iterations);
    for (index, iteration) in iterations.iter().enumerate() {
        emitter.barrier = true;
        let stream = index % streams;
        if let Some(next) = iterations.get(index - stream + streams) {
            for entry in share(emitter, next, stream, streams) {
                emitter.weights(&entry);
            }
        }
        if let Some(next) = iterations.get(index + 1) {
            prefetch_caches(emitter, next);
        }
        for entry in *iteration {
            emitter.emit(entry);
        }
    }
}

/// Returns the number of batches (and streams) that pass each layer.
fn streams(iterations: &[&[Entry]]) -> usize {
    let first = |iteration: &&[Entry]| (iteration[0].layer, iteration[0].op);
    let Some(head) = iterations.first().map(first) else { return 1 };
    iterations.iter().take_while(|iteration| first(iteration) == head).count()
}

/// Returns the operations of the next layer whose weights are streamed during iteration `stream` of
/// this layer. The weights are distributed by bytes, whole blobs at a time.
fn share(emitter: &Emitter<'_, '_>, next: &[Entry], stream: usize, streams: usize) -> Vec<Entry> {
    let streamed =
        next.iter().filter(|entry| entry.device == ComputeDevice::Gpu && entry.op != Op::Embed);
    if emitter.map.schedule == Schedule::Barrier {
        return if stream == 0 { streamed.copied().collect() } else { Vec::new() };
    }
    let dtype = emitter.shape.dtype;
    let bytes = |entry: &Entry| entry.op.weight_bytes(emitter.config.at(entry.layer), dtype);
    let total: usize = streamed.clone().map(bytes).sum();
    let mut before = 0;
    let mut mine = Vec::new();
    for entry in streamed {
        // The batch whose share of the total bytes contains the middle of the blob.
        let middle = before + bytes(entry) / 2;
        if middle * streams / total.max(1) == stream {
            mine.push(*entry);
        }
        before += bytes(entry);
    }
    mine
}

/// Prefetches the caches of the next iteration. If streams belong to one sequence, the cache of the
/// next stream is incomplete until the rows of this one are appended.
fn prefetch_caches(emitter: &mut Emitter<'_, '_>, next: &[Entry]) {
    if emitter.program.rows != Rows::Single {
        return;
    }
    for entry in next.iter().filter(|entry| entry.device == ComputeDevice::Gpu) {
        let Some(layer) = entry.layer else { continue };
        let read = entry.op.caches(emitter.config.at(entry.layer));
        if !entry.op.is_attention() || read.is_empty() || entry.chunk.is_some() {
            continue;
        }
        let regions = emitter.caches(entry);
        for (kv, region) in read.iter().zip(regions) {
            emitter.prefetched.insert((layer, entry.batch, *kv), region);
        }
    }
}
