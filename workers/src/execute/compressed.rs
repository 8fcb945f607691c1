//! Compression of groups of positions to entries, and attention to a window and these entries.

use kernels::{
    AttentionPart, AttentionUnit, AttentionUnits, CompressRules, CompressedSpan, Element,
    EntryIndexer, EntryPlaces, EntryQueries, EntryShape, IndexedPlaces, IndexedScratch, Kernels,
    KvCacheSlice, PageLists, RopeTables, ScratchLimits,
};
use model::config::ModelConfig;
use model::ops::{Kv, Op, Value};
use program::ir::Compute;

use super::attention::{attended, cache, scores, scores_mut, shape};
use super::operands::{Operands, output_region};
use crate::work_items;

/// Scratch of a lane for layers with entries, and the units of an instruction.
#[derive(Debug)]
pub(super) struct Compressed {
    scratch: IndexedScratch,
    /// Units with their places among positions, and among entries.
    units: [Vec<AttentionUnit>; 2],
    /// Pages of the units' caches.
    pages: [Vec<u32>; 2],
}

impl Compressed {
    /// Allocates for a model; `None` if no layer has entries. `units` and `pages` are the maximum
    /// numbers of an instruction.
    pub(super) fn new(
        config: &ModelConfig,
        threads: usize,
        limits: &ScratchLimits,
        [units, pages]: [usize; 2],
    ) -> Option<Compressed> {
        let shapes: Vec<_> = config.kind_models().filter_map(entry_shape).collect();
        let scratch = IndexedScratch::for_entries(&shapes, threads, limits, size_of::<f32>())?;
        Some(Compressed {
            scratch,
            units: [(); 2].map(|()| Vec::with_capacity(units)),
            pages: [(); 2].map(|()| Vec::with_capacity(pages)),
        })
    }

    /// Lists the units of an instruction and their pages.
    fn list(&mut self, operands: &Operands<'_>, compute: &Compute) {
        let Operands { table, program, .. } = *operands;
        let lists = self.units.iter_mut().zip(&mut self.pages).zip([Kv::K, Kv::V]);
        for ((units, pages), kv) in lists {
            units.clear();
            units.extend(work_items::cache_units(table, program, compute.at, compute.chunk, kv));
            work_items::list_pages(table, program, compute.at, kv, pages);
        }
    }

    /// Runs the compression, a selection or a part of attention, and returns the number of bytes of
    /// the caches read. `tables` are those of the layer's rope.
    pub(super) fn run<T: Element>(
        &mut self,
        kernels: &Kernels,
        operands: &Operands<'_>,
        compute: &Compute,
        tables: RopeTables<'_>,
        count: usize,
    ) -> u64 {
        let Some(entries) = entry_shape(operands.config) else { panic!("a layer has entries") };
        self.list(operands, compute);
        if self.units[0].is_empty() {
            return 0;
        }
        if compute.op == Op::Softmax {
            self.softmax(kernels, operands, compute);
            return 0;
        }
        let Compressed { scratch, units, pages } = self;
        let [units, entry_units] = [Kv::K, Kv::V].map(|kv| {
            let page_positions = operands.table.page_places(compute.at.layer, kv);
            let pages = PageLists { page_positions, pages: &pages[kv as usize] };
            AttentionUnits { units: &units[kv as usize], pages }
        });
        let places = |input: usize, kv: Kv| places::<T>(operands, compute, input, kv, count);
        match compute.op {
            Op::Compress => {
                compress(kernels, operands, compute, units, tables, count, places(0, Kv::K))
            }
            Op::Select => {
                let from = EntryQueries {
                    queries: operands.rows::<T>(compute.inputs[0], Value::IndexQuery, count),
                    weights: operands.rows::<f32>(compute.inputs[1], Value::IndexWeights, count),
                    units: entry_units,
                    entries: places(2, Kv::V),
                };
                let selection = operands.output::<u32>(compute, count);
                kernels.select_entries(scratch, &entries, &from, selection);
            }
            _ => {
                let places = EntryPlaces {
                    units,
                    positions: places(1, Kv::K),
                    entry_units,
                    entries: places(2, Kv::V),
                };
                let selection = match compute.inputs.get(3) {
                    Some(region) => operands.rows::<u32>(*region, Value::Selection, count),
                    None => &[],
                };
                let shape = shape(operands.config, compute);
                let part = part::<T>(operands, compute, count);
                kernels.attend_to_entries(scratch, &entries, &shape, &places, selection, part);
            }
        }
        let read = units.units.iter().map(|unit| read_elements(operands.config, compute.op, unit));
        read.sum::<u64>() * size_of::<T>() as u64
    }

