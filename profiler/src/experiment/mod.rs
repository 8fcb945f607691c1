//! The plans that are run, each made for one kind of figure.
//!
//! | module | plan | extents |
//! |---|---|---|
//! | [`linear`] | all operations but attention, on either device, and copies of values | rows |
//! | [`attention`] | attention whole and in parts, KV copies, appends, scores | rows, KV lengths |
//! | [`prefill`] | fused attention over prompts, appends, sampling | sequences, prompts |
//! | [`concurrent`] | weight copies, decompression, and every pair of lanes | the workload's |
//! | [`sweep`] | one operation of each class, per number of CPU threads | the workload's |

pub(crate) mod attention;
pub(crate) mod concurrent;
pub(crate) mod linear;
pub(crate) mod prefill;
pub(crate) mod sweep;

use program::formats::KvFormat;
use program::map::Phase;
use program::plan::Plan;
use program::topology::LaneSet;

use crate::bench::{BenchPlanBuilder, BenchShape};
use crate::key::Extent;
use crate::request::{ComputeThreads, ProfilingRequest};

/// Maximum number of decode steps of one group; the KV length grows by the same number.
pub(crate) const STEPS_MAX: u32 = 12;
/// A layer's data is repeated until it exceeds the last-level cache by this factor: in a real run,
/// all other layers are computed before a layer is used again.
const CACHE_FACTOR: u64 = 2;
/// Maximum number of copies of a layer; beyond it, the fraction that stays in a cache is small.
const COPIES_MAX: u64 = 16;

/// A plan and the extents over which it is run.
#[derive(Debug)]
pub(crate) struct Experiment {
    /// Description of what it measures.
    pub(crate) name: String,
    pub(crate) plan: Plan,
    /// The program that is measured.
    pub(crate) phase: Phase,
    pub(crate) extents: Extents,
    /// Sets of lanes that work concurrently.
    pub(crate) concurrent_lanes: Vec<LaneSet>,
    pub(crate) threads: ComputeThreads,
}

/// Extents at which an experiment measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extents {
    /// Extents that are always measured, the workload's first.
    pub(crate) required: Vec<Extent>,
    /// Measured while time remains.
    pub(crate) optional: Vec<Extent>,
}

impl Extents {
    pub(crate) fn single(extent: Extent) -> Extents {
        Extents { required: vec![extent], optional: Vec::new() }
    }

    /// Every number of sequences with every number of positions. Two of each, the first ones, are
    /// required: a surface of fewer would say nothing of what lies beside it.
    pub(crate) fn grid(sequences: &[u32], positions: &[u32]) -> Extents {
        let (sequences, positions) = (distinct(sequences), distinct(positions));
        let is_required = |extent: &Extent| {
            let first = |values: &[u32], value| values.iter().take(2).any(|v| *v == value);
            first(&sequences, extent.sequences) && first(&positions, extent.positions)
        };
        let all = sequences.iter().flat_map(|sequences| {
            let sequences = *sequences;
            positions.iter().map(move |positions| Extent { sequences, positions: *positions })
        });
        let (required, optional) = all.partition(is_required);
        Extents { required, optional }
    }
}

/// The values in their order, each once.
fn distinct(values: &[u32]) -> Vec<u32> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(value) {
            distinct.push(*value);
        }
    }
    distinct
}

/// Returns the name of a measurement, with the cache's format and the number of parts if they are
/// not the defaults.
fn experiment_name(what: &str, kv: KvFormat, of: u16) -> String {
    let form = match kv {
        KvFormat::Plain => "",
        KvFormat::Four => ", cache of 4 bits",
        KvFormat::Eight => ", cache of 8 bits",
    };
    if of > 1 { format!("{what} in {of} parts{form}") } else { format!("{what}{form}") }
}

/// Copies of a layer that keep `layer_bytes` from staying in a cache of `cache_bytes`.
pub(crate) fn layer_copies(
    request: &ProfilingRequest,
    layer_bytes: u64,
    cache_bytes: u64,
) -> usize {
    let wanted = (CACHE_FACTOR * cache_bytes).div_ceil(layer_bytes.max(1));
    let max_copies = COPIES_MAX.min(request.config.num_layers as u64);
    wanted.clamp(1, max_copies.max(1)) as usize
}

/// A bench whose only sizes are those of decode: a batch behind prompts that nobody computed.
fn decode_bench(
    request: &ProfilingRequest,
    copies: usize,
    batch_size: u16,
    max_prompt: u32,
) -> BenchPlanBuilder {
    let (config, weights) = request.layers(copies);
    BenchPlanBuilder::new(BenchShape {
        config,
        dtype: request.dtype,
        weights,
        kv: request.kv_formats.first().copied().unwrap_or_default(),
        batches: 1,
        batch_size,
        micro_sequences: 1,
        max_prompt,
        max_new: STEPS_MAX + 1,
        chunks: 1,
        device: request.device.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_each_coordinate_are_required() {
        let of = |extents: &[Extent]| -> Vec<(u32, u32)> {
            extents.iter().map(|extent| (extent.sequences, extent.positions)).collect()
        };
        let grid = Extents::grid(&[8, 2, 2], &[50, 10, 90]);
        assert_eq!(of(&grid.required), [(8, 50), (8, 10), (2, 50), (2, 10)]);
        assert_eq!(of(&grid.optional), [(8, 90), (2, 90)]);
        let line = Extents::grid(&[1, 1], &[9, 5]);
        assert_eq!((of(&line.required), line.optional.len()), (vec![(1, 9), (1, 5)], 0));
    }
}
