//! Checks that a device map must pass before it is compiled.

use model::config::ModelConfig;
use model::ops::Op;

use crate::formats::decompressed;
use crate::kv_owner::with_owners;
use crate::map::{ChunkOrder, Chunking, ComputeDevice, DeviceMap, OpChunk, Schedule, layer_list};
use crate::plan::RunShape;
use crate::routing_counts::PinnedExpert;
use crate::topology::{MemoryId, MemoryKind, Topology};
use crate::weights::Weights;

use super::error::CompileError;
use super::routes::Routes;

/// Head sizes whose keys have partial keys are multiples of this number of elements.
const HEAD_STEP: usize = 8;

pub(super) fn check(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    routes: &Routes<'_>,
) -> Result<(), CompileError> {
    if shape.batches == 0
        || shape.batch_size == 0
        || shape.micro_sequences == 0
        || shape.max_prompt == 0
        || (shape.serves && shape.prefill_chunk < shape.batch_size.into())
    {
        return Err(CompileError::EmptyShape);
    }
    if shape.checked_streams().is_none() {
        return Err(CompileError::TooManyStreams { chunk: shape.prefill_chunk });
    }
    if map.weight_slots == 0 || map.kv_slots == 0 {
        return Err(CompileError::NoSlots);
    }
    if map.schedule != Schedule::Overlapped && (map.weight_slots < 2 || map.kv_slots < 2) {
        return Err(CompileError::BarrierSlots);
    }
    if map.prefill.embed == ComputeDevice::Gpu || map.decode.embed == ComputeDevice::Gpu {
        return Err(CompileError::EmbedOnGpu);
    }
    check_kv_format(config, map)?;
    if map.kv_select.is_some() {
        check_select(config, map)?;
    }
    if shape.page_positions > 0 || shape.kv_pages > 0 {
        check_pages(config, shape, map, routes.topology)?;
    }
    check_checkpoints(config, shape, map)?;
    if shape.has_owners() {
        check_owners(config, shape, map)?;
    }
    check_pieces(config, map)?;
    check_routing(config, map)?;
    if let Some(chunking) = map.attention_chunking() {
        let units = shape.batch_size as usize * config.num_kv_heads;
        if chunking.chunks == 0 || usize::from(chunking.chunks) > units {
            return Err(CompileError::TooManyChunks { chunks: chunking.chunks, units });
        }
    }
    let counts = [
        ("the prefill map", map.prefill.layers.len()),
        ("the decode map", map.decode.layers.len()),
        ("the weights' tiers", map.weights.len()),
        ("the KV tiers", map.kv.len()),
        ("the weights' formats", map.weight_formats.layers.len()),
    ];
    for (what, found) in counts {
        if found != config.num_layers {
            return Err(CompileError::Layers { what, found, expected: config.num_layers });
        }
    }
    check_tier("weights", map.outer_weights, routes)?;
    let is_direct = map.direct_reads && map.uses_gpu() && map.uses_storages();
    if is_direct && !routes.topology.reads_directly() {
        return Err(CompileError::NoLane { what: "reads the storage of weights to the device" });
    }
    (0..config.num_layers).try_for_each(|layer| {
        check_layer(config, map, layer, routes)?;
        check_states(config, map, layer, routes)?;
        let topology = routes.topology;
        if shape.is_chunked() { check_chunked(config, map, layer, topology) } else { Ok(()) }
    })
}

fn check_kv_format(config: &ModelConfig, map: &DeviceMap) -> Result<(), CompileError> {
    let Some(format) = map.kv_format.record_format() else { return Ok(()) };
    if config.features.indexer.is_some() || compresses(config) {
        return Err(CompileError::IndexedKvFormat { bits: format.bits() });
    }
    let mut head_dims = config.kind_models().map(|model| model.head_dim);
    match head_dims.find(|head_dim| format.position_bytes(*head_dim).is_none()) {
        Some(head_dim) => Err(CompileError::OddHead { bits: format.bits(), head_dim }),
        None => Ok(()),
    }
}

/// Returns true if layers have entries of groups of positions.
fn compresses(config: &ModelConfig) -> bool {
    config.layers.kinds().iter().any(|kind| kind.compression.is_some())
}

