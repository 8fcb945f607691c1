//! Selection of positions by an indexer, and attention to them.

use kernels::{
    AttentionPart, AttentionUnit, AttentionUnits, Element, HeadSpan, IndexedPlaces, IndexedScratch,
    IndexedShape, Kernels, KvCacheSlice, PageLists, ScratchLimits,
};
use model::config::ModelConfig;
use model::ops::{Kv, Op, Value};
use program::ir::Compute;

use super::attention::{attended, cache, scores, scores_mut, shape};
use super::operands::{Operands, output_region};
use crate::work_items;

/// Returns the scratch of selections; `None` for a model without indexers.
pub(super) fn scratch(
    config: &ModelConfig,
    threads: usize,
    limits: &ScratchLimits,
) -> Option<IndexedScratch> {
    let shape = indexed_shape(config)?;
    Some(IndexedScratch::new(shape, threads, limits, size_of::<f32>()))
}

/// Returns the sizes of an indexer and of the places in a layer's cache; `config` is the model of
/// the layer's kind.
fn indexed_shape(config: &ModelConfig) -> Option<IndexedShape> {
    let (latent, indexer) = (config.latent?, config.features.indexer?);
    Some(IndexedShape {
        vector: latent.key_dim(),
        place: config.head_dim,
        heads: indexer.heads,
        head_dim: indexer.head_dim,
        top_k: indexer.top_k,
    })
}

/// Runs a selection or a part of attention, and returns the number of bytes of the cache read.
/// Lists the units in `units` and their pages in `pages`.
pub(super) fn run<T: Element>(
    kernels: &Kernels,
    scratch: &mut IndexedScratch,
    units: &mut Vec<AttentionUnit>,
    pages: &mut Vec<u32>,
    operands: &Operands<'_>,
    compute: &Compute,
    count: usize,
) -> u64 {
    let config = operands.config;
    let Some(indexed) = indexed_shape(config) else { panic!("a selection has an indexer") };
    let Operands { table, program, .. } = *operands;
    units.clear();
    units.extend(work_items::units(table, program, compute.at, compute.chunk));
    if units.is_empty() {
        return 0;
    }
    let shape = shape(config, compute);
    if compute.op == Op::Softmax {
        // Scores are those of the selected positions.
        let last = indexed.top_k as u32 - 1;
        units.iter_mut().for_each(|unit| unit.past = unit.past.min(last));
        let scores = scores(operands, compute, compute.inputs[0]);
        let out = scores_mut(operands, compute, output_region(compute));
        kernels.softmax(&shape, units, scores, None, out);
        return 0;
    }
    work_items::list_pages(table, program, compute.at, Kv::K, pages);
    let page_positions = table.page_places(compute.at.layer, Kv::K);
    let units = AttentionUnits { units, pages: PageLists { page_positions, pages } };
    let read = read_elements(&indexed, compute.op, units.units) * size_of::<T>() as u64;
    let places = |index: usize| {
        let fresh = operands.rows::<T>(compute.inputs[index], Value::Key, count);
        match cache(operands, compute, Kv::K) {
            KvCacheSlice::Plain(cache) => IndexedPlaces { fresh, cache },
            KvCacheSlice::Records(..) => panic!("caches with an indexer's keys are not quantised"),
        }
    };
    if compute.op == Op::Select {
        let queries = operands.rows::<T>(compute.inputs[0], Value::IndexQuery, count);
        let weights = operands.rows::<f32>(compute.inputs[1], Value::IndexWeights, count);
        let selection = operands.output::<u32>(compute, count);
        let places = places(2);
        kernels.select_positions(scratch, &indexed, units, queries, weights, places, selection);
        return read;
    }
    let selection = operands.rows::<u32>(compute.inputs[2], Value::Selection, count);
    let part = match compute.op {
        Op::Scores => {
            let q = operands.rows::<T>(compute.inputs[0], Value::Query, count);
            let out = scores_mut(operands, compute, output_region(compute));
            AttentionPart::Scores { q, out }
        }
        Op::Wv => {
            let probabilities = scores(operands, compute, compute.inputs[0]);
            AttentionPart::Values { probabilities, out: attended::<T>(operands, compute, count) }
        }
        _ => {
            let q = operands.rows::<T>(compute.inputs[0], Value::Query, count);
            AttentionPart::Fused { q, sinks: None, out: attended::<T>(operands, compute, count) }
        }
    };
    kernels.attend_to_selection(scratch, &indexed, &shape, units, places(1), selection, part);
    read
}

/// Returns the location of the indexer's key in a place.
pub(super) fn key_span(config: &ModelConfig) -> HeadSpan {
    HeadSpan { width: config.head_dim, first: config.attention_dim() }
}

/// Returns the number of elements of the cache that an operation reads.
fn read_elements(indexed: &IndexedShape, op: Op, units: &[AttentionUnit]) -> u64 {
    let of_unit = |unit: &AttentionUnit| {
        let cached = u64::from(unit.cached());
        match op {
            Op::Select => cached * indexed.head_dim as u64,
            _ => cached.min(indexed.top_k as u64) * indexed.vector as u64,
        }
    };
    units.iter().map(of_unit).sum()
}
