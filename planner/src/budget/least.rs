//! What host memory lacks of a placement at least, before anything is compiled, and what therefore
//! is read or lives far away.

use model::compressed::WeightFormat;
use program::topology::MemoryId;

use super::Request;
use super::bytes::{Limits, PROCESS_OVERHEAD_BYTES};
use super::far::{FarShares, Movable};
use crate::policy::{FarWeights, Homes, Placement, ResidentAttention};

impl Request<'_> {
    /// What the near host memory holds at least: all layers' weights that no further memory and no
    /// storage may take, and the KV that device memory has no room for.
    pub(crate) fn least_host_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        let kv_bytes = self.kv_bytes(|_| true, batches, batch_size);
        let on_device =
            if self.limits.vram_is_dram { 0 } else { self.limits.vram_bytes.unwrap_or(0) };
        let weights_bytes = if self.storage.is_some() { 0 } else { self.weights_bytes() };
        weights_bytes.saturating_sub(self.limits.far_room_bytes())
            + kv_bytes.saturating_sub(on_device)
    }

    /// What is read at least in every step of the placement, where memory decides it: layers'
    /// weights, and KV that it keeps on the host, that have no room.
    pub(crate) fn least_read_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        if !self.may_read(self.placement) {
            return 0;
        }
        let lacking_bytes = self.lacking_host_bytes(batches, batch_size);
        lacking_bytes.saturating_sub(self.limits.far_room_bytes())
    }

    /// What the near host memory lacks at least for a placement: for layers' weights, and KV that
    /// it keeps on the host.
    fn lacking_host_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        let Placement { kv, residency, device_batches, .. } = self.placement;
        let on_host = |layer: usize| match residency.attention {
            ResidentAttention::WithKv => !residency.layers.contains(&layer),
            ResidentAttention::Streamed | ResidentAttention::OnCpu => true,
        };
        let kv_bytes = match kv {
            Some(MemoryId::DRAM) => {
                self.kv_bytes(on_host, batches.saturating_sub(*device_batches), batch_size)
            }
            _ => 0,
        };
        let room_bytes = self.limits.dram_bytes.saturating_sub(PROCESS_OVERHEAD_BYTES);
        (self.weights_bytes() + kv_bytes).saturating_sub(room_bytes)
    }

    /// KV of some layers for so many batches.
    fn kv_bytes(&self, is_counted: impl Fn(usize) -> bool, batches: u16, batch_size: u16) -> u64 {
        let position = self.formats.kv.position_bytes(self.config.head_dim, self.dtype);
        let sequences = u64::from(batches) * u64::from(batch_size);
        let layers = (0..self.config.num_layers).filter(|layer| is_counted(*layer));
        let of_layer = |layer: usize| {
            let kind = self.config.layers.of(layer);
            match self.config.delta.filter(|_| kind.has_state()) {
                Some(delta) => delta.inputs_bytes() + delta.state_bytes(),
                None => {
                    let positions = kind.kept_positions(self.max_context as usize);
                    2 * self.config.num_kv_heads * position * positions
                }
            }
        };
        layers.map(of_layer).sum::<usize>() as u64 * sequences
    }

    /// Weights of a layer in these formats.
    pub(crate) fn layer_weight_bytes(&self, layer: usize, formats: &[WeightFormat]) -> u64 {
        let blobs = self.config.layer_ops(layer).iter().zip(formats);
        blobs.map(|(op, form)| op.weight_bytes_in(self.config, self.dtype, *form) as u64).sum()
    }

    fn weights_bytes(&self) -> u64 {
        let layers = self.formats.weights.layers.iter().enumerate();
        layers.map(|(layer, formats)| self.layer_weight_bytes(layer, formats)).sum()
    }

    /// The placement with as much as further memories have room for of what the GPU multiplies in
    /// them, which leaves the near one to the CPU; `None` where that is nothing, or the near memory
    /// would lack more.
    pub(crate) fn with_most_far(
        &self,
        homes: Homes,
        batches: u16,
        batch_size: u16,
    ) -> Option<Placement> {
        if self.limits.far_bytes == Limits::NO_FAR {
            return None;
        }
        let movable = Movable::of(self.config, self.dtype, &self.map(homes), FarWeights::Streamed);
        let (far, bytes) = movable.most(self.limits.far_bytes);
        let is_enough = bytes >= self.lacking_host_bytes(batches, batch_size);
        (is_enough && bytes > 0).then(|| Placement { far, ..self.placement.clone() })
    }

    /// About what lives far away of the placement, before memory has decided it.
    pub(crate) fn far_shares(&self, batches: u16, batch_size: u16) -> FarShares {
        let bytes = self.lacking_host_bytes(batches, batch_size);
        let bytes = bytes.min(self.limits.far_room_bytes());
        FarShares::of(self.config, self.dtype, self.formats, self.placement, bytes)
    }
}
