//! Decoder layers as lists of operations.

use super::op::Op;
use crate::config::{Dtype, ModelConfig};
use crate::indexer::{Indexer, PositionSelection};
use crate::latent::LatentAttention;
use crate::layers::{CacheSharing, ExpertRouting, FeedForward, LayerKind, TokenMixer};

/// Expands to the list of a layer: its first half, given by name, and the operations after it.
macro_rules! layer {
    (attention: $($op:ident),*) => {
        layer!(of: Norm0, Q, K, V, Scores, Softmax, Wv, Out $(, $op)*)
    };
    (gated_attention: $($op:ident),*) => {
        layer!(of: Norm0, Q, K, V, Scores, Softmax, Wv, OutGate, Out $(, $op)*)
    };
    (latent_attention: $($op:ident),*) => {
        layer!(of: Norm0, QDown, Q, QAbsorb, K, Scores, Softmax, Wv, VUp, Out $(, $op)*)
    };
    (indexed_attention: $($op:ident),*) => {
        layer!(of: Norm0, QDown, Q, QAbsorb, K, IndexQuery, IndexWeights, Select, Scores, Softmax,
            Wv, VUp, Out $(, $op)*)
    };
    (latent_attention_with_full_query: $($op:ident),*) => {
        layer!(of: Norm0, Q, QAbsorb, K, Scores, Softmax, Wv, VUp, Out $(, $op)*)
    };
    (attention_to_shared_caches: $($op:ident),*) => {
        layer!(of: Norm0, Q, Scores, Softmax, Wv, Out $(, $op)*)
    };
    (unified_attention: $($op:ident),*) => {
        layer!(of: StreamMap0, Norm0, QDown, Q, K, Scores, Softmax, Wv, Unrotate, OutDown, Out,
            StreamAdd0 $(, $op)*)
    };
    (compressed_attention: $($op:ident),*) => {
        layer!(of: StreamMap0, Norm0, QDown, Q, K, Compress, Scores, Softmax, Wv, Unrotate, OutDown,
            Out, StreamAdd0 $(, $op)*)
    };
    (sparse_attention: $($op:ident),*) => {
        layer!(of: StreamMap0, Norm0, QDown, Q, K, Compress, IndexQuery, IndexWeights, Select,
            Scores, Softmax, Wv, Unrotate, OutDown, Out, StreamAdd0 $(, $op)*)
    };
    (delta: $($op:ident),*) => {
        layer!(of: Norm0, DeltaQkv, DeltaBa, DeltaConv, Delta, DeltaGate, DeltaOut $(, $op)*)
    };
    (channel_delta: $($op:ident),*) => {
        layer!(of: Norm0, DeltaQkv, DeltaBa, DeltaDecayDown, DeltaDecay, DeltaConv, Delta,
            DeltaGateDown, DeltaGate, DeltaOut $(, $op)*)
    };
    (short_conv: $($op:ident),*) => {
        layer!(of: Norm0, ConvIn, ShortConv, ConvOut $(, $op)*)
    };
    (mamba: $($op:ident),*) => {
        layer!(of: Norm0, MambaIn, MambaConv, Mamba, MambaOut $(, $op)*)
    };
    (of: $($op:ident),*) => { &[$(Op::$op),*] };
}

/// Layer of OPT.
pub const PLAIN_LAYER: &[Op] = layer![attention: Norm1, Fc0, Fc1];
/// Layer of LLaMA and most other families.
pub const GATED_LAYER: &[Op] = layer![attention: Norm1, Gate, Up, Down];

/// First half of a layer.
#[derive(Clone, Copy)]
enum FirstHalf {
    Attention,
    /// Attention to the keys and values of an earlier layer.
    AttentionToSharedCaches,
    GatedAttention,
    LatentAttention,
    /// Latent attention to the positions that an indexer selects.
    IndexedAttention,
    /// Latent attention with queries that are computed from the layer's input.
    LatentAttentionWithFullQuery,
    /// Attention with one KV head that is key and value at once, in a residual of streams.
    UnifiedAttention,
    /// `UnifiedAttention` to a window and compressed entries.
    CompressedAttention,
    /// `UnifiedAttention` to a window and the compressed entries that an indexer selects.
    SparseAttention,
    Delta,
    /// A state with a decay per channel, which is computed by two linears, like its gate.
    ChannelDelta,
    ShortConv,
    Mamba,
}

