//! Memory for experts that are read from storages: slots for those of one layer, and the cache.

use model::ops::Op;

use crate::expert_cache::cache_slots;
use crate::expert_reads::list_words;
use crate::expert_records::{ExpertOps, ExpertRecord};
use crate::map::ComputeDevice;
use crate::plan::ExpertCacheBuffer;
use crate::topology::Holds;
use crate::weights::Weights;

use super::buffers::Buffers;

impl Buffers<'_> {
    /// Adds the cache of experts, whose slots all layers share.
    pub(super) fn add_expert_cache(&mut self) {
        let slots = cache_slots(self.config, self.shape, self.map) as usize;
        let slot_bytes = self.expert_slot_bytes(|weights| self.is_stored(weights));
        if slots == 0 || slot_bytes == 0 {
            return;
        }
        let segment = self.routes.segment(ComputeDevice::Cpu, Holds::Weights);
        let size = self.whole_pages(segment, slot_bytes * slots);
        let buffer = self.add(segment, || "expert_cache".to_owned(), size);
        self.expert_cache = Some(ExpertCacheBuffer { buffer, slot_bytes: slot_bytes as u64 });
    }

    /// Returns the cache of experts.
    pub(super) const fn expert_cache(&self) -> Option<ExpertCacheBuffer> {
        self.expert_cache
    }

    /// Returns the size of the slots for one linear of all experts of any layer.
    pub(super) fn linear_slots(&self, op: Op) -> usize {
        let is_own = |weights| matches!(weights, Weights::Layer { op: other, .. } if other == op);
        self.expert_slot_bytes(is_own) * list_words(self.config)
    }

    /// Returns the size of the slots for all experts of any layer, with the linears that are on
    /// storages.
    pub(super) fn routed_slots(&self) -> usize {
        self.expert_slot_bytes(|weights| self.is_stored(weights)) * list_words(self.config)
    }

    /// Returns the size of a slot with capacity for the linears of an expert that `is_read`, in any
    /// layer; 0 if none are read.
    fn expert_slot_bytes(&self, is_read: impl Fn(Weights) -> bool) -> usize {
        let formats = &self.map.weight_formats;
        let slots = (0..self.config.num_layers as u16).filter_map(|layer| {
            let record = ExpertRecord::new(self.config, layer, self.shape.dtype, formats)?;
            let read = |op: &Op| is_read(Weights::Layer { layer, op: *op });
            Some(record.slot_bytes(ExpertOps::from_ops(record.ops().iter().filter(read))))
        });
        slots.max().unwrap_or(0) as usize
    }
}
