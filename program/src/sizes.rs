//! Sizes of a plan's buffers, in bytes: the only place that computes them.

use model::config::{Dtype, ModelConfig};
use model::layers::LayerKind;
use model::ops::{Kv, Value};

use crate::formats::{KvFormat, WeightFormats, on_device};
use crate::kv_owner::DEVICE;
use crate::map::DeviceMap;
use crate::plan::RunShape;
use crate::select::KvSelect;
use crate::step_table::chunk_positions_max;
use crate::weights::Weights;

/// Alignment of slots that storages are read into, in bytes.
pub const READ_ALIGN_BYTES: u64 = 4096;

/// Parameters that determine the sizes.
#[derive(Debug, Clone, Copy)]
pub struct Sizes<'a> {
    pub config: &'a ModelConfig,
    pub dtype: Dtype,
    /// Number of sequences of a batch.
    pub batch_size: u16,
    /// Number of those sequences whose caches are in device memory, if sequences have owners.
    pub device_slots: u16,
    /// Maximum number of positions of a sequence.
    pub max_context: u32,
    pub weight_formats: &'a WeightFormats,
    pub kv_format: KvFormat,
    /// KV selection, if keys have partial keys.
    pub kv_select: Option<KvSelect>,
    /// Number of positions in all pages of a batch; 0 if caches are not paged.
    pub paged_positions: u64,
}

impl<'a> Sizes<'a> {
    /// Returns the parameters of a run with a placement.
    pub fn new(config: &'a ModelConfig, shape: &RunShape, map: &'a DeviceMap) -> Sizes<'a> {
        Sizes {
            config,
            dtype: shape.dtype,
            batch_size: shape.batch_size,
            device_slots: shape.device_slots,
            max_context: shape.max_context,
            weight_formats: &map.weight_formats,
            kv_format: map.kv_format,
            kv_select: map.kv_select,
            paged_positions: u64::from(shape.page_positions) * u64::from(shape.kv_pages),
        }
    }
}

impl Sizes<'_> {
    /// Returns the size of a value of `rows` rows; scores and probabilities have one row per
    /// sequence.
    pub fn value_bytes(&self, value: Value, rows: usize, sequences: usize) -> usize {
        let elements = match value.max_row_elements(self.config) {
            Some(elements) => rows * elements,
            None => {
                let heads = self.config.max_of_layers(|model| model.num_heads);
                let context = self.max_context as usize;
                sequences * heads * self.config.max_of_layers(|model| model.max_attended(context))
            }
        };
        elements * value.element_bytes(self.dtype)
    }

    /// Returns the size of one of `parts` parts of the K or V cache of a layer and batch. For a
    /// layer with a state, returns the size of the states of all sequences, which are never split.
    pub fn cache_bytes(&self, layer: usize, kv: Kv, parts: u16) -> usize {
        let kind = self.config.layers.kind(layer);
        match self.config.state_bytes(kind, kv) {
            Some(bytes) => usize::from(self.batch_size) * bytes,
            None => self.cache_bytes_of(kind, self.config.of_layer(layer), kv, parts),
        }
    }

    /// Returns the size of the device's or the host's part of the K or V cache of a layer whose
    /// sequences have owners.
    pub fn owned_cache_bytes(&self, layer: usize, part: u16) -> usize {
        let all = if part == DEVICE.index { self.device_slots } else { self.batch_size };
        let kept = self.config.layers.kind(layer).kept_positions(self.max_context as usize);
        let position_bytes = self.kv_format.position_bytes(self.config.head_dim, self.dtype);
        usize::from(all) * kept * self.config.num_kv_heads * position_bytes
    }

    /// Returns the bytes of a sequence in a cache of which each sequence owns a slot and overwrites
    /// it: a state, or the ring of a window. Returns `None` for a cache that keeps all positions.
    pub fn slot_bytes(&self, layer: usize, kv: Kv) -> Option<usize> {
        let (kind, model) = (self.config.layers.kind(layer), self.config.of_layer(layer));
        if let Some(bytes) = self.config.state_bytes(kind, kv) {
            return Some(bytes);
        }
        let context = self.max_context as usize;
        let kept = kind.kept_places(kv, context);
        let place_bytes = self.kv_format.position_bytes(model.cache_dim(kv), self.dtype);
        kind.is_ring(kv, context).then_some(kept * model.num_kv_heads * place_bytes)
    }

    /// Returns [`Sizes::cache_bytes`] of the attention layer with the largest caches.
    pub fn largest_cache_bytes(&self, parts: u16) -> usize {
        // Also of kinds that only layers beyond `num_layers` have: searches compile a few layers
        // in place of all.
        let kinds = self.config.layers.kinds().iter().zip(self.config.kind_models());
        let attends = kinds.filter(|(kind, _)| !kind.has_state());
        let sizes = attends.map(|(kind, model)| {
            let of = |kv| self.cache_bytes_of(kind, model, kv, parts);
            of(Kv::K).max(of(Kv::V))
        });
        sizes.max().unwrap_or(0)
    }

    /// Returns the size of a part of a cache; `model` is that of the layers of this kind.
    fn cache_bytes_of(&self, kind: &LayerKind, model: &ModelConfig, kv: Kv, parts: u16) -> usize {
        let (batch, heads) = (u64::from(self.batch_size), model.num_kv_heads as u64);
        let context = u64::from(self.max_context);
        let partial_bytes = match (kv, self.kv_select) {
            (Kv::K, Some(select)) => select.partial_key_bytes(model.head_dim),
            (Kv::K | Kv::V, _) => 0,
        };
        let position_bytes =
            self.kv_format.position_bytes(model.cache_dim(kv), self.dtype) + partial_bytes;
        let is_ring = kind.is_ring(kv, self.max_context as usize);
        let rate = model.cache_rate(kv) as u64;
        if self.paged_positions > 0 && !is_ring {
            return (self.paged_positions / rate * heads) as usize * position_bytes;
        }
        // Parts are balanced by whole sequences, so a part may hold as many units as positions.
        // Units are assigned to parts by the number of heads of the model.
        let of_model = self.config.num_kv_heads as u64;
        let part = chunk_positions_max(batch, context, of_model, u64::from(parts));
        let part = match heads == of_model {
            true => part,
            // The first and the last sequence of a part may have a head more than their share.
            false => (part * heads).div_ceil(of_model) + 2 * context,
        };
        // The places of sequences begin at whole groups of the positions before them.
        let kept = match rate {
            1 => batch * heads * kind.kept_positions(self.max_context as usize) as u64,
            rate => batch * heads * context / rate,
        };
        let pairs = part.min(kept);
        pairs as usize * position_bytes
    }

    /// Returns the size of a weight blob as stored.
    pub fn weights_bytes(&self, weights: Weights) -> usize {
        let format = self.weight_formats.of(self.config, weights);
        weights.size_bytes(self.config, self.dtype, format)
    }

    /// Returns the size of a weight blob as multiplied by a device.
    pub fn wide_bytes(&self, weights: Weights) -> usize {
        let format = on_device(self.weight_formats.of(self.config, weights));
        weights.size_bytes(self.config, self.dtype, format)
    }
}
