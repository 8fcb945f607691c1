//! A policy as a device map of the whole model.

use model::config::ModelConfig;
use model::ops::Op;
use program::formats::{KvFormat, WeightFormats};
use program::map::{Device, DeviceMap, LayerKv, OpChunk, PhaseMap, Schedule, layer_list};
use program::shares::ReadShares;
use program::topology::MemoryId;

use super::{Flexgen, Homes, Policy};
use crate::lia::sublayer_of;
use crate::split::Split;

/// Streamed weights of the layer being computed and of the next one.
const WEIGHT_SLOTS: u16 = 2;
/// Batches whose streamed KV may be on the device at once: the one being read and the next.
const KV_BATCHES: usize = 2;

/// The device map of a policy alone, with everything in the run's dtype; a [`super::Placement`] and
/// [`super::Formats::apply`] change that.
pub fn device_map(
    policy: &Policy,
    config: &ModelConfig,
    fuse_attention: bool,
    homes: Homes,
) -> DeviceMap {
    let chunking = policy.chunking();
    let whole = layer_list(config, 0, None);
    let list = layer_list(config, 0, chunking);
    let prefill_layer: Vec<Device> = whole.iter().map(|entry| prefill(policy, *entry)).collect();
    let decode_layer: Vec<Device> = list
        .iter()
        .enumerate()
        .map(|(index, entry)| decode_device(policy, index, *entry))
        .collect();
    let layers = config.num_layers;
    let all_gpu = matches!(policy, Policy::GpuOnly | Policy::Resident | Policy::Flexgen(_));
    let head = if all_gpu { Device::Gpu } else { Device::Cpu };
    // Only the last rows cross to a head on the CPU.
    let final_norm = match policy {
        Policy::CpuOnly | Policy::Lia { .. } => Device::Cpu,
        _ => Device::Gpu,
    };
    let weights = if *policy == Policy::Resident { MemoryId::VRAM } else { MemoryId::DRAM };
    let mut map = DeviceMap {
        policy: policy.name().to_owned(),
        chunking,
        kv_slots: kv_slots(&list, &decode_layer),
        prefill: PhaseMap {
            embed: Device::Cpu,
            layers: vec![prefill_layer; layers],
            final_norm,
            head,
        },
        decode: PhaseMap {
            embed: Device::Cpu,
            layers: vec![decode_layer; layers],
            final_norm: head,
            head,
        },
        weights: (0..layers).map(|layer| vec![weights; config.layer_ops(layer).len()]).collect(),
        outer_weights: weights,
        kv: Vec::new(),
        fuse_attention,
        weight_slots: WEIGHT_SLOTS,
        direct_reads: false,
        shares: ReadShares::default(),
        prefill_hidden: homes.prefill_hidden,
        weight_formats: WeightFormats::plain(config),
        kv_format: KvFormat::Plain,
        schedule: match policy {
            Policy::Flexgen(Flexgen { spread: false, .. }) => Schedule::Barrier,
            Policy::Flexgen(Flexgen { spread: true, .. }) => Schedule::BarrierSpread,
            _ => Schedule::Overlapped,
        },
    };
    map.kv = (0..layers).map(|layer| kv_homes(&map, config, layer, homes.kv)).collect();
    map
}

/// The homes of a layer's caches: `device_home` for the parts that the GPU reads.
fn kv_homes(map: &DeviceMap, config: &ModelConfig, layer: usize, device_home: MemoryId) -> LayerKv {
    let list = map.decode_layer(config, layer);
    let homes = |op: Op| {
        let readers = list.iter().filter(|(entry, _)| entry.op == op);
        let home = |device: &Device| match device {
            Device::Gpu => device_home,
            Device::Cpu => MemoryId::DRAM,
        };
        readers.map(|(_, device)| home(device)).collect()
    };
    LayerKv { k: homes(Op::Scores), v: homes(Op::Wv), device_batches: 0 }
}

/// Where an operation runs in prefill.
fn prefill(policy: &Policy, entry: OpChunk) -> Device {
    match policy {
        Policy::CpuOnly => Device::Cpu,
        Policy::Lia { prefill, .. } => offloaded(prefill.0, entry.op),
        _ => Device::Gpu,
    }
}

/// Where entry `index` of the list runs in decode.
pub fn decode_device(policy: &Policy, index: usize, entry: OpChunk) -> Device {
    let gpu = match policy {
        Policy::CpuOnly => false,
        Policy::GpuOnly | Policy::Resident => true,
        Policy::TwoSplit { split: Split { start, end }, .. } => (*start..*end).contains(&index),
        Policy::OneSplit { start, .. } => index >= *start,
        Policy::Lia { decode, .. } => return offloaded(decode.0, entry.op),
        Policy::Flexgen(flexgen) => !(flexgen.cpu_attention && entry.op.is_attention()),
    };
    if gpu { Device::Gpu } else { Device::Cpu }
}

/// What LIA's vector says; what it does not list, it leaves on the CPU.
fn offloaded(cpu: [bool; crate::lia::SUBLAYERS], op: Op) -> Device {
    match sublayer_of(op) {
        Some(sublayer) if !cpu[sublayer] => Device::Gpu,
        _ => Device::Cpu,
    }
}

/// Chunks are streamed one by one; as many slots as make up whole batches.
fn kv_slots(list: &[OpChunk], devices: &[Device]) -> u16 {
    let parts = |op| {
        let on_gpu = |(entry, device): &(&OpChunk, &Device)| {
            entry.op == op && **device == Device::Gpu && entry.chunk.is_some()
        };
        list.iter().zip(devices).filter(on_gpu).count()
    };
    let parts = parts(Op::Scores).max(parts(Op::Wv)).max(1);
    u16::try_from(KV_BATCHES * parts).unwrap_or(u16::MAX)
}
