//! Estimates of prefill, cached by the few parameters that determine them.

use std::collections::HashMap;

use model::config::ModelConfig;
use program::map::Chunking;
use program::topology::{FAR_MAX, MemoryId};

use super::estimate::MORE_LAYERS;
use super::{Estimator, Unpriced};
use crate::budget::PrefillRoom;
use crate::lia::Vector;
use crate::policy::{Far, Homes, Placement, Policy, Residency, ResidentAttention, Staged};

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
    far: Far,
    /// Weights of every layer that are read.
    staged: Staged,
    room: PrefillRoom,
}

/// Cache of prefill estimates; see the module documentation.
pub(super) struct Prefills<'a> {
    estimator: &'a Estimator<'a>,
    known: HashMap<PrefillKey, f64>,
}

impl<'a> Prefills<'a> {
    pub(super) fn of(estimator: &'a Estimator<'a>) -> Prefills<'a> {
        Prefills { estimator, known: HashMap::new() }
    }

    /// Returns the duration of prefill. With some layers resident, or in additional memories, it is
    /// interpolated between prefill with none and with all. If weights are read, it is at least
    /// their fraction of the duration with all weights read; with barriers, a layer that is read
    /// delays the following ones.
    ///
    /// # Errors
    /// A plan that cannot be priced.
    pub(super) fn ns(&mut self, placement: &Placement, room: PrefillRoom) -> Result<f64, Unpriced> {
        let config = self.estimator.request.config;
        let layers = config.num_layers;
        let share = placement.residency.layers.len() as f64 / layers.max(1) as f64;
        let near = Placement { far: Far::NONE, staged: Staged::NONE, ..placement.clone() };
        let mut sum_ns = 0.0;
        let far = of_every_far_layer(placement.far, layers);
        let near_share = 1.0 - share - far.iter().map(|(_, part)| part).sum::<f64>();
        for (far, part) in far.into_iter().chain([(Far::NONE, near_share)]) {
            if part > 0.0 {
                let placement = Placement { far, ..near.clone() };
                sum_ns += part * self.uniform_ns(&placement, false, room)?;
            }
        }
        if share > 0.0 {
            sum_ns += share * self.uniform_ns(&near, true, room)?;
        }
        if placement.staged.is_none() {
            return Ok(sum_ns);
        }
        if layers <= MORE_LAYERS {
            return self.estimator(room).uniform_prefill_ns(placement, uses_gpu(placement));
        }
        let (staged, read) = of_every_layer(&placement.staged, config);
        let read = read.min(1.0 - share);
        let reading = Placement { far: Far::NONE, staged, ..placement.clone() };
        let reading_ns = self.uniform_ns(&reading, false, room)?;
        Ok(match placement.policy {
            Policy::Flexgen(_) => (1.0 - read) * sum_ns + read * reading_ns,
            _ => sum_ns.max(read * reading_ns),
        })
    }

    fn estimator(&self, room: PrefillRoom) -> Estimator<'a> {
        let homes = Homes { prefill_hidden: room.prefill_hidden, ..self.estimator.homes };
        Estimator { homes, has_small_streams: room.has_small_streams, ..*self.estimator }
    }

    fn uniform_ns(
        &mut self,
        placement: &Placement,
        all_resident: bool,
        room: PrefillRoom,
    ) -> Result<f64, Unpriced> {
        let Placement { policy, prefill_on_cpu, kv, device_batches, residency, far, staged } =
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
            far: if all_resident { Far::NONE } else { *far },
            staged: staged.clone(),
            room,
        };
        if let Some(known_ns) = self.known.get(&key) {
            return Ok(*known_ns);
        }
        let count = if all_resident { self.estimator.request.config.num_layers } else { 0 };
        let residency = Residency { layers: (0..count).collect(), ..residency.clone() };
        let placement = Placement { residency, ..placement.clone() };
        let prefill_ns = self.estimator(room).uniform_prefill_ns(&placement, uses_gpu)?;
        self.known.insert(key, prefill_ns);
        Ok(prefill_ns)
    }
}

