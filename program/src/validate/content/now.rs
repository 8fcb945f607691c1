//! The instruction that is checked, and the content that it needs or writes.

use model::config::ModelConfig;
use model::ops::{Kv, Value};

use crate::expert_records::ExpertOps;
use crate::ir::{Append, At, Compute, Region};
use crate::map::Chunk;
use crate::plan::Plan;
use crate::topology::HardwareEngine;

use super::super::error::Site;
use super::super::order::{Event, Order};
use super::super::parts::normal;
use super::held::{Content, Stream};
use super::kept::own_stream;

/// A part of a cache, as named by the instructions that append to it or that update a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cache {
    pub(super) kv: Kv,
    pub(super) layer: Option<u16>,
    pub(super) batch: u16,
    pub(super) chunk: Chunk,
}

impl Cache {
    pub(super) fn of(append: &Append) -> Cache {
        let chunk = normal(Some(append.chunk)).unwrap_or(Chunk::WHOLE);
        Cache { kv: append.kv, layer: append.at.layer, batch: append.at.batch, chunk }
    }

    /// Returns the states that an operation updates, with their regions.
    pub(super) fn updated(
        config: &ModelConfig,
        compute: &Compute,
    ) -> impl Iterator<Item = (Cache, Region)> {
        let kinds = if compute.op.updates_state() { compute.op.caches(config) } else { &[] };
        let At { layer, batch, .. } = compute.at;
        kinds.iter().zip(&compute.caches).map(move |(kv, region)| {
            (Cache { kv: *kv, layer, batch, chunk: Chunk::WHOLE }, *region)
        })
    }

    /// Returns the content with the rows of all previous steps and of some streams of this one.
    pub(super) fn with(self, step: u32, streams: u16) -> Content {
        let Cache { kv, layer, batch, chunk } = self;
        Content::Cache { kv, layer, batch, chunk, step, streams }
    }
}

/// The instruction being checked.
pub(super) struct Now<'a> {
    pub(super) order: &'a Order<'a>,
    pub(super) event: &'a Event<'a>,
    pub(super) plan: &'a Plan,
}

impl Now<'_> {
    pub(super) fn site(&self) -> Site {
        self.order.site(self.event)
    }

    pub(super) fn on_device(&self) -> bool {
        matches!(self.plan.topology.lane(self.event.lane).engine, HardwareEngine::Gpu { .. })
    }

    pub(super) fn value(&self, value: Value, at: At, updates: u32) -> Content {
        let (stream, step) = (Stream { batch: at.batch, stream: at.stream }, self.event.step);
        match value {
            Value::Hidden => Content::Hidden { at: stream, updates, step },
            // Computed before the layers.
            Value::PerLayer => Content::Value { value, layer: None, at: stream, step },
            // Layers attend to the rows of the layer whose caches they attend to.
            value if value.is_shared_kv() => {
                Content::Value { value, layer: self.cache_layer(at.layer), at: stream, step }
            }
            // Layers may attend to the selection of an earlier one.
            Value::Selection => {
                let config = &self.plan.config;
                let layer = at.layer.map(|layer| config.selection_layer(layer.into()) as u16);
                Content::Value { value, layer, at: stream, step }
            }
            _ => Content::Value { value, layer: at.layer, at: stream, step },
        }
    }

    pub(super) fn routed(&self, ops: ExpertOps, at: At) -> Content {
        let stream = Stream { batch: at.batch, stream: at.stream };
        Content::Routed { layer: at.layer, ops, at: stream, step: self.event.step }
    }

    fn cache_layer(&self, layer: Option<u16>) -> Option<u16> {
        layer.map(|layer| self.plan.config.cache_layer(layer.into()) as u16)
    }

    pub(super) fn cache(&self, kv: Kv, at: At, chunk: Chunk) -> Content {
        let (step, layer) = (self.event.step, self.cache_layer(at.layer));
        // Whole prompts read no cached rows, and the rows of one stream do not follow those of
        // another.
        let stream = own_stream(&self.order.program.shape, at);
        Cache { kv, layer, batch: at.batch, chunk }.with(step, stream)
    }
}
