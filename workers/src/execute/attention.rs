//! `Scores`, `Softmax`, `Wv` and fused attention, over the units of a chunk.
//!
//! Fresh K and V always come from the values of this step and never from the cache, on every
//! device, so an append may happen before or after without changing a bit. An append to a ring of
//! positions comes after, since it overwrites the oldest. With a quantised cache the kernels read
//! fresh rows as the append will store them.

use kernels::{
    AttentionShape, AttentionUnit, AttentionUnits, Columns, Element, Kernels, KvCacheSlice,
    PageLists,
};
use model::config::ModelConfig;
use model::ops::{Kv, Op, Value};
use program::ir::{Compute, Region, Rows};
use program::map::Chunk;

use super::operands::{Operands, output_region};
use crate::work_items;

/// Runs the operation and returns the number of bytes of cached K and V read. Lists the units in
/// `units` and their pages in `pages`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    units: &mut Vec<AttentionUnit>,
    pages: &mut Vec<u32>,
    operands: &Operands<'_>,
    compute: &Compute,
    count: usize,
) -> u64 {
    let config = operands.config;
    let shape = shape(config, compute);
    units.clear();
    units.extend(work_items::units(operands.table, operands.program, compute.at, compute.chunk));
    if units.is_empty() {
        return 0;
    }
    work_items::list_pages(operands.table, operands.program, compute.at, Kv::K, pages);
    let page_positions = operands.table.page_places(compute.at.layer, Kv::K);
    let units = AttentionUnits { units, pages: PageLists { page_positions, pages } };
    let cached: u64 = units.units.iter().map(|unit| u64::from(unit.cached_seen(&shape))).sum();
    // The only weights of an attention operation are the sinks of a softmax.
    let sinks = operands.vector(compute, 0);
    let kv_format = operands.plan.map.kv_format;
    let position_bytes =
        kv_format.position_bytes(config.head_dim, operands.plan.shape.dtype) as u64;
    match compute.op {
        Op::Scores => {
            let q = operands.rows::<T>(compute.inputs[0], Value::Query, count);
            let k = operands.rows::<T>(compute.inputs[1], Value::Key, count);
            let out = scores_mut(operands, compute, output_region(compute));
            kernels.scores(&shape, units, q, k, cache(operands, compute, Kv::K), out);
        }
        Op::Softmax => {
            let scores = scores(operands, compute, compute.inputs[0]);
            let out = scores_mut(operands, compute, output_region(compute));
            kernels.softmax(&shape, units.units, scores, sinks, out);
        }
        Op::Wv => {
            let probabilities = scores(operands, compute, compute.inputs[0]);
            let (value, kv) = values(config);
            let v = operands.rows::<T>(compute.inputs[1], value, count);
            let out = attended::<T>(operands, compute, count);
            let cached_v = cache(operands, compute, kv);
            kernels.weighted_values(&shape, units, probabilities, v, cached_v, out);
        }
        _ => {
            let q = operands.rows::<T>(compute.inputs[0], Value::Query, count);
            let k = operands.rows::<T>(compute.inputs[1], Value::Key, count);
            let (value, kv) = values(config);
            let fresh = compute.inputs[usize::from(kv == Kv::V) + 1];
            let v = operands.rows::<T>(fresh, value, count);
            let (cached_k, cached_v) =
                (cache(operands, compute, Kv::K), cache(operands, compute, kv));
            let out = attended::<T>(operands, compute, count);
            kernels.attention(&shape, units, q, k, v, cached_k, cached_v, sinks, out);
        }
    }
    cached * position_bytes * compute.op.caches(config).len() as u64
}

/// Returns the fresh rows that are weighted, and their cache: the keys, where values are these or a
/// part of them.
const fn values(config: &ModelConfig) -> (Value, Kv) {
    match config.has_single_cache() {
        true => (Value::Key, Kv::K),
        false => (Value::Value, Kv::V),
    }
}

/// Returns the shape that all units of the operation share.
pub(super) fn shape(config: &ModelConfig, compute: &Compute) -> AttentionShape {
    let window = config.layers.kind(compute.at.layer.map_or(0, usize::from)).window;
    AttentionShape {
        heads: config.num_heads,
        kv_heads: config.num_kv_heads,
        head_dim: config.attention_dim(),
        scale: config.attention_scale(),
        window: window.and_then(|window| u32::try_from(window).ok()),
    }
}

/// Returns the rows in which the operation writes its units' columns.
pub(super) fn attended<'a, T: Element>(
    operands: &Operands<'a>,
    compute: &Compute,
    count: usize,
) -> Columns<'a, T> {
    let (first, len) = operands.output_pointer::<T>(compute, count);
    // SAFETY: needed because another lane may write other columns of these rows, other chunks of
    // the value, at the same time. The view has checked that they are mapped; columns of this chunk
    // belong to this lane alone, as the validator has proved.
    unsafe { Columns::new(first, len) }
}

/// Returns the cache from the chunk's first unit on; empty if nothing is cached.
pub(super) fn cache<'a, T: Element>(
    operands: &Operands<'a>,
    compute: &Compute,
    kv: Kv,
) -> KvCacheSlice<'a, T> {
    let caches = compute.op.caches(operands.config);
    let place = caches.iter().position(|other| *other == kv);
    let buffer = place.and_then(|place| compute.caches.get(place)).map(|region| region.buffer);
    let Operands { plan, table, view, program, .. } = *operands;
    let origin = table.cache_origin(program, compute.at, compute.chunk, kv);
    let place_dim = table.place_dim(compute.at.layer, kv);
    let place_bytes = plan.map.kv_format.position_bytes(place_dim, plan.shape.dtype);
    let first = origin / place_dim * place_bytes;
    let size_bytes = buffer.map_or(0, |buffer| view.size_bytes(buffer) - first);
    match (plan.map.kv_format.record_format(), buffer) {
        (None, Some(buffer)) => {
            KvCacheSlice::Plain(view.read(buffer, first, size_bytes / size_of::<T>()))
        }
        (Some(format), Some(buffer)) => {
            KvCacheSlice::Records(format, view.read(buffer, first, size_bytes))
        }
        (None, None) => KvCacheSlice::Plain(&[]),
        (Some(format), None) => KvCacheSlice::Records(format, &[]),
    }
}

/// Returns the byte offset and the f32 count of the scores of the chunk's units; score offsets are
/// relative to the former.
fn scores_range(
    operands: &Operands<'_>,
    compute: &Compute,
    chunk: Option<Chunk>,
) -> (usize, usize) {
    let rows = operands.table.program(operands.program).rows;
    assert!(rows == Rows::Single, "prefill has the fused form only");
    let units = operands.table.chunk_units(compute.at, chunk);
    let stride = operands.table.scores_stride(compute.at.layer);
    (units.start * stride * size_of::<f32>(), units.len() * stride)
}

pub(super) fn scores<'a>(operands: &Operands<'a>, compute: &Compute, region: Region) -> &'a [f32] {
    let (offset_bytes, count) = scores_range(operands, compute, compute.chunk);
    operands.view.read(region.buffer, offset_bytes, count)
}

pub(super) fn scores_mut<'a>(
    operands: &Operands<'a>,
    compute: &Compute,
    region: Region,
) -> &'a mut [f32] {
    let (offset_bytes, count) = scores_range(operands, compute, compute.chunk);
    operands.view.write(region.buffer, offset_bytes, count)
}