/// Checks a map produced by `crate::kv_owner::with_owners`, for models in which every layer has
/// attention.
fn check_owners(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<(), CompileError> {
    let is_on_device = || {
        map.prefill.layers.iter().flatten().all(|device| *device == ComputeDevice::Gpu)
            && map.schedule == Schedule::Overlapped
    };
    let is_owned = || {
        let owned = with_owners(map, config);
        (map.chunking, &map.decode, &map.kv) == (owned.chunking, &owned.decode, &owned.kv)
    };
    let problem = match () {
        () if !shape.serves || shape.batches != 1 => "only a run that serves one batch has owners",
        () if shape.device_slots > shape.batch_size => "the device has more slots than there are",
        () if shape.page_positions > 0 => "paged caches stay on the CPU",
        () if config.layers.has_states() => "the model's states are not moved",
        () if config.has_kind_models() => "the model's heads differ by layer, or share caches",
        () if config.features.unified_kv.is_some() => "the model's keys are its values too",
        () if config.features.indexer.is_some() => "an indexer selects positions of whole caches",
        () if map.uses_storages() => "weights on storages are read for one program",
        () if !is_on_device() => "all linears must be the device's, without barriers",
        () if !is_owned() => "attention and caches are not in the two owners' parts",
        () => return Ok(()),
    };
    Err(CompileError::Owners { problem })
}

/// Checks that measured routing is that of as many experts as the model has, and that each pinned
/// expert exists and has a slot.
fn check_routing(config: &ModelConfig, map: &DeviceMap) -> Result<(), CompileError> {
    let count = config.experts.map_or(0, |experts| experts.count);
    let counted = map.routing.experts();
    if counted > 0 && counted != count {
        return Err(CompileError::Routing { counted, count });
    }
    let pinned = &map.pinned_experts;
    let is_known = |one: &PinnedExpert| {
        usize::from(one.layer) < config.num_layers && usize::from(one.expert) < count
    };
    let ascend = pinned.windows(2).all(|pair| pair[0] < pair[1]);
    if pinned.len() > map.expert_slots as usize || !ascend || !pinned.iter().all(is_known) {
        return Err(CompileError::PinnedExperts { pinned: pinned.len(), slots: map.expert_slots });
    }
    Ok(())
}

/// Refuses combinations that linears in pieces, and scores in parts, do not support.
fn check_pieces(config: &ModelConfig, map: &DeviceMap) -> Result<(), CompileError> {
    let is_scores = |chunking: Chunking| chunking.order == ChunkOrder::Scores;
    if config.has_single_cache() && map.chunking.is_some_and(is_scores) {
        return Err(CompileError::LatentScores);
    }
    let reads_whole = config.features.indexer.is_some() || compresses(config);
    if reads_whole && map.attention_chunking().is_some() {
        return Err(CompileError::IndexedParts);
    }
    let Some(cut) = map.chunking.filter(|cut| cut.order == ChunkOrder::Linears) else {
        return Ok(());
    };
    let is_widened = |layer: usize| {
        let mut list = map.decode_layer(config, layer).into_iter();
        list.any(|(OpChunk { op, chunk }, _)| {
            let weights = Weights::of(op, u16::try_from(layer).ok());
            chunk.is_some() && decompressed(map.weight_formats.of(config, weights)).is_some()
        })
    };
    let problem = match () {
        () if cut.chunks == 0 => "there must be at least one piece",
        () if map.schedule != Schedule::Overlapped => "a schedule with barriers streams them whole",
        () if map.direct_reads => "weights that are read directly to the device are read whole",
        () if (0..map.weights.len()).any(is_widened) => {
            "the device first widens the format that their weights are in"
        }
        () => return Ok(()),
    };
    Err(CompileError::Pieces { problem })
}

/// Checks KV selection: only the CPU's fused attention over whole caches without windows can select
/// positions.
fn check_select(config: &ModelConfig, map: &DeviceMap) -> Result<(), CompileError> {
    let refused = |reason| Err(CompileError::Select { reason });
    if map.uses_gpu() {
        return refused("selection runs on the CPU alone");
    }
    if !map.fuse_attention || map.chunking.is_some() {
        return refused("selection needs attention as one operation, whole");
    }
    if map.uses_storages() {
        return refused("selection needs all weights in memory, without drives");
    }
    if config.layers.has_states() {
        return refused("the model has layers with a recurrent state, which store no keys");
    }
    if config.layers.kinds().iter().any(|kind| kind.window.is_some()) {
        return refused("the model has layers with a sliding window, which already store few keys");
    }
    if config.has_single_cache() {
        return refused("the model caches one vector for all heads, which is not split by head");
    }
    if config.has_kind_models() {
        return refused("the model's heads differ by layer, or share caches");
    }
    if config.sinks {
        return refused("the model has attention sinks, whose scores would not be computed");
    }
    match config.head_dim.is_multiple_of(HEAD_STEP) {
        true => Ok(()),
        false => refused("selection needs heads whose size is a multiple of 8"),
    }
}

/// Checks paged caches: only CPU kernels read pages, and only whole caches.
fn check_pages(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    topology: &Topology,
) -> Result<(), CompileError> {
    let RunShape { page_positions, kv_pages, .. } = *shape;
    let multiple = config.page_multiple();
    if kv_pages == 0 || page_positions == 0 || !(page_positions as usize).is_multiple_of(multiple) {
        return Err(CompileError::Pages { kv_pages, page_positions, multiple });
    }
    if map.chunking.is_some() {
        return Err(CompileError::PagesInParts);
    }
    let on_device = |layer: usize| {
        let list = layer_list(config, layer, None);
        let of = |devices: &[ComputeDevice]| {
            let mut attention = list.iter().zip(devices);
            attention
                .any(|(entry, device)| entry.op.is_attention() && *device == ComputeDevice::Gpu)
        };
        let kv = map.kv.get(layer).is_some_and(|layer_kv| {
            let caches = config.layer_caches(layer).iter();
            let mut all = caches.flat_map(|kv| layer_kv.tiers(*kv));
            layer_kv.device_batches > 0 || all.any(|home| topology.is_vram(*home))
        });
        let phases = [&map.prefill, &map.decode];
        kv || phases
            .iter()
            .any(|phase| phase.layers.get(layer).is_some_and(|of_layer| of(of_layer)))
    };
    match (0..config.num_layers).find(|layer| on_device(*layer)) {
        Some(layer) => Err(CompileError::PagesOnDevice { layer }),
        None => Ok(()),
    }
}

/// Checks a tier: weights and caches are stored on the host or on a device, weights also in another
/// host memory or on a storage that a lane reads.
fn check_tier(what: &'static str, tier: MemoryId, routes: &Routes<'_>) -> Result<(), CompileError> {
    match routes.topology.memory_kind(tier) {
        _ if tier == MemoryId::STORAGES && what == "weights" => {
            match routes.topology.storages().is_empty() {
                true => Err(CompileError::NoLane { what: "reads the storage of weights" }),
                false => Ok(()),
            }
        }
        _ if tier.slow_tier_index().is_some() && what == "weights" => {
            match tier.slow_tier_index().and_then(|number| routes.topology.slow_tier(number)) {
                Some(_) => Ok(()),
                None => Err(CompileError::NoMemory { what, memory: tier.0 }),
            }
        }
        Some(MemoryKind::Dram | MemoryKind::Vram) => Ok(()),
        _ => Err(CompileError::NoMemory { what, memory: tier.0 }),
    }
}

fn check_layer(
    config: &ModelConfig,
    map: &DeviceMap,
    layer: usize,
    routes: &Routes<'_>,
) -> Result<(), CompileError> {
    let prefill = layer_list(config, layer, None);
    let decode = layer_list(config, layer, map.chunking);
    let counts = [
        ("prefill map", map.prefill.layers[layer].len(), prefill.len()),
        ("decode map", map.decode.layers[layer].len(), decode.len()),
        ("weights' tiers", map.weights[layer].len(), config.layer_ops(layer).len()),
        ("weights' formats", map.weight_formats.layers[layer].len(), config.layer_ops(layer).len()),
    ];
    for (what, found, expected) in counts {
        if found != expected {
            return Err(CompileError::Entries { what, layer, found, expected });
        }
    }
    map.weights[layer].iter().try_for_each(|home| check_tier("weights", *home, routes))?;
    let mut attention = prefill
        .iter()
        .zip(&map.prefill.layers[layer])
        .filter(|(entry, _)| entry.op.is_attention())
        .map(|(_, device)| device);
    let first = attention.next();
    if attention.any(|device| Some(device) != first) {
        return Err(CompileError::PrefillAttentionCut { layer });
    }
    let chunking = map.layer_chunking(config, layer);
    let stored = config.cache_layer(layer);
    if map.layer_chunking(config, stored) != chunking {
        return Err(CompileError::SharedParts { layer, source_layer: stored });
    }
    for kv in config.layer_caches(layer).iter().copied() {
        let tiers = map.kv[layer].tiers(kv);
        tiers.iter().try_for_each(|home| check_tier("KV caches", *home, routes))?;
        let expected = usize::from(chunking.map_or(1, |chunking| chunking.parts(kv)));
        if tiers.len() != expected {
            return Err(CompileError::KvParts { layer, kv, found: tiers.len(), expected });
        }
    }
    for (entry, device) in map.decode_layer(config, layer) {
        if !entry.op.is_attention() {
            continue;
        }
        for kv in entry.op.caches(config.of_layer(layer)).iter().copied() {
            let part = entry.chunk.map_or(0, |chunk| usize::from(chunk.index));
            let on_device = |batch| map.kv[stored].tier(kv, part as u16, batch);
            // The first and the last batch: batches in between have the tier of one of them.
            let tiers = [on_device(0), on_device(u16::MAX)];
            let is_on_device = tiers.iter().any(|home| routes.topology.is_vram(*home));
            if is_on_device && device == ComputeDevice::Cpu {
                return Err(CompileError::CpuReadsVram { layer, kv, part });
            }
        }
    }
    Ok(())
}

/// Checks checkpoints: the lane that samples copies them from caches in the host's memory, where
/// those of a run with pages are.
fn check_checkpoints(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<(), CompileError> {
    let windows = config.layers.windows_below(shape.max_context);
    let problem = match () {
        () if shape.checkpoints == 0 => return Ok(()),
        () if !shape.serves || shape.page_positions == 0 => "only a run that serves pages has them",
        () if windows.is_empty() && !config.layers.has_states() => {
            "every layer keeps all positions"
        }
        () if map.prefill.head == ComputeDevice::Gpu => "the device computes the logits",
        () => return Ok(()),
    };
    Err(CompileError::Checkpoints { problem })
}

/// Checks the states of a layer. They are updated in place, so they are stored where they are
/// computed, in all programs and for all batches.
fn check_states(
    config: &ModelConfig,
    map: &DeviceMap,
    layer: usize,
    routes: &Routes<'_>,
) -> Result<(), CompileError> {
    let prefill = layer_list(config, layer, None).into_iter().zip(&map.prefill.layers[layer]);
    let prefill = prefill.map(|(entry, device)| (entry, *device));
    for (entry, device) in prefill.chain(map.decode_layer(config, layer)) {
        let states = if entry.op.updates_state() { entry.op.caches(config) } else { &[] };
        for kv in states {
            let tiers = [0, u16::MAX].map(|batch| map.kv[layer].tier(*kv, 0, batch));
            if tiers.iter().any(|home| *home != routes.near(device)) {
                return Err(CompileError::StateElsewhere { layer });
            }
        }
    }
    Ok(())
}

/// Checks chunked attention in prefill: it reads caches too, from its own side or streamed to it.
pub(super) fn check_chunked(
    config: &ModelConfig,
    map: &DeviceMap,
    layer: usize,
    topology: &Topology,
) -> Result<(), CompileError> {
    let list = layer_list(config, layer, None);
    let mut attention = list.iter().zip(&map.prefill.layers[layer]);
    let on_cpu =
        attention.any(|(entry, device)| entry.op == Op::Scores && *device == ComputeDevice::Cpu);
    let stored = config.cache_layer(layer);
    for kv in config.layer_caches(stored).iter().copied() {
        let layer_kv = &map.kv[stored];
        let on_device = layer_kv.tiers(kv).iter().any(|home| topology.is_vram(*home));
        if on_cpu && (on_device || layer_kv.device_batches > 0) {
            return Err(CompileError::CpuReadsVram { layer, kv, part: 0 });
        }
    }
    Ok(())
}