    /// Runs `Softmax`, of the scores of the vectors that each row attends to.
    fn softmax(&mut self, kernels: &Kernels, operands: &Operands<'_>, compute: &Compute) {
        let units = &mut self.units[0];
        let shape = shape(operands.config, compute);
        let shape = kernels::AttentionShape { window: None, ..shape };
        for unit in units.iter_mut() {
            unit.past = operands.config.attended(unit.past as usize) as u32 - 1;
            unit.cache_positions = 0;
        }
        let scores = scores(operands, compute, compute.inputs[0]);
        let out = scores_mut(operands, compute, output_region(compute));
        kernels.softmax(&shape, units, scores, operands.vector(compute, 0), out);
    }
}

/// Returns the sizes of a layer's entries; `config` is the model of the layer's kind.
fn entry_shape(config: &ModelConfig) -> Option<EntryShape> {
    let compression = config.compression()?;
    let indexer = config.entry_indexer().map(|indexer| EntryIndexer {
        heads: indexer.heads,
        head_dim: indexer.head_dim,
        top_k: indexer.top_k,
    });
    Some(EntryShape {
        vector: config.head_dim,
        place: config.cache_dim(Kv::K),
        entry: config.cache_dim(Kv::V),
        rate: compression.rate,
        window: config.layers.kinds()[0].window.unwrap_or(usize::MAX),
        indexer,
    })
}

/// Returns the fresh rows of an input and their cache.
fn places<'a, T: Element>(
    operands: &Operands<'a>,
    compute: &Compute,
    input: usize,
    kv: Kv,
    count: usize,
) -> IndexedPlaces<'a, T> {
    let value = if kv == Kv::K { Value::Key } else { Value::Entry };
    let fresh = operands.rows::<T>(compute.inputs[input], value, count);
    match cache(operands, compute, kv) {
        KvCacheSlice::Plain(cache) => IndexedPlaces { fresh, cache },
        KvCacheSlice::Records(..) => panic!("caches with entries are not quantised"),
    }
}

/// Runs `Compress`.
fn compress<T: Element>(
    kernels: &Kernels,
    operands: &Operands<'_>,
    compute: &Compute,
    units: AttentionUnits<'_>,
    tables: RopeTables<'_>,
    count: usize,
    places: IndexedPlaces<'_, T>,
) {
    let config = operands.config;
    let Some(compression) = config.compression() else { panic!("a layer has entries") };
    let vector = |index| operands.vector(compute, index).expect("a compression has its vectors");
    let (gains, biases) = (vector(0), vector(1));
    let series = compression.series();
    let (mut values, mut first) = (config.head_dim, 0);
    let spans = config.entry_dims().map(|size| {
        let biases_of = |size: usize| compression.rate * series * size;
        let span = CompressedSpan {
            size,
            values,
            first,
            biases: &biases[biases_of(first)..][..biases_of(size)],
            gains: &gains[first..][..size],
        };
        values += 2 * series * size;
        first += size;
        span
    });
    let spans = if spans[1].size == 0 { &spans[..1] } else { &spans };
    let rules = CompressRules {
        place: config.cache_dim(Kv::K),
        entry: config.cache_dim(Kv::V),
        rate: compression.rate,
        series,
        norm_eps: config.norm_eps,
        tables,
    };
    kernels.compress(&rules, spans, units, places, operands.output::<T>(compute, count));
}

/// Returns the operands of a part of attention.
fn part<'a, T: Element>(
    operands: &Operands<'a>,
    compute: &Compute,
    count: usize,
) -> AttentionPart<'a, T> {
    match compute.op {
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
            let sinks = operands.vector(compute, 0);
            AttentionPart::Fused { q, sinks, out: attended::<T>(operands, compute, count) }
        }
    }
}

/// Returns the number of elements of the caches that an operation reads for the first row of a
/// unit.
fn read_elements(config: &ModelConfig, op: Op, unit: &AttentionUnit) -> u64 {
    let Some(compression) = config.compression() else { return 0 };
    let (cached, past) = (unit.cached() as usize, unit.past as usize);
    let [vector, key] = config.entry_dims();
    let elements = match op {
        Op::Compress => cached.min(compression.positions()) * (config.cache_dim(Kv::K) - vector),
        Op::Select => past / compression.rate * key,
        _ => config.attended(past).min(cached + past) * vector,
    };
    elements as u64
}