/// Returns true if a run uses the device, although prefill may be the CPU's alone.
fn uses_gpu(placement: &Placement) -> bool {
    // No other placement that leaves everything to the CPU is among those that are compared.
    let all_on_cpu = match &placement.policy {
        Policy::CpuOnly => true,
        Policy::Lia { prefill, decode, .. } => [prefill, decode] == [&Vector::FULL_CPU; 2],
        _ => false,
    };
    !(placement.residency.is_none() && all_on_cpu)
}

/// Returns for each additional memory the placement with every layer's weights in it, and the
/// fraction of the layers that are there.
fn of_every_far_layer(far: Far, layers: usize) -> Vec<(Far, f64)> {
    let numbers = (0..far.layers.len()).filter(|number| far.layers[*number] > 0);
    let every = numbers.map(|number| {
        let mut every = [0; FAR_MAX];
        every[number] = layers;
        let share = far.layers[number] as f64 / layers.max(1) as f64;
        (Far { layers: every, ..far }, share)
    });
    every.collect()
}

/// Returns what is read if every layer is read like those that are, and the fraction of the layers
/// that are read.
fn of_every_layer(staged: &Staged, config: &ModelConfig) -> (Staged, f64) {
    let layers = config.num_layers;
    let count = |layers_read: f64| layers_read / layers.max(1) as f64;
    match staged.layers {
        0 if staged.partly == 0 => (staged.clone(), 1.0),
        0 => (Staged { partly: layers, ..staged.clone() }, count(staged.partly as f64)),
        whole => {
            let matrices = config.leading_ops().iter().filter(|op| op.has_matrix(config));
            let elements = |op: &model::ops::Op| {
                let shape = op.weights(config).and_then(|shape| shape.matrix);
                shape.map_or(0, |(out, input)| out * input)
            };
            let all: usize = matrices.map(elements).sum();
            let some: usize = staged.ops.iter().map(elements).sum();
            let read = whole as f64 + staged.partly as f64 * some as f64 / all.max(1) as f64;
            let every = Staged { layers, partly: 0, ops: Vec::new(), outer: staged.outer };
            (every, count(read))
        }
    }
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::known as model;
    use model::ops::Op;

    use super::super::{Estimate, Pricing};
    use super::*;
    use crate::budget::{Limits, Request, Storage};
    use crate::machine::{Nvme, known};
    use crate::policy::{Flexgen, Formats};

    /// With some layers read among others, the estimate is close to that of the whole program.
    #[test]
    fn prefill_of_layers_that_are_read_is_near_that_of_the_program() {
        let mut config = model("opt-1.3b").expect("known").config;
        config.num_layers = 12;
        for (policy, staged, gbps) in cases() {
            let mut machine = known("ryzen7950x-a4000").expect("there").expect("valid");
            machine.nvme = vec![Nvme { read_gbps: gbps, direct: false }; 2];
            let storage = machine.read_shares().map(Storage::auto);
            let placement = Placement { staged, ..Placement::of(policy) };
            let limits = Limits {
                dram_bytes: u64::MAX,
                vram_bytes: None,
                vram_is_dram: false,
                far_bytes: Limits::NO_FAR,
                device_scratch: None,
            };
            let request = Request {
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
            };
            let plan = request.plan(2, 32).expect("it fits");
            let said = Estimate::of(&plan, &machine).expect("priced").prefill_ns;
            let (prefill_hidden, has_small_streams) = (plan.map.prefill_hidden, false);
            let homes = Homes { kv: MemoryId::DRAM, prefill_hidden };
            let pricing: &dyn Pricing = &machine;
            let request = &request;
            let estimator = Estimator {
                request,
                batches: 2,
                batch_size: 32,
                pricing,
                homes,
                has_small_streams,
            };
            let room = PrefillRoom { prefill_hidden, has_small_streams };
            let about = Prefills::of(&estimator).ns(&placement, room).expect("priced");
            let share = about / said;
            assert!(
                (0.85..1.01).contains(&share),
                "{policy:?} {:?} {gbps}: {about} {said}",
                placement.staged
            );
        }
    }

    fn cases() -> Vec<(Policy, Staged, f64)> {
        let staged = |layers, partly| Staged { layers, partly, ops: vec![Op::Fc0], outer: false };
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
