//! The global order of the work of a program.
//!
//! A *stream* is a batch (decode) or a stream (prefill). Every stream passes through the same
//! *segments*: runs of operations on one device. The order is segment by segment, and within a
//! segment stream by stream, so that while one device works on a stream the other has the next one
//! to work on (Park-Egger fig. 12d), and a streamed weight serves all streams before the next
//! comes.

use model::config::ModelConfig;
use model::ops::Op;

use crate::deferred_rows::stream_after;
use crate::ir::{ProgramShape, Rows};
use crate::kv_owner::{AttentionSide, HOST};
use crate::map::{
    Chunk, Chunking, ComputeDevice, DeviceMap, Phase, Schedule as MapSchedule, layer_list,
};

/// One operation (or chunk) of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) op: Op,
    pub(super) chunk: Option<Chunk>,
    pub(super) layer: Option<u16>,
    pub(super) device: ComputeDevice,
    pub(super) batch: u16,
    pub(super) stream: u16,
    /// This entry is the last of its segment.
    pub(super) ends_segment: bool,
}

#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) entries: Vec<Entry>,
    /// Every layer runs on one device, so that only the residual stream outlives a segment.
    pub(super) uniform: bool,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    op: Op,
    chunk: Option<Chunk>,
    layer: Option<u16>,
    device: ComputeDevice,
}

/// Orders a program's work in some layers of the model.
pub(super) fn schedule(
    program: ProgramShape,
    config: &ModelConfig,
    batches: u16,
    map: &DeviceMap,
    layers: &[usize],
) -> Schedule {
    let layers: Vec<Vec<Item>> =
        layers.iter().map(|layer| layer_items(program, config, map, *layer)).collect();
    let uniform = layers.iter().all(|layer| is_uniform(layer));
    let segments = segments(program, config, map, &layers);
    let mut entries = Vec::new();
    for segment in &segments {
        for batch in 0..batches {
            for stream in 0..program.joint_streams() {
                let side = program.attention_side.side(stream);
                let own = |item: &&Item| !item.op.is_attention() || side.attends(item.chunk);
                let count = segment.iter().filter(own).count();
                entries.extend(segment.iter().filter(own).enumerate().map(|(i, item)| Entry {
                    op: item.op,
                    chunk: item.chunk,
                    layer: item.layer,
                    device: item.device,
                    batch,
                    stream,
                    ends_segment: i + 1 == count,
                }));
            }
        }
    }
    if program.attention_side == AttentionSide::Deferred {
        let mut behind = 0;
        for entry in &mut entries {
            behind = match entry.layer {
                None if entry.op.precedes_layers() => 0,
                None => config.num_layers as u16,
                // The host computes attention for the rows that follow.
                Some(layer) if entry.op.is_attention() && entry.chunk == Some(HOST) => layer + 1,
                Some(layer) => behind.max(layer),
            };
            entry.stream = stream_after(behind);
        }
    }
    Schedule { entries, uniform }
}

fn is_uniform(layer: &[Item]) -> bool {
    layer.iter().all(|item| item.device == layer[0].device)
}

/// Splits the list at device changes, and after each layer that runs entirely on one device: all
/// streams pass that layer before any continues, so that its weights are read or streamed once.
fn segments(
    program: ProgramShape,
    config: &ModelConfig,
    map: &DeviceMap,
    layers: &[Vec<Item>],
) -> Vec<Vec<Item>> {
    let phase = program.rows.phase();
    let places = map.of_phase(phase);
    let outer = |op, device| Item { op, chunk: None, layer: None, device };
    let mut embed = vec![outer(Op::Embed, places.embed)];
    if config.features.per_layer_inputs.is_some() {
        embed.push(outer(Op::PerLayerEmbed, places.embed));
    }
    if config.features.hidden_states.are_joined() {
        embed.push(outer(Op::JoinHidden, places.embed));
    }
    let mut segments: Vec<Vec<Item>> = vec![embed];
    let by_layer = map.schedule != MapSchedule::Overlapped;
    let mut cut = phase == Phase::Prefill;
    let tail = [
        outer(Op::FinalNorm, places.final_norm),
        outer(Op::Head, places.head),
        outer(Op::Sample, places.head),
    ];
    for items in layers.iter().map(Vec::as_slice).chain(std::iter::once(&tail[..])) {
        for (i, item) in items.iter().enumerate() {
            let last = segments.last().and_then(|segment| segment.last());
            let device_changes = last.is_some_and(|last| last.device != item.device);
            // With barriers a layer is computed completely for one batch before the next batch.
            // Concurrently with the host's attention, the device passes the linears of all streams
            // first.
            let attends_last =
                program.attention_side == AttentionSide::Owners && item.op.is_attention();
            let changes = device_changes || attends_last;
            let cuts = if by_layer { i == 0 } else { changes || (i == 0 && cut) };
            if cuts {
                segments.push(Vec::new());
            }
            if let Some(segment) = segments.last_mut() {
                segment.push(*item);
            }
        }
        cut = is_uniform(items);
    }
    segments
}

fn layer_items(
    program: ProgramShape,
    config: &ModelConfig,
    map: &DeviceMap,
    layer: usize,
) -> Vec<Item> {
    let (rows, phase) = (program.rows, program.rows.phase());
    let list: Vec<(Op, Option<Chunk>, ComputeDevice)> = match phase {
        Phase::Prefill => layer_list(config, layer, None)
            .into_iter()
            .zip(&map.prefill.layers[layer])
            .map(|(entry, device)| (entry.op, None, *device))
            .collect(),
        Phase::Decode => map
            .decode_layer(config, layer)
            .into_iter()
            .map(|(entry, device)| (entry.op, entry.chunk, device))
            .collect(),
    };
    // Prefill has no unfused variant: its scores would not fit in memory.
    let fuse = phase == Phase::Prefill || map.fuse_attention;
    let mut items = Vec::new();
    let mut rest = list.as_slice();
    while let Some(&(op, chunk, device)) = rest.first() {
        let fused = fuse
            && op == Op::Scores
            && matches!(rest, [_, (Op::Softmax, s, ds), (Op::Wv, w, dw), ..]
                if *s == chunk && *w == chunk && *ds == device && *dw == device);
        let (op, taken) = if fused { (Op::Attention, 3) } else { (op, 1) };
        let item = Item { op, chunk, layer: u16::try_from(layer).ok(), device };
        match map.layer_chunking(config, layer).filter(|_| rows == Rows::Chunks) {
            // Caches are stored in parts and are read part by part.
            Some(Chunking { chunks: of, .. }) if op == Op::Attention => {
                let chunks = (0..of).map(|index| Some(Chunk { index, of }));
                items.extend(chunks.filter_map(|chunk| part(program.attention_side, item, chunk)));
            }
            _ => items.push(item),
        }
        rest = &rest[taken..];
    }
    items
}

/// Returns the attention item of a chunk, or `None` if no side computes it. An owner computes its
/// own.
fn part(attending: AttentionSide, item: Item, chunk: Option<Chunk>) -> Option<Item> {
    let device = match attending {
        AttentionSide::Mapped => item.device,
        _ if chunk == Some(HOST) => ComputeDevice::Cpu,
        AttentionSide::Device | AttentionSide::Owners | AttentionSide::Deferred => {
            ComputeDevice::Gpu
        }
    };
    attending.side(0).attends(chunk).then_some(Item { chunk, device, ..item })
}
