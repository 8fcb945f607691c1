//! The device map of a policy, for the whole model.

use model::config::ModelConfig;
use model::ops::{Kv, Op};
use program::expert_reads::ExpertReads;
use program::formats::{KvFormat, WeightFormats};
use program::map::{
    ComputeDevice, DeviceMap, LayerKv, OpChunk, PhaseMap, Schedule, layer_list, leading_list,
};
use program::shares::ReadShares;
use program::topology::MemoryId;

use super::{DefaultTiers, Flexgen, Policy};
use crate::lia::sublayer_of;
use crate::split::Split;

/// Slots for streamed weights: of the layer being computed and of the next one.
const WEIGHT_SLOTS: u16 = 2;
/// Number of batches whose streamed KV may be on the device at once: the one being read and the
/// next.
const KV_BATCHES: usize = 2;

/// Returns the device map of a policy alone, with everything in the run's dtype; a
/// [`super::Placement`] and [`super::Formats::apply`] refine it.
pub fn device_map(
    policy: &Policy,
    config: &ModelConfig,
    fuse_attention: bool,
    default_tiers: DefaultTiers,
) -> DeviceMap {
    let chunking = policy.chunking();
    let whole = leading_list(config, None);
    let list = leading_list(config, chunking);
    let prefill_layer: Vec<ComputeDevice> =
        whole.iter().map(|entry| prefill_device(policy, *entry)).collect();
    let by_index = |(index, entry): (usize, &OpChunk)| decode_device(policy, index, *entry);
    let decode_layer: Vec<ComputeDevice> = list.iter().enumerate().map(by_index).collect();
    let layers = config.num_layers;
    let for_all_layers =
        |list: &[OpChunk], devices: &[ComputeDevice], chunking| -> Vec<Vec<ComputeDevice>> {
            let own = |layer| layer_list(config, layer, chunking);
            let derive = |layer| derive_devices(config, &own(layer), list, devices);
            (0..layers).map(derive).collect()
        };
    let all_gpu = matches!(policy, Policy::GpuOnly | Policy::Resident | Policy::Flexgen(_));
    let head = if all_gpu { ComputeDevice::Gpu } else { ComputeDevice::Cpu };
    // Only the last rows are transferred to a head on the CPU.
    let final_norm = match policy {
        Policy::CpuOnly | Policy::Ellm | Policy::Lia { .. } => ComputeDevice::Cpu,
        _ => ComputeDevice::Gpu,
    };
    let weights = if *policy == Policy::Resident { MemoryId::VRAM } else { MemoryId::DRAM };
    let mut map = DeviceMap {
        policy: policy.name().to_owned(),
        chunking,
        kv_slots: kv_slots(&list, &decode_layer),
        prefill: PhaseMap {
            embed: ComputeDevice::Cpu,
            layers: for_all_layers(&whole, &prefill_layer, None),
            final_norm,
            head,
        },
        decode: PhaseMap {
            embed: ComputeDevice::Cpu,
            layers: for_all_layers(&list, &decode_layer, chunking),
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
        expert_reads: ExpertReads::default(),
        expert_slots: 0,
        pinned_experts: Vec::new(),
        routing: program::routing_counts::RoutingSkew::default(),
        prefill_hidden: default_tiers.prefill_hidden,
        weight_formats: WeightFormats::plain(config),
        kv_format: KvFormat::Plain,
        kv_select: None,
        schedule: match policy {
            Policy::Flexgen(Flexgen { spread: false, .. }) => Schedule::Barrier,
            Policy::Flexgen(Flexgen { spread: true, .. }) => Schedule::BarrierSpread,
            _ => Schedule::Overlapped,
        },
    };
    map.kv = (0..layers).map(|layer| kv_tiers(&map, config, layer, default_tiers.kv)).collect();
    place_states(&mut map, config);
    place_shared_caches(&mut map, config);
    map
}

/// Stores caches that several layers attend to where all of them can read them: on the host if the
/// CPU computes the attention of one. Layers without caches of their own have the same entries.
pub(super) fn place_shared_caches(map: &mut DeviceMap, config: &ModelConfig) {
    let readers = (0..config.num_layers).map(|layer| (layer, config.cache_layer(layer)));
    let readers: Vec<_> = readers.filter(|(layer, source)| layer != source).collect();
    let attends_on_cpu = |map: &DeviceMap, layer: usize| {
        let prefill = layer_list(config, layer, None).into_iter();
        let prefill = prefill.zip(map.prefill.layers[layer].iter().copied());
        let mut all = prefill.chain(map.decode_layer(config, layer));
        all.any(|(entry, on)| entry.op.is_attention() && on == ComputeDevice::Cpu)
    };
    for (reader, source) in &readers {
        if map.layer_chunking(config, *source).is_none() && attends_on_cpu(map, *reader) {
            let host = vec![MemoryId::DRAM];
            map.kv[*source] = LayerKv { k: host.clone(), v: host, device_batches: 0 };
        }
    }
    for (reader, source) in readers {
        map.kv[reader] = map.kv[source].clone();
    }
}

/// Derives the devices of a layer's entries from those of the leading layer: an operation that the
/// leading layer does not have is placed like its counterpart.
fn derive_devices(
    config: &ModelConfig,
    own: &[OpChunk],
    leading: &[OpChunk],
    devices: &[ComputeDevice],
) -> Vec<ComputeDevice> {
    let place = |entry: &OpChunk| {
        let same = leading.iter().position(|other| other == entry);
        let counterpart = entry.op.counterpart(config);
        same.or_else(|| leading.iter().position(|other| other.op == counterpart))
    };
    own.iter()
        .map(|entry| place(entry).map_or(ComputeDevice::Cpu, |place| devices[place]))
        .collect()
}

/// Places states in prefill where decode updates them, and stores them there.
pub(super) fn place_states(map: &mut DeviceMap, config: &ModelConfig) {
    for layer in (0..config.num_layers).filter(|layer| config.layers.kind(*layer).has_state()) {
        let decode = map.decode_layer(config, layer);
        let layer_kv = &mut map.kv[layer];
        layer_kv.device_batches = 0;
        for (place, op) in config.layer_ops(layer).iter().enumerate() {
            if !op.updates_state() {
                continue;
            }
            let own = decode.iter().find(|(entry, _)| entry.op == *op);
            let Some((_, device)) = own.copied() else { continue };
            map.prefill.layers[layer][place] = device;
            let tier = match device {
                ComputeDevice::Gpu => MemoryId::VRAM,
                ComputeDevice::Cpu => MemoryId::DRAM,
            };
            for kv in op.caches(config) {
                match kv {
                    Kv::K => layer_kv.k = vec![tier],
                    Kv::V => layer_kv.v = vec![tier],
                }
            }
        }
    }
}

/// Returns the memories of a layer's caches: `device_tier` for the parts that the GPU reads.
fn kv_tiers(map: &DeviceMap, config: &ModelConfig, layer: usize, device_tier: MemoryId) -> LayerKv {
    let list = map.decode_layer(config, layer);
    let tiers_of = |op: Op| -> Vec<MemoryId> {
        let readers = list.iter().filter(|(entry, _)| entry.op == op);
        let tier_for = |device: &ComputeDevice| match device {
            ComputeDevice::Gpu => device_tier,
            ComputeDevice::Cpu => MemoryId::DRAM,
        };
        readers.map(|(_, device)| tier_for(device)).collect()
    };
    let (k, v) = (tiers_of(Op::Scores), tiers_of(Op::Wv));
    let has_two = config.layer_caches(layer).contains(&Kv::V);
    let has_entries = config.layers.kind(layer).compression.is_some();
    if has_two && !has_entries {
        return LayerKv { k, v, device_batches: 0 };
    }
    // A cache has several readers: it is stored where the CPU can read it if it has to.
    let preparing = [tiers_of(Op::Compress), tiers_of(Op::Select)].concat();
    let of_both = |(k, v): (MemoryId, MemoryId)| {
        let is_same = k == v && preparing.iter().all(|tier| *tier == k);
        if is_same { k } else { MemoryId::DRAM }
    };
    let k: Vec<_> = k.into_iter().zip(v).map(of_both).collect();
    let v = if has_entries { k.clone() } else { Vec::new() };
    LayerKv { k, v, device_batches: 0 }
}

/// Returns the device of an operation in prefill.
fn prefill_device(policy: &Policy, entry: OpChunk) -> ComputeDevice {
    match policy {
        Policy::CpuOnly | Policy::Ellm => ComputeDevice::Cpu,
        Policy::Lia { prefill, .. } => lia_device(prefill.0, entry.op),
        _ => ComputeDevice::Gpu,
    }
}

/// Returns the device of entry `index` of the list in decode.
pub fn decode_device(policy: &Policy, index: usize, entry: OpChunk) -> ComputeDevice {
    let gpu = match policy {
        Policy::CpuOnly | Policy::Ellm => false,
        Policy::GpuOnly | Policy::Resident => true,
        Policy::TwoSplit { split: Split { start, end }, .. } => (*start..*end).contains(&index),
        Policy::OneSplit { start, .. } => index >= *start,
        Policy::Lia { decode, .. } => return lia_device(decode.0, entry.op),
        Policy::Flexgen(flexgen) => !(flexgen.cpu_attention && entry.op.is_attention()),
    };
    if gpu { ComputeDevice::Gpu } else { ComputeDevice::Cpu }
}

/// Returns the device according to LIA's vector; operations that it does not list stay on the CPU.
fn lia_device(cpu: [bool; crate::lia::SUBLAYERS], op: Op) -> ComputeDevice {
    match sublayer_of(op) {
        Some(sublayer) if !cpu[sublayer] => ComputeDevice::Gpu,
        _ => ComputeDevice::Cpu,
    }
}

/// Returns the number of KV slots. Chunks are streamed one by one, with as many slots as make up
/// whole batches.
fn kv_slots(list: &[OpChunk], devices: &[ComputeDevice]) -> u16 {
    let parts = |op| {
        let on_gpu = |(entry, device): &(&OpChunk, &ComputeDevice)| {
            entry.op == op && **device == ComputeDevice::Gpu && entry.chunk.is_some()
        };
        list.iter().zip(devices).filter(on_gpu).count()
    };
    let parts = parts(Op::Scores).max(parts(Op::Wv)).max(1);
    u16::try_from(KV_BATCHES * parts).unwrap_or(u16::MAX)
}