/// Expands to a function that returns a layer with the given second half for each first half.
macro_rules! second_half {
    ($name:ident: $($op:ident),*) => {
        const fn $name(first: FirstHalf) -> &'static [Op] {
            match first {
                FirstHalf::Attention => layer![attention: $($op),*],
                FirstHalf::AttentionToSharedCaches => {
                    layer![attention_to_shared_caches: $($op),*]
                }
                FirstHalf::GatedAttention => layer![gated_attention: $($op),*],
                FirstHalf::LatentAttention => layer![latent_attention: $($op),*],
                FirstHalf::IndexedAttention => layer![indexed_attention: $($op),*],
                FirstHalf::LatentAttentionWithFullQuery => {
                    layer![latent_attention_with_full_query: $($op),*]
                }
                FirstHalf::UnifiedAttention => layer![unified_attention: $($op),*],
                FirstHalf::CompressedAttention => layer![compressed_attention: $($op),*],
                FirstHalf::SparseAttention => layer![sparse_attention: $($op),*],
                FirstHalf::Delta => layer![delta: $($op),*],
                FirstHalf::ChannelDelta => layer![channel_delta: $($op),*],
                FirstHalf::ShortConv => layer![short_conv: $($op),*],
                FirstHalf::Mamba => layer![mamba: $($op),*],
            }
        }
    };
}

second_half!(with_network: Norm1, Gate, Up, Down);
// Each half has a norm before and after it (Gemma).
second_half!(with_four_norms: PostNorm0, Norm1, Gate, Up, Down, PostNorm1);
second_half!(
    with_per_layer_inputs:
    PostNorm0, Norm1, Gate, Up, Down, PostNorm1, PerLayerGate, PerLayerOut, PerLayerNorm
);
second_half!(
    with_parallel_experts:
    PostNorm0, Norm1, Gate, Up, Down, RouterNorm, Router, ExpertNorm, ExpertGate, ExpertUp,
    ExpertDown, SumNorm, PostNorm1
);
second_half!(with_experts: Norm1, Router, ExpertGate, ExpertUp, ExpertDown);
// The shared expert computes every row.
second_half!(
    with_shared_expert: Norm1, Router, ExpertGate, ExpertUp, ExpertDown, Gate, Up, SharedGate, Down
);
second_half!(
    with_ungated_shared_expert: Norm1, Router, ExpertGate, ExpertUp, ExpertDown, Gate, Up, Down
);
// The residual has streams.
second_half!(
    with_streams: StreamMap1, Norm1, Router, ExpertGate, ExpertUp, ExpertDown, Gate, Up, Down,
    StreamAdd1
);
// Networks without gates, in layers without experts and as the shared expert of those with them.
second_half!(with_plain_network: Norm1, Fc0, Fc1);
second_half!(with_plain_shared_expert: Norm1, Router, ExpertUp, ExpertDown, Fc0, Fc1);
// The shared expert computes rows of the model's width.
second_half!(
    with_expert_latent: Norm1, Router, ExpertLatentDown, ExpertUp, ExpertDown, Fc0, Fc1,
    ExpertLatentUp
);
second_half!(without_second_half:);
// A layer without experts, in a model in which others have experts.
second_half!(with_dense_network: Norm1, DenseGate, DenseUp, DenseDown);

