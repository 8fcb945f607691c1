//! Locations of the bytes of a cache page: a run for each KV head in each cache of its batch that
//! keeps all positions.

use model::config::ModelConfig;
use model::indexer::PositionSelection;
use model::layers::{CacheSharing, LayerKind};
use model::ops::Kv;

use crate::checkpoints::slot_caches;
use crate::ir::{BufferId, Instruction};
use crate::map::Chunk;
use crate::plan::Plan;
use crate::sizes::Sizes;
use crate::topology::MemoryKind;

/// Returns true if every layer has caches of its own, of the model's sizes, and attends to
/// positions that no other layer selects.
fn has_equal_caches(config: &ModelConfig) -> bool {
    let sizes = |model: &ModelConfig| (model.num_kv_heads, model.head_dim);
    let is_usual = |kind: &LayerKind| {
        kind.caches == CacheSharing::Own && kind.selection != PositionSelection::Shared
    };
    config.kind_models().all(|model| sizes(model) == sizes(config))
        && config.layers.kinds().iter().all(is_usual)
}

/// The caches of a batch that keep all positions of a sequence, layer by layer, K before V.
/// Together with checkpoints of the others, if there are any, they hold its complete state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRuns {
    caches: Vec<PagedCache>,
    heads: usize,
}

/// A cache in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PagedCache {
    buffer: BufferId,
    /// Bytes of a page's places for one KV head.
    page_bytes: usize,
    place_bytes: usize,
    /// Number of positions for which there is one place.
    rate: usize,
}

/// The places of a page for one KV head in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    pub cache: BufferId,
    /// First byte.
    pub offset_bytes: usize,
    pub size_bytes: usize,
    place_bytes: usize,
    rate: usize,
}

impl PageRun {
    /// Returns the number of bytes of the first positions of the page.
    pub const fn first_bytes(&self, positions: usize) -> usize {
        positions / self.rate * self.place_bytes
    }
}

impl PageRuns {
    /// Returns the page runs of a batch; `None` unless the complete state of a sequence, except for
    /// what checkpoints include, is in whole paged caches of equal heads in the host's memory (no
    /// parts, extents or partial keys).
    pub fn of(plan: &Plan, batch: u16) -> Option<PageRuns> {
        let (config, shape) = (&plan.config, &plan.shape);
        let sizes = Sizes::new(config, shape, &plan.map);
        let is_whole = shape.page_positions > 0
            && (shape.checkpoints > 0 || slot_caches(&sizes).is_empty())
            && plan.map.kv_select.is_none()
            && has_equal_caches(config);
        if !is_whole {
            return None;
        }
        let layers = 0..config.num_layers as u16;
        let caches = layers.flat_map(|layer| {
            config.layer_caches(usize::from(layer)).iter().map(move |kv| (layer, *kv))
        });
        let keeps_all =
            |(layer, kv): &(u16, Kv)| sizes.slot_bytes(usize::from(*layer), *kv).is_none();
        let cache = |(layer, kv)| {
            let buffer = appended(plan, layer, kv, batch)?;
            let memory = plan.buffer(buffer).segment.memory;
            let is_host = plan.topology.memory_kind(memory) == Some(MemoryKind::Dram);
            let model = config.of_layer(usize::from(layer));
            let (rate, dim) = (model.cache_rate(kv), model.cache_dim(kv));
            let place_bytes = plan.map.kv_format.position_bytes(dim, shape.dtype);
            let page_bytes = shape.page_positions as usize / rate * place_bytes;
            is_host.then_some(PagedCache { buffer, page_bytes, place_bytes, rate })
        };
        let caches = caches.filter(keeps_all).map(cache).collect::<Option<Vec<_>>>()?;
        (!caches.is_empty()).then_some(PageRuns { caches, heads: config.num_kv_heads })
    }

    /// The buffers.
    pub fn caches(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.caches.iter().map(|cache| cache.buffer)
    }

    /// Returns the runs of a page, in the order in which they are stored.
    pub fn of_page(&self, page: u32) -> impl Iterator<Item = PageRun> + '_ {
        let first = page as usize * self.heads;
        let heads = move |cache: &PagedCache| {
            let PagedCache { buffer, page_bytes, place_bytes, rate } = *cache;
            (first..first + self.heads).map(move |head| PageRun {
                cache: buffer,
                offset_bytes: head * page_bytes,
                size_bytes: page_bytes,
                place_bytes,
                rate,
            })
        };
        self.caches.iter().flat_map(heads)
    }
}

/// Returns the buffer to which a cache's rows are appended.
fn appended(plan: &Plan, layer: u16, kv: Kv, batch: u16) -> Option<BufferId> {
    let lists = plan.programs.iter().flat_map(|program| &program.lanes);
    lists.flat_map(|list| &list.instructions).find_map(|instruction| match instruction {
        Instruction::Append(append)
            if append.kv == kv
                && (append.at.layer, append.at.batch) == (Some(layer), batch)
                && append.chunk == Chunk::WHOLE =>
        {
            Some(append.to.buffer)
        }
        _ => None,
    })
}
