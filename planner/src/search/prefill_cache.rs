//! Estimates of prefill, cached by the few parameters that determine them.

use model::config::ModelConfig;
use program::map::Chunking;
use program::topology::{MemoryId, SLOW_TIERS_MAX};
use rustc_hash::FxHashMap;

use super::estimate::MORE_LAYERS;
use super::{CostError, Estimator};
use crate::budget::PrefillFit;
use crate::lia::OffloadVector;
use crate::policy::{
    DefaultTiers, Placement, Policy, Residency, ResidentAttention, SlowTierLayers, StagedMatrices,
};

/// Parameters that determine prefill if all layers are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PrefillKey {
    policy: &'static str,
    chunking: Option<Chunking>,
    on_cpu: bool,
    kv: Option<MemoryId>,
    device_batches: u16,
    attention: ResidentAttention,
    head: bool,
    all_resident: bool,
    uses_gpu: bool,
    /// Weights of every layer that are in additional memories.
    slow_tier: SlowTierLayers,
    /// Weights of every layer that are read.
    staged: StagedMatrices,
    memory_fit: PrefillFit,
}

/// Cache of prefill estimates; see the module documentation.
pub(super) struct PrefillCache<'a> {
    estimator: &'a Estimator<'a>,
    estimates_ns: FxHashMap<PrefillKey, f64>,
}

impl<'a> PrefillCache<'a> {
    pub(super) fn new(estimator: &'a Estimator<'a>) -> PrefillCache<'a> {
        PrefillCache { estimator, estimates_ns: FxHashMap::default() }
    }

    /// Returns the duration of prefill. With some layers resident, or in additional memories, it is
    /// interpolated between prefill with none and with all. If weights are read, it is at least
    /// their fraction of the duration with all weights read; with barriers, a layer that is read
    /// delays the following ones.
    ///
    /// # Errors
    /// A plan that cannot be priced.
    pub(super) fn ns(
        &mut self,
        placement: &Placement,
        memory_fit: PrefillFit,
    ) -> Result<f64, CostError> {
        let config = self.estimator.request.config;
        let layers = config.num_layers;
        let share = placement.residency.layers.len() as f64 / layers.max(1) as f64;
        let near = Placement {
            slow_tier: SlowTierLayers::NONE,
            staged: StagedMatrices::NONE,
            ..placement.clone()
        };
        let mut sum_ns = 0.0;
        let slow_tiers = all_layers_per_slow_tier(placement.slow_tier, layers);
        let near_share = 1.0 - share - slow_tiers.iter().map(|(_, part)| part).sum::<f64>();
        for (slow_tier, part) in slow_tiers.into_iter().chain([(SlowTierLayers::NONE, near_share)])
        {
            if part > 0.0 {
                let placement = Placement { slow_tier, ..near.clone() };
                sum_ns += part * self.uniform_ns(&placement, false, memory_fit)?;
            }
        }
        if share > 0.0 {
            sum_ns += share * self.uniform_ns(&near, true, memory_fit)?;
        }
        if placement.staged.is_none() {
            return Ok(sum_ns);
        }
        if layers <= MORE_LAYERS {
            return self.estimator(memory_fit).uniform_prefill_ns(placement, uses_gpu(placement));
        }
        let (staged, read) = staged_in_every_layer(&placement.staged, config);
        let read = read.min(1.0 - share);
        let reading = Placement { slow_tier: SlowTierLayers::NONE, staged, ..placement.clone() };
        let reading_ns = self.uniform_ns(&reading, false, memory_fit)?;
        Ok(match placement.policy {
            Policy::Flexgen(_) => (1.0 - read) * sum_ns + read * reading_ns,
            _ => sum_ns.max(read * reading_ns),
        })
    }

    fn estimator(&self, memory_fit: PrefillFit) -> Estimator<'a> {
        let tiers =
            DefaultTiers { prefill_hidden: memory_fit.prefill_hidden, ..self.estimator.tiers };
        Estimator { tiers, has_small_streams: memory_fit.has_small_streams, ..*self.estimator }
    }

    fn uniform_ns(
        &mut self,
        placement: &Placement,
        all_resident: bool,
        memory_fit: PrefillFit,
    ) -> Result<f64, CostError> {
        let Placement { policy, prefill_on_cpu, kv, device_batches, residency, slow_tier, staged } =
            placement;
        let uses_gpu = uses_gpu(placement);
        let key = PrefillKey {
            policy: match policy {
                Policy::OneSplit { .. } => "two-split",
                other => other.name(),
            },
            chunking: policy.chunking(),
            // Irrelevant if all layers stay, or none do.
            on_cpu: *prefill_on_cpu && !(all_resident && residency.head),
            kv: if all_resident { None } else { *kv },
            device_batches: if all_resident { 0 } else { *device_batches },
            attention: if all_resident { residency.attention } else { ResidentAttention::WithKv },
            head: residency.head,
            all_resident,
            uses_gpu,
            slow_tier: if all_resident { SlowTierLayers::NONE } else { *slow_tier },
            staged: staged.clone(),
            memory_fit,
        };
        if let Some(known_ns) = self.estimates_ns.get(&key) {
            return Ok(*known_ns);
        }
        let count = if all_resident { self.estimator.request.config.num_layers } else { 0 };
        let residency = Residency { layers: (0..count).collect(), ..residency.clone() };
        let placement = Placement { residency, ..placement.clone() };
        let prefill_ns = self.estimator(memory_fit).uniform_prefill_ns(&placement, uses_gpu)?;
        self.estimates_ns.insert(key, prefill_ns);
        Ok(prefill_ns)
    }
}