impl ModelConfig {
    /// Returns the operations of a decoder layer, in order.
    pub fn layer_ops(&self, layer: usize) -> &'static [Op] {
        self.kind_ops(self.layers.kind(layer))
    }

    /// Returns the operations of a layer that attends, whose names placements use: one with experts
    /// if the model has any. For a model without such a layer, returns the list that one would
    /// have.
    pub fn leading_ops(&self) -> &'static [Op] {
        let kinds = self.layers.kinds();
        let attends = |kind: &&LayerKind| !kind.has_state() && kind.caches != CacheSharing::Reader;
        let has_network = |kind: &&LayerKind| kind.feed_forward != FeedForward::None;
        let has_experts =
            |kind: &&LayerKind| has_network(kind) && kind.feed_forward != FeedForward::Dense;
        let leading = kinds.iter().filter(attends).find(has_experts);
        let leading = leading.or_else(|| kinds.iter().filter(attends).find(has_network));
        let leading = leading.or_else(|| kinds.iter().find(attends)).unwrap_or(&kinds[0]);
        let dense = self.experts.and_then(|experts| experts.dense);
        let feed_forward = match (leading.feed_forward, dense) {
            (FeedForward::Dense, Some(dense)) => dense.others,
            // Placements name the operations of second halves, which other layers of the family
            // have, also where all layers of a part of a model lack them.
            (FeedForward::None, _) => match kinds.iter().find(has_network) {
                Some(kind) => kind.feed_forward,
                None if self.experts.is_some() => FeedForward::UngatedSharedExpert,
                None => FeedForward::Dense,
            },
            (feed_forward, _) => feed_forward,
        };
        let mixing = TokenMixer::Attention;
        // Placements name the indexer of layers that have one, and the compression.
        let selects = |kind: &&LayerKind| kind.selection == PositionSelection::Own;
        let selecting = kinds.iter().find(selects);
        let compresses = |kind: &&LayerKind| kind.compression.is_some();
        let compressing = selecting.or_else(|| kinds.iter().find(compresses)).unwrap_or(leading);
        let (selection, compression) =
            (selecting.unwrap_or(leading).selection, compressing.compression);
        self.kind_ops(&LayerKind {
            mixing,
            feed_forward,
            selection,
            compression,
            ..leading.clone()
        })
    }

    /// Returns the first layer with the operations of [`ModelConfig::leading_ops`]; the first layer
    /// if there is none.
    pub fn leading_layer(&self) -> usize {
        let leading = self.leading_ops();
        (0..self.num_layers).find(|layer| self.layer_ops(*layer) == leading).unwrap_or(0)
    }

    /// Returns every operation that occurs in any layer, without duplicates, in the order of the
    /// layers.
    pub fn every_layer_op(&self) -> Vec<Op> {
        let mut every = Vec::new();
        for kind in self.layers.kinds() {
            let ops = self.kind_ops(kind);
            every.extend(ops.iter().filter(|op| !every.contains(*op)).collect::<Vec<_>>());
        }
        every
    }

    /// Returns true if any layer has this operation.
    pub fn has_layer_op(&self, op: Op) -> bool {
        self.layers.kinds().iter().any(|kind| self.kind_ops(kind).contains(&op))
    }

    /// Returns the index of an operation in its layer's list. The fused attention is at the index
    /// of softmax, whose weights it uses.
    pub fn index_in_layer(&self, layer: usize, op: Op) -> Option<usize> {
        self.layer_ops(layer).iter().position(|other| *other == op.weights_op())
    }

    /// Returns the operations of a kind of layer, in order.
    pub fn kind_ops(&self, kind: &LayerKind) -> &'static [Op] {
        let first = match kind.mixing {
            TokenMixer::Delta => match self.delta.and_then(|delta| delta.decay_rank()) {
                None => FirstHalf::Delta,
                Some(_) => FirstHalf::ChannelDelta,
            },
            TokenMixer::ShortConv { .. } => FirstHalf::ShortConv,
            TokenMixer::Mamba => FirstHalf::Mamba,
            TokenMixer::Attention => match self.latent {
                _ if kind.compression.is_some() => match kind.selection {
                    PositionSelection::Own => FirstHalf::SparseAttention,
                    PositionSelection::All | PositionSelection::Shared => {
                        FirstHalf::CompressedAttention
                    }
                },
                _ if kind.selection == PositionSelection::Own => FirstHalf::IndexedAttention,
                Some(LatentAttention { q_rank: Some(_), .. }) => FirstHalf::LatentAttention,
                Some(_) => FirstHalf::LatentAttentionWithFullQuery,
                None if self.features.unified_kv.is_some() => FirstHalf::UnifiedAttention,
                None if kind.caches == CacheSharing::Reader => FirstHalf::AttentionToSharedCaches,
                None if self.output_gate => FirstHalf::GatedAttention,
                None => FirstHalf::Attention,
            },
        };
        match kind.feed_forward {
            FeedForward::None => without_second_half(first),
            _ if self.features.streams.is_some() => with_streams(first),
            FeedForward::UngatedSharedExpert if !self.activation.is_gated() => {
                match self.has_expert_latent() {
                    true => with_expert_latent(first),
                    false => with_plain_shared_expert(first),
                }
            }
            FeedForward::Experts => with_experts(first),
            FeedForward::SharedExpert => with_shared_expert(first),
            FeedForward::UngatedSharedExpert => with_ungated_shared_expert(first),
            FeedForward::Dense if self.experts.is_some() => with_dense_network(first),
            FeedForward::ParallelExperts => with_parallel_experts(first),
            FeedForward::Dense if self.features.per_layer_inputs.is_some() => {
                with_per_layer_inputs(first)
            }
            FeedForward::Dense if self.post_norms => with_four_norms(first),
            FeedForward::Dense if self.activation.is_gated() => with_network(first),
            FeedForward::Dense => with_plain_network(first),
        }
    }

    /// Returns the number of bytes of a layer's weights.
    pub fn layer_weight_bytes(&self, layer: usize, dtype: Dtype) -> usize {
        let model = self.of_layer(layer);
        self.layer_ops(layer).iter().map(|op| op.weight_bytes(model, dtype)).sum()
    }

    /// Returns the indexer of a layer; `self` is the model of the layer's kind
    /// ([`ModelConfig::of_layer`]). `None` if the layer has none.
    pub fn own_indexer(&self) -> Option<&Indexer> {
        let has_own = self.layers.kinds()[0].selection == PositionSelection::Own;
        self.features.indexer.as_ref().filter(|_| has_own)
    }

    /// Returns true if a layer selects experts by token; `self` is the model of the layer's kind.
    pub fn routes_by_token(&self) -> bool {
        self.layers.kinds()[0].routing == ExpertRouting::ByToken
    }

    /// Returns true if a layer attends to selected positions; `self` is the model of the layer's
    /// kind.
    pub fn attends_to_selection(&self) -> bool {
        self.layers.kinds()[0].selection != PositionSelection::All
    }

    /// Returns the layer whose selection of positions a layer attends to.
    pub fn selection_layer(&self, layer: usize) -> usize {
        let selects = |layer: &usize| self.layers.kind(*layer).selection == PositionSelection::Own;
        (0..=layer).rev().find(selects).unwrap_or(layer)
    }
}
