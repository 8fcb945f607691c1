//! Bytes of what a plan's buffers hold: the one place that knows them.

use model::config::{Dtype, ModelConfig};
use model::layers::LayerKind;
use model::ops::{Kv, Value};

use crate::formats::{KvFormat, WeightFormats, on_device};
use crate::owners::DEVICE;
use crate::select::KvSelect;
use crate::step_table::chunk_positions_max;
use crate::weights::Weights;

/// Slots that storages are read into begin and end with a page of so many bytes.
pub const READ_ALIGN_BYTES: u64 = 4096;

/// What sizes follow from.
#[derive(Debug, Clone, Copy)]
pub struct Sizes<'a> {
    pub config: &'a ModelConfig,
    pub dtype: Dtype,
    /// Sequences of a batch.
    pub batch_size: u16,
    /// Of which so many have caches in device memory, where they have owners.
    pub device_slots: u16,
    /// Positions of a sequence.
    pub max_context: u32,
    pub weight_formats: &'a WeightFormats,
    pub kv_format: KvFormat,
    /// Keys have partial keys beside them.
    pub kv_select: Option<KvSelect>,
    /// Positions of all pages of a batch, where caches are in pages; 0: they are not.
    pub paged_positions: u64,
}

impl Sizes<'_> {
    /// A value of so many rows; scores and probabilities are of one row for each of `sequences`.
    pub fn value_bytes(&self, value: Value, rows: usize, sequences: usize) -> usize {
        let elements = match value.row_elements(self.config) {
            Some(elements) => rows * elements,
            None => sequences * self.config.num_heads * self.max_context as usize,
        };
        elements * value.element_bytes(self.dtype)
    }

    /// One of `parts` parts of the K or V cache of a layer and batch. Of a layer with a state it
    /// is what each sequence keeps, which is never in parts.
    pub fn cache_bytes(&self, layer: usize, kv: Kv, parts: u16) -> usize {
        let kind = self.config.layers.of(layer);
        let Some(delta) = self.config.delta.filter(|_| kind.has_state()) else {
            return self.cache_bytes_of(kind, kv, parts);
        };
        usize::from(self.batch_size)
            * match kv {
                Kv::K => delta.inputs_bytes(),
                Kv::V => delta.state_bytes(),
            }
    }

    /// The part of the device or of the host of the K or V cache of a layer whose sequences have
    /// owners.
    pub fn owned_cache_bytes(&self, layer: usize, part: u16) -> usize {
        let all = if part == DEVICE.index { self.device_slots } else { self.batch_size };
        let kept = self.config.layers.of(layer).kept_positions(self.max_context as usize);
        let position_bytes = self.kv_format.position_bytes(self.config.head_dim, self.dtype);
        usize::from(all) * kept * self.config.num_kv_heads * position_bytes
    }

    /// [`Sizes::cache_bytes`] of the kind of layer with the largest caches of those that attend.
    pub fn largest_cache_bytes(&self, parts: u16) -> usize {
        let kinds = self.config.layers.kinds().iter().filter(|kind| !kind.has_state());
        kinds.map(|kind| self.cache_bytes_of(kind, Kv::K, parts)).max().unwrap_or(0)
    }

    fn cache_bytes_of(&self, kind: &LayerKind, kv: Kv, parts: u16) -> usize {
        let (batch, heads) = (u64::from(self.batch_size), self.config.num_kv_heads as u64);
        let context = u64::from(self.max_context);
        let partial_bytes = match (kv, self.kv_select) {
            (Kv::K, Some(select)) => select.partial_key_bytes(self.config.head_dim),
            (Kv::K | Kv::V, _) => 0,
        };
        let position_bytes =
            self.kv_format.position_bytes(self.config.head_dim, self.dtype) + partial_bytes;
        let is_ring = kind.kept_positions(self.max_context as usize) < self.max_context as usize;
        if self.paged_positions > 0 && !is_ring {
            return (self.paged_positions * heads) as usize * position_bytes;
        }
        // Parts are balanced by whole sequences, so a part may hold as many units as positions.
        let part = chunk_positions_max(batch, context, heads, u64::from(parts));
        let kept = batch * heads * kind.kept_positions(self.max_context as usize) as u64;
        let pairs = part.min(kept);
        pairs as usize * position_bytes
    }

    /// A weight blob as it is stored.
    pub fn weights_bytes(&self, weights: Weights) -> usize {
        let format = self.weight_formats.of(self.config, weights);
        weights.size_bytes(self.config, self.dtype, format)
    }

    /// The same as a device multiplies it.
    pub fn wide_bytes(&self, weights: Weights) -> usize {
        let format = on_device(self.weight_formats.of(self.config, weights));
        weights.size_bytes(self.config, self.dtype, format)
    }
}
