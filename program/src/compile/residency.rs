//! Weights that stay on the device, and those of them of which the host keeps a copy.

use model::config::ModelConfig;
use model::ops::Op;
use rustc_hash::FxHashSet;

use crate::map::{ComputeDevice, DeviceMap, OpChunk, layer_list};
use crate::plan::RunShape;
use crate::topology::Topology;
use crate::weights::Weights;

/// Weights that stay in device memory.
#[derive(Debug, Default)]
pub(super) struct CompiledResidency {
    /// Blobs, in loading order.
    pub(super) weights: Vec<Weights>,
    /// Blobs that no operation of the host reads, of which the host keeps no copy.
    device_only: FxHashSet<Weights>,
}

impl CompiledResidency {
    pub(super) fn new(
        config: &ModelConfig,
        shape: &RunShape,
        map: &DeviceMap,
        topology: &Topology,
    ) -> CompiledResidency {
        let mut residency = CompiledResidency::default();
        for layer in 0..config.num_layers as u16 {
            let model = config.of_layer(layer.into());
            let ops = config.layer_ops(layer.into()).iter().copied();
            let stays = |op: &Op| topology.is_vram(map.weights_of(config, Some(layer), *op));
            let resident: Vec<Op> =
                ops.filter(|op| op.weights(model).is_some()).filter(stays).collect();
            if resident.is_empty() {
                continue;
            }
            let on_host = host_weights(config, shape, map, layer);
            for weights in resident.into_iter().map(|op| Weights::Layer { layer, op }) {
                residency.add(weights, on_host.contains(&weights));
            }
        }
        if topology.is_vram(map.outer_weights) {
            let phases = [&map.prefill, &map.decode];
            for (weights, devices) in [
                (Weights::FinalNorm, phases.map(|phase| phase.final_norm)),
                (Weights::Head, phases.map(|phase| phase.head)),
            ] {
                if devices.contains(&ComputeDevice::Gpu) {
                    residency.add(weights, devices.contains(&ComputeDevice::Cpu));
                }
            }
        }
        residency
    }

    fn add(&mut self, weights: Weights, is_on_host: bool) {
        self.weights.push(weights);
        if !is_on_host {
            self.device_only.insert(weights);
        }
    }

    /// Returns true if only the device reads a blob.
    pub(super) fn is_device_only(&self, weights: Weights) -> bool {
        self.device_only.contains(&weights)
    }
}

/// Returns the blobs of a layer that operations of the host read, in any program.
fn host_weights(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    layer: u16,
) -> FxHashSet<Weights> {
    let place = usize::from(layer);
    let prefill = layer_list(config, place, None);
    let prefill = prefill.into_iter().zip(map.prefill.layers[place].iter().copied());
    // If sequences have owners, the host computes the attention of its own.
    let on_host = |(entry, device): &(OpChunk, ComputeDevice)| {
        *device == ComputeDevice::Cpu || (shape.has_owners() && entry.op.is_attention())
    };
    let all = prefill.chain(map.decode_layer(config, place)).filter(on_host);
    all.map(|(entry, _)| Weights::of(entry.op, Some(layer))).collect()
}
