//! Lower bounds on the host memory that a placement lacks, before compilation, and on what is
//! therefore read or stored in additional memories.

use model::experts::Experts;
use model::ops::Kv;
use model::quantized_format::WeightFormat;
use program::topology::MemoryId;

use super::PlacementRequest;
use super::bytes::{MemoryLimits, PROCESS_OVERHEAD_BYTES};
use super::slow_tier::{MovableWeights, SlowTierShares};
use crate::policy::{DefaultTiers, Placement, Policy, ResidentAttention, SlowTierWeights};

impl PlacementRequest<'_> {
    /// Returns a lower bound on the bytes in near host memory: all weights of layers and KV that
    /// fit neither in device memory nor, if they are weights, in an additional memory or on a
    /// storage.
    pub(crate) fn min_host_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        let kv_bytes = self.kv_bytes(|_| true, batches, batch_size);
        let on_device =
            if self.limits.vram_is_dram { 0 } else { self.limits.vram_bytes.unwrap_or(0) };
        let weights_bytes = if self.storage.is_some() { 0 } else { self.weights_bytes() };
        let on_host = weights_bytes.saturating_sub(self.limits.slow_tier_capacity_bytes());
        (on_host + kv_bytes).saturating_sub(on_device)
    }

    /// Returns a lower bound on the bytes read in every step of the placement, if memory determines
    /// them: weights of layers, and KV that it stores on the host, that do not fit.
    pub(crate) fn min_read_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        if !self.may_read(self.placement) {
            return 0;
        }
        let missing_bytes = self.missing_host_bytes(batches, batch_size);
        let bytes = missing_bytes.saturating_sub(self.limits.slow_tier_capacity_bytes());
        let skew = |experts: &Experts| self.routing.map(|routing| routing.skew(experts.per_token));
        let routing = self.config.experts.as_ref().and_then(skew).unwrap_or_default();
        let routed = self.storage.and_then(|storage| {
            storage.expert_reads.routed_experts(self.config, &routing, batches, batch_size)
        });
        match routed {
            // All that is missing may be experts, of which only some are read.
            Some(experts) => {
                (bytes as f64 * routing.expected_share(&experts, batch_size.into())) as u64
            }
            None => bytes,
        }
    }

    /// Returns a lower bound on the bytes that near host memory lacks for a placement: for weights
    /// of layers that do not stay on a device, and for KV that it stores on the host.
    fn missing_host_bytes(&self, batches: u16, batch_size: u16) -> u64 {
        let Placement { policy, kv, residency, device_batches, .. } = self.placement;
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
        // An emulated device's memory is host memory too.
        let stays_on_device = |layer: usize| {
            !self.limits.vram_is_dram
                && (*policy == Policy::Resident || residency.layers.binary_search(&layer).is_ok())
        };
        let weights_bytes = self.weights_bytes_of(|layer| !stays_on_device(layer));
        let capacity_bytes = self.limits.dram_bytes.saturating_sub(PROCESS_OVERHEAD_BYTES);
        (weights_bytes + kv_bytes).saturating_sub(capacity_bytes)
    }

    /// Returns the bytes of the KV of some layers for the given number of batches.
    fn kv_bytes(&self, is_counted: impl Fn(usize) -> bool, batches: u16, batch_size: u16) -> u64 {
        let sequences = u64::from(batches) * u64::from(batch_size);
        let layers = (0..self.config.num_layers).filter(|layer| is_counted(*layer));
        let of_layer = |layer: usize| {
            let kind = self.config.layers.kind(layer);
            let state = |kv| self.config.state_bytes(kind, kv);
            match state(Kv::K).zip(state(Kv::V)) {
                Some((inputs, states)) => inputs + states,
                None => {
                    let model = self.config.of_layer(layer);
                    let of_cache = |kv: &Kv| {
                        let places = kind.kept_places(*kv, self.max_context as usize);
                        let place =
                            self.formats.kv.position_bytes(model.cache_dim(*kv), self.dtype);
                        model.num_kv_heads * place * places
                    };
                    self.config.layer_caches(layer).iter().map(of_cache).sum()
                }
            }
        };
        layers.map(of_layer).sum::<usize>() as u64 * sequences
    }

    /// Returns the bytes of a layer's weights in these formats.
    pub(crate) fn layer_weight_bytes(&self, layer: usize, formats: &[WeightFormat]) -> u64 {
        let model = self.config.of_layer(layer);
        let blobs = self.config.layer_ops(layer).iter().zip(formats);
        blobs.map(|(op, format)| op.weight_bytes_in(model, self.dtype, *format) as u64).sum()
    }

    fn weights_bytes(&self) -> u64 {
        self.weights_bytes_of(|_| true)
    }

    /// Returns the bytes of the weights of some layers.
    fn weights_bytes_of(&self, is_counted: impl Fn(usize) -> bool) -> u64 {
        let layers = self.formats.weights.layers.iter().enumerate();
        let counted = layers.filter(|(layer, _)| is_counted(*layer));
        counted.map(|(layer, formats)| self.layer_weight_bytes(layer, formats)).sum()
    }

    /// Returns the placement with as many of the weights that the GPU multiplies as possible in
    /// additional memories, which leaves the near one to the CPU; `None` if there are no such
    /// weights, or the near memory would lack more.
    pub(crate) fn with_max_slow_tier(
        &self,
        tiers: DefaultTiers,
        batches: u16,
        batch_size: u16,
    ) -> Option<Placement> {
        if self.limits.slow_tier_bytes == MemoryLimits::NO_SLOW_TIER {
            return None;
        }
        let movable = MovableWeights::from_map(
            self.config,
            self.dtype,
            &self.map(tiers),
            SlowTierWeights::Streamed,
        );
        let (slow_tier, bytes) = movable.max_layers(self.limits.slow_tier_bytes);
        let is_enough = bytes >= self.missing_host_bytes(batches, batch_size);
        (is_enough && bytes > 0).then(|| Placement { slow_tier, ..self.placement.clone() })
    }

    /// Estimates the weights in additional memories of the placement, before memory has determined
    /// them.
    pub(crate) fn slow_tier_shares(&self, batches: u16, batch_size: u16) -> SlowTierShares {
        let bytes = self.missing_host_bytes(batches, batch_size);
        let bytes = bytes.min(self.limits.slow_tier_capacity_bytes());
        SlowTierShares::estimate(self.config, self.dtype, self.formats, self.placement, bytes)
    }
}