/// Returns true if a run uses the device, although prefill may be the CPU's alone.
fn uses_gpu(placement: &Placement) -> bool {
    // No other placement that leaves everything to the CPU is among those that are compared.
    let all_on_cpu = match &placement.policy {
        Policy::CpuOnly | Policy::Ellm => true,
        Policy::Lia { prefill, decode, .. } => [prefill, decode] == [&OffloadVector::FULL_CPU; 2],
        _ => false,
    };
    !(placement.residency.is_none() && all_on_cpu)
}

/// Returns for each additional memory the placement with every layer's weights in it, and the
/// fraction of the layers that are there.
fn all_layers_per_slow_tier(
    slow_tier: SlowTierLayers,
    layers: usize,
) -> Vec<(SlowTierLayers, f64)> {
    let numbers = (0..slow_tier.layers.len()).filter(|number| slow_tier.layers[*number] > 0);
    let every = numbers.map(|number| {
        let mut every = [0; SLOW_TIERS_MAX];
        every[number] = layers;
        let share = slow_tier.layers[number] as f64 / layers.max(1) as f64;
        (SlowTierLayers { layers: every, ..slow_tier }, share)
    });
    every.collect()
}

/// Returns what is read if every layer is read like those that are, and the fraction of the layers
/// that are read.
fn staged_in_every_layer(staged: &StagedMatrices, config: &ModelConfig) -> (StagedMatrices, f64) {
    let layers = config.num_layers;
    let count = |layers_read: f64| layers_read / layers.max(1) as f64;
    match staged.layers {
        0 if staged.partial_layers == 0 => (staged.clone(), 1.0),
        0 => (
            StagedMatrices { partial_layers: layers, ..staged.clone() },
            count(staged.partial_layers as f64),
        ),
        whole => {
            let matrices = config.leading_ops().iter().filter(|op| op.has_matrix(config));
            let elements = |op: &model::ops::Op| {
                let shape = op.weights(config).and_then(|shape| shape.matrix);
                shape.map_or(0, |(out, input)| out * input)
            };
            let all: usize = matrices.map(elements).sum();
            let some: usize = staged.ops.iter().map(elements).sum();
            let read =
                whole as f64 + staged.partial_layers as f64 * some as f64 / all.max(1) as f64;
            let every =
                StagedMatrices { layers, partial_layers: 0, ops: Vec::new(), outer: staged.outer };
            (every, count(read))
        }
    }
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::find_known as model;
    use model::ops::Op;

    use super::super::{Estimate, Pricing};
    use super::*;
    use crate::budget::{MemoryLimits, PlacementRequest, Storage};
    use crate::machine::{DriveSpec, find_bundled};
    use crate::policy::{Flexgen, Formats};

    /// With some layers read among others, the estimate is close to that of the whole program.
    #[test]
    fn prefill_of_layers_that_are_read_is_near_that_of_the_program() {
        let mut config = model("opt-1.3b").expect("known").config;
        config.num_layers = 12;
        for (policy, staged, gbps) in cases() {
            let mut machine = find_bundled("ryzen7950x-a4000").expect("there").expect("valid");
            machine.nvme = vec![DriveSpec { read_gbps: gbps, direct: false }; 2];
            let storage = machine.read_shares().map(Storage::auto);
            let placement = Placement { staged, ..Placement::from_policy(policy) };
            let limits = MemoryLimits {
                dram_bytes: u64::MAX,
                vram_bytes: None,
                vram_is_dram: false,
                slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
                device_scratch: None,
            };
            let request = PlacementRequest {
                config: &config,
                placement: &placement,
                formats: &Formats::plain(&config),
                fuse_attention: true,
                dtype: Dtype::Bf16,
                max_prompt: 64,
                shared_prompt: 0,
                max_context: 72,
                max_new: 8,
                logprobs: 0,
                prefill_chunk: None,
                limits: &limits,
                storage: storage.as_ref(),
                routing: None,
            };
            let plan = request.plan(2, 32).expect("it fits");
            let said = Estimate::from_plan(&plan, &machine).expect("priced").prefill_ns;
            let (prefill_hidden, has_small_streams) = (plan.map.prefill_hidden, false);
            let tiers = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden };
            let pricing: &dyn Pricing = &machine;
            let request = &request;
            let estimator = Estimator {
                request,
                batches: 2,
                batch_size: 32,
                pricing,
                tiers,
                has_small_streams,
            };
            let room = PrefillFit { prefill_hidden, has_small_streams };
            let about = PrefillCache::new(&estimator).ns(&placement, room).expect("priced");
            let share = about / said;
            assert!(
                (0.85..1.01).contains(&share),
                "{policy:?} {:?} {gbps}: {about} {said}",
                placement.staged
            );
        }
    }

    fn cases() -> Vec<(Policy, StagedMatrices, f64)> {
        let staged = |layers, partial_layers| StagedMatrices {
            layers,
            partial_layers,
            ops: vec![Op::Fc0],
            outer: false,
        };
        let policies = [Policy::CpuOnly, Policy::GpuOnly, Policy::Flexgen(Flexgen::default())];
        let mut all = Vec::new();
        for policy in policies {
            for staged in [staged(4, 1), staged(0, 12), staged(9, 0), staged(0, 2)] {
                all.extend([0.2, 2.0, 20.0].map(|gbps| (policy, staged.clone(), gbps)));
            }
        }
        all
    }
}
