//! The plans that are run, each made for one kind of figure.
//!
//! | module | plan | extents |
//! |---|---|---|
//! | [`linear`] | all operations but attention, on either device, and copies of values | rows |
//! | [`attention`] | attention whole and in parts, KV copies, appends, score copies | rows, KV lengths |
//! | [`prefill`] | fused attention over prompts, appends, the device's sampling | sequences, prompts |
//! | [`beside`] | weight copies, decompression, and every pair of lanes side by side | the workload's |
//! | [`sweep`] | one operation of each class, per number of CPU threads | the workload's |

pub(crate) mod attention;
pub(crate) mod beside;
pub(crate) mod linear;
pub(crate) mod prefill;
pub(crate) mod sweep;

use program::map::Phase;
use program::plan::Plan;

use crate::bench::{Bench, BenchShape};
use crate::key::Extent;
use crate::request::{Request, Threads};

/// Most decode steps of one group; the KV length grows by as much.
pub(crate) const STEPS_MAX: u32 = 12;
/// A layer's data is repeated until it exceeds the last-level cache so many times: in a real run
/// the other layers have passed before a layer comes again.
const CACHE_TIMES: u64 = 2;
/// Beyond so many copies of a layer, what is left in a cache is a small share.
const COPIES_MAX: u64 = 16;

/// A plan and the extents over which it is run.
#[derive(Debug)]
pub(crate) struct Experiment {
    /// For the progress: what it measures.
    pub(crate) name: &'static str,
    pub(crate) plan: Plan,
    /// Which of its programs is measured.
    pub(crate) phase: Phase,
    /// The first one is always measured; the others while time remains.
    pub(crate) extents: Vec<Extent>,
    pub(crate) threads: Threads,
}

/// Copies of a layer that keep `layer_bytes` from staying in a cache of `cache_bytes`.
pub(crate) fn copies(request: &Request, layer_bytes: u64, cache_bytes: u64) -> usize {
    let wanted = (CACHE_TIMES * cache_bytes).div_ceil(layer_bytes.max(1));
    let most = COPIES_MAX.min(request.config.num_layers as u64);
    wanted.clamp(1, most.max(1)) as usize
}

/// A bench whose only sizes are those of decode: a batch behind prompts that nobody computed.
fn decode_bench(request: &Request, copies: usize, batch_size: u16, max_prompt: u32) -> Bench {
    let (config, weights) = request.layers(copies);
    Bench::new(BenchShape {
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
