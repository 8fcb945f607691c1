//! Errors of the compiler.

use model::ops::Kv;

use crate::topology::TopologyError;

/// Reason for which a map cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    #[error("the machine's topology is inconsistent: {0}")]
    Topology(#[from] TopologyError),
    #[error("the machine's topology has no lane that {what}")]
    NoLane { what: &'static str },
    #[error("the map keeps {what} in memory {memory}, which cannot hold them on this machine")]
    NoMemory { what: &'static str, memory: u8 },
    /// The number of chunks exceeds their index type.
    #[error(
        "prefill in chunks of {chunk} tokens is more than 65,535 chunks a batch; use a larger \
         --prefill-chunk, or smaller batches"
    )]
    TooManyStreams { chunk: u32 },
    /// Split attention keeps the cache in parts, which attention over whole prompts cannot read.
    #[error("the run has no sequences; batches, batch size and stream size must be at least 1")]
    EmptyShape,
    #[error(
        "the routing was counted for {counted} experts of a layer, but the model has {count}; give \
         --routing a report of this model, or leave it out"
    )]
    Routing { counted: usize, count: usize },
    #[error(
        "the {pinned} experts that stay in the cache must ascend, exist, and fit its {slots} slots"
    )]
    PinnedExperts { pinned: usize, slots: u32 },
    #[error("the map has {found} layers in {what}, the model has {expected}")]
    Layers { what: &'static str, found: usize, expected: usize },
    #[error("layer {layer}: the {what} lists {found} entries, the layer has {expected}")]
    Entries { what: &'static str, layer: usize, found: usize, expected: usize },
    #[error(
        "the embedding runs on the CPU: it reads a few rows of a table that is too large to stream"
    )]
    EmbedOnGpu,
    #[error("layer {layer}: in prefill scores, softmax and wv run on one device")]
    PrefillAttentionCut { layer: usize },
    #[error("layer {layer}: {kv:?} part {part} is kept in device memory, but the CPU reads it")]
    CpuReadsVram { layer: usize, kv: Kv, part: usize },
    #[error("layer {layer}: {kv:?} has {found} parts in the map, its attention has {expected}")]
    KvParts { layer: usize, kv: Kv, found: usize, expected: usize },
    #[error(
        "a {bits}-bit KV cache needs heads of even size, but this model's heads have {head_dim} \
         elements; leave kv{bits} out of --compress"
    )]
    OddHead { bits: usize, head_dim: usize },
    #[error(
        "with barriers the next layer's weights and the next batch's KV are streamed in advance, \
         which needs two slots for each"
    )]
    BarrierSlots,
    #[error(
        "paged caches of this model need at least one page, of a multiple of {multiple} positions, \
         not {kv_pages} pages of {page_positions}"
    )]
    Pages { kv_pages: u32, page_positions: u32, multiple: usize },
    #[error("checkpoints of sequences cannot be taken: {problem}")]
    Checkpoints { problem: &'static str },
    #[error(
        "scores and weighted values of this model read one cache: split whole attention \
         (scores, softmax and wv), not the scores alone"
    )]
    LatentScores,
    #[error(
        "an indexer selects positions of the whole cache: do not split the attention of this model"
    )]
    IndexedParts,
    #[error(
        "the keys of an indexer, which are cached with the latents, cannot be stored in {bits} \
         bits; leave kv{bits} out of --compress"
    )]
    IndexedKvFormat { bits: usize },
    #[error("paged caches cannot be split: do not split attention")]
    PagesInParts,
    #[error(
        "layer {layer}: the CPU stores paged caches and computes attention over them; put the \
         layer's attention and KV caches on the host"
    )]
    PagesOnDevice { layer: usize },
    #[error(
        "layer {layer}: the state of a sequence is updated where it is stored; put each operation \
         that updates it (delta_conv and delta, mamba_conv and mamba, or short_conv) on one device \
         in prefill and decode, with the state stored there"
    )]
    StateElsewhere { layer: usize },
    #[error(
        "layer {layer} attends to the caches of layer {source_layer}, but only one of the two \
         splits its attention between the devices; place both alike"
    )]
    SharedParts { layer: usize, source_layer: usize },
    #[error("sequences cannot be assigned to the device or the host: {problem}")]
    Owners { problem: &'static str },
    /// `reason` is a clause.
    #[error("new tokens cannot attend to selected positions here: {reason}; remove --kv-select")]
    Select { reason: &'static str },
    #[error("weight slots and KV slots must be at least 1")]
    NoSlots,
    #[error(
        "attention is split into {chunks} chunks, but a batch has only {units} units (sequences x \
         KV heads)"
    )]
    TooManyChunks { chunks: u16, units: usize },
    #[error("linears cannot be split by their output rows here: {problem}")]
    Pieces { problem: &'static str },
}
