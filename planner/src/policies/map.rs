//! A policy's layer as a device map of the whole model.

use model::config::ModelConfig;
use program::map::{Chunking, Device, DeviceMap, Home, LayerKv, layer_list};

use crate::policy::{Homes, Policy, device_map as policy_map};
use crate::split::Split;

use super::Layer;

/// Batches of streamed KV that may be on the device at once, as [`crate::steady::Shape`] has it.
const KV_BATCHES: usize = 2;

/// What is the same for every layer of a map.
#[derive(Debug, Clone, Copy)]
pub struct MapRequest<'a> {
    pub config: &'a ModelConfig,
    /// Of the table that the layer was chosen from.
    pub chunking: Option<Chunking>,
    pub fuse_attention: bool,
    pub homes: Homes,
    /// Layers that stay on the device.
    pub resident: &'a [usize],
    /// Their KV stays too.
    pub resident_kv: bool,
}

/// The map in which every layer that is not resident runs decode as `layer` says, and prefill on the
/// GPU (on the CPU when it uses no GPU at all). `None` for FlexGen, which is an order of work and not
/// a placement.
pub fn device_map(layer: &Layer, request: &MapRequest<'_>) -> Option<DeviceMap> {
    let MapRequest { config, chunking, fuse_attention, homes, resident, .. } = *request;
    let list = layer_list(config, chunking);
    let on_gpu: Vec<bool> = match layer {
        Layer::Interval(candidate) => (0..list.len()).map(|op| candidate.on_gpu(op)).collect(),
        Layer::Devices(devices) => devices.clone(),
        Layer::Flexgen(_) => return None,
    };
    let policy = match layer {
        _ if !on_gpu.contains(&true) && resident.is_empty() => Policy::CpuOnly,
        Layer::Interval(candidate) => {
            let (start, end) = candidate.interval;
            if end - start == list.len() {
                Policy::GpuOnly
            } else {
                Policy::TwoSplit { split: Split { start, end }, chunking }
            }
        }
        _ => Policy::TwoSplit { split: Split { start: 0, end: 0 }, chunking },
    };
    let mut map = policy_map(&policy, config, fuse_attention, homes);
    if policy == Policy::GpuOnly {
        // KV that resident layers do not keep is streamed.
        let home = if resident.is_empty() { homes.kv } else { Home::Host };
        map.kv.fill(LayerKv { k: vec![home], v: vec![home] });
    }
    if let Layer::Devices(devices) = layer {
        let devices = devices.iter().map(|gpu| if *gpu { Device::Gpu } else { Device::Cpu });
        map.decode.layers.fill(devices.collect());
    }
    for &index in resident {
        map.decode.layers.get_mut(index)?.fill(Device::Gpu);
        map.prefill.layers[index].fill(Device::Gpu);
        map.weights[index].fill(Home::Vram);
        let home = if request.resident_kv { Home::Vram } else { Home::Host };
        map.kv[index] = LayerKv { k: vec![home], v: vec![home] };
    }
    // Chunks are streamed one by one; as many of them as make up whole batches.
    let parts = |op| (0..list.len()).filter(|i| on_gpu[*i] && list[*i].op == op).count();
    let parts = parts(model::ops::Op::Scores).max(parts(model::ops::Op::Wv)).max(1);
    map.kv_slots = u16::try_from(KV_BATCHES * parts).ok()?;
    Some(map)
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::known;
    use program::compile::compile;
    use program::map::{ChunkOrder, Chunking, Device, Home, layer_list};
    use program::plan::{Memory, RunShape};

    use super::{MapRequest, device_map};
    use crate::closed_form::Candidate;
    use crate::policies::{Flexgen, Layer};
    use crate::policy::Homes;

    const SHAPE: RunShape = RunShape {
        batches: 2,
        batch_size: 2,
        max_prompt: 8,
        max_context: 16,
        max_new: 8,
        micro_sequences: 2,
        dtype: Dtype::Bf16,
    };

    #[test]
    fn every_interval_with_resident_layers_compiles() {
        let mut config = known("opt-125m").expect("known").config;
        config.num_layers = 4;
        for chunking in [None, Some(Chunking { order: ChunkOrder::Scores, chunks: 3 })] {
            let count = layer_list(&config, chunking).len();
            for (resident, resident_kv) in
                [(&[][..], false), (&[1, 3][..], false), (&[0][..], true)]
            {
                for start in 0..count {
                    for end in start + 1..=count {
                        let request = MapRequest {
                            config: &config,
                            chunking,
                            fuse_attention: true,
                            homes: Homes { kv: Home::Host, prefill_hidden: Home::Host },
                            resident,
                            resident_kv,
                        };
                        let layer = Layer::Interval(Candidate::plain(start, end));
                        let map = device_map(&layer, &request).expect("a map");
                        let plan = compile(&config, &SHAPE, &map).expect("compiles");
                        assert_eq!(plan.resident.is_empty(), resident.is_empty());
                        let split = map.decode.layers[2].iter().filter(|d| **d == Device::Gpu);
                        // A whole layer has no chunks.
                        let all = if end - start == count { 11 } else { end - start };
                        assert_eq!(split.count(), all);
                    }
                }
            }
        }
    }

    #[test]
    fn the_cpu_alone_needs_no_device() {
        let config = known("opt-125m").expect("known").config;
        let request = MapRequest {
            config: &config,
            chunking: None,
            fuse_attention: true,
            homes: Homes { kv: Home::Host, prefill_hidden: Home::Host },
            resident: &[],
            resident_kv: false,
        };
        let map = device_map(&Layer::Interval(Candidate::plain(0, 0)), &request).expect("a map");
        let plan = compile(&config, &SHAPE, &map).expect("compiles");
        assert_eq!(plan.memory_bytes(Memory::Device), 0);
        let lia = Layer::Devices((0..11).map(|op| !(4..7).contains(&op)).collect());
        let map = device_map(&lia, &request).expect("a map");
        assert_eq!(map.decode.layers[0][5], Device::Cpu);
        compile(&config, &SHAPE, &map).expect("compiles");
        assert!(device_map(&Layer::Flexgen(Flexgen::default()), &request).is_none());
    }
}
