//! What a map must satisfy before it is compiled.

use model::compressed::kv4_position_bytes;
use model::config::ModelConfig;
use model::ops::{Kv, Op};

use crate::formats::KvFormat;
use crate::map::{Device, DeviceMap, Home, Schedule, layer_list};
use crate::plan::RunShape;

/// Why a map cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error(
        "the run has no sequences: batches, batch size and micro-batch size must be at least 1"
    )]
    EmptyShape,
    #[error("the map has {found} layers in {what}, the model has {expected}")]
    Layers { what: &'static str, found: usize, expected: usize },
    #[error("layer {layer}: the {what} lists {found} entries, the layer has {expected}")]
    Entries { what: &'static str, layer: usize, found: usize, expected: usize },
    #[error("the embedding runs on the CPU: it reads a few rows of a table too large to stream")]
    EmbedOnGpu,
    #[error("layer {layer}: in prefill scores, softmax and wv run on one device")]
    PrefillAttentionCut { layer: usize },
    #[error("layer {layer}: {kv:?} part {part} is kept in device memory, but the CPU reads it")]
    CpuReadsVram { layer: usize, kv: Kv, part: usize },
    #[error("layer {layer}: {kv:?} has {found} parts in the map, its attention has {expected}")]
    KvParts { layer: usize, kv: Kv, found: usize, expected: usize },
    #[error(
        "a 4-bit KV cache needs heads of even size, this model's have {head_dim} elements; leave kv4 out of --compress"
    )]
    OddHead { head_dim: usize },
    #[error(
        "with barriers the next layer's weights and the next batch's KV are streamed ahead, which needs two slots of each"
    )]
    BarrierSlots,
    #[error("weight slots and KV slots must be at least 1")]
    NoSlots,
    #[error(
        "attention is split into {chunks} chunks, but a batch has only {units} units (sequences x KV heads)"
    )]
    TooManyChunks { chunks: u16, units: usize },
}

pub(super) fn check(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
) -> Result<(), CompileError> {
    if shape.batches == 0
        || shape.batch_size == 0
        || shape.micro_sequences == 0
        || shape.max_prompt == 0
    {
        return Err(CompileError::EmptyShape);
    }
    if map.weight_slots == 0 || map.kv_slots == 0 {
        return Err(CompileError::NoSlots);
    }
    if map.schedule != Schedule::Overlapped && (map.weight_slots < 2 || map.kv_slots < 2) {
        return Err(CompileError::BarrierSlots);
    }
    if map.prefill.embed == Device::Gpu || map.decode.embed == Device::Gpu {
        return Err(CompileError::EmbedOnGpu);
    }
    if map.kv_format == KvFormat::Four && kv4_position_bytes(config.head_dim).is_none() {
        return Err(CompileError::OddHead { head_dim: config.head_dim });
    }
    if let Some(chunking) = map.chunking {
        let units = shape.batch_size as usize * config.num_kv_heads;
        if chunking.chunks == 0 || usize::from(chunking.chunks) > units {
            return Err(CompileError::TooManyChunks { chunks: chunking.chunks, units });
        }
    }
    let counts = [
        ("the prefill map", map.prefill.layers.len()),
        ("the decode map", map.decode.layers.len()),
        ("the weights' homes", map.weights.len()),
        ("the KV homes", map.kv.len()),
        ("the weights' formats", map.weight_formats.layers.len()),
    ];
    for (what, found) in counts {
        if found != config.num_layers {
            return Err(CompileError::Layers { what, found, expected: config.num_layers });
        }
    }
    (0..config.num_layers).try_for_each(|layer| check_layer(config, map, layer))
}

fn check_layer(config: &ModelConfig, map: &DeviceMap, layer: usize) -> Result<(), CompileError> {
    let prefill = layer_list(config, None);
    let decode = layer_list(config, map.chunking);
    let counts = [
        ("prefill map", map.prefill.layers[layer].len(), prefill.len()),
        ("decode map", map.decode.layers[layer].len(), decode.len()),
        ("weights' homes", map.weights[layer].len(), config.layer_ops().len()),
        ("weights' formats", map.weight_formats.layers[layer].len(), config.layer_ops().len()),
    ];
    for (what, found, expected) in counts {
        if found != expected {
            return Err(CompileError::Entries { what, layer, found, expected });
        }
    }
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
    for kv in [Kv::K, Kv::V] {
        let homes = map.kv[layer].homes(kv);
        let expected = usize::from(chunking.map_or(1, |chunking| chunking.parts(kv)));
        if homes.len() != expected {
            return Err(CompileError::KvParts { layer, kv, found: homes.len(), expected });
        }
    }
    for (entry, device) in map.decode_layer(config, layer) {
        let kv = match entry.op {
            Op::Scores => Kv::K,
            Op::Wv => Kv::V,
            _ => continue,
        };
        let part = entry.chunk.map_or(0, |chunk| usize::from(chunk.index));
        if map.kv[layer].homes(kv)[part] == Home::Vram && device == Device::Cpu {
            return Err(CompileError::CpuReadsVram { layer, kv, part });
        }
    }
    Ok(())
}
