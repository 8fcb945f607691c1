//! Decoder layers as lists of operations.

use super::op::Op;
use crate::config::{Dtype, ModelConfig};
use crate::layers::{FeedForward, LayerKind, TokenMixer};

/// Expands to the list of a layer: its first half, given by name, and the operations after it.
macro_rules! layer {
    (attention: $($op:ident),*) => {
        layer!(of: Norm0, Q, K, V, Scores, Softmax, Wv, Out, $($op),*)
    };
    (gated_attention: $($op:ident),*) => {
        layer!(of: Norm0, Q, K, V, Scores, Softmax, Wv, OutGate, Out, $($op),*)
    };
    (delta: $($op:ident),*) => {
        layer!(of: Norm0, DeltaQkv, DeltaBa, DeltaConv, Delta, DeltaGate, DeltaOut, $($op),*)
    };
    (of: $($op:ident),*) => { &[$(Op::$op),*] };
}

/// Layer of OPT.
pub const PLAIN_LAYER: &[Op] = layer![attention: Norm1, Fc0, Fc1];
/// Layer of LLaMA and most other families.
pub const GATED_LAYER: &[Op] = layer![attention: Norm1, Gate, Up, Down];
/// Layer of Gemma, in which each half has a norm before and after it.
const FOUR_NORM_LAYER: &[Op] = layer![attention: PostNorm0, Norm1, Gate, Up, Down, PostNorm1];
const EXPERT_LAYER: &[Op] = layer![attention: Norm1, Router, ExpertGate, ExpertUp, ExpertDown];
/// Layers of models in which some layers keep a state, with a dense network or with experts
/// including a shared one.
const GATED_ATTENTION_LAYER: &[Op] = layer![gated_attention: Norm1, Gate, Up, Down];
const DELTA_LAYER: &[Op] = layer![delta: Norm1, Gate, Up, Down];
macro_rules! shared_expert_layer {
    ($first:ident) => {
        layer![
            $first: Norm1, Router, ExpertGate, ExpertUp, ExpertDown, Gate, Up, SharedGate, Down
        ]
    };
}
const GATED_ATTENTION_SHARED_LAYER: &[Op] = shared_expert_layer!(gated_attention);
const DELTA_SHARED_LAYER: &[Op] = shared_expert_layer!(delta);

impl ModelConfig {
    /// Returns the operations of a decoder layer, in order.
    pub fn layer_ops(&self, layer: usize) -> &'static [Op] {
        self.ops_of(self.layers.kind(layer))
    }

    /// Returns the operations of a layer that attends, whose names placements use. For a model
    /// without such a layer, returns the list that one would have.
    pub fn leading_ops(&self) -> &'static [Op] {
        let kinds = self.layers.kinds();
        let leading = kinds.iter().find(|kind| !kind.has_state()).unwrap_or(&kinds[0]);
        self.ops_of(&LayerKind { mixing: TokenMixer::Attention, ..leading.clone() })
    }

    /// Returns every operation that occurs in any layer, without duplicates, in the order of the
    /// layers.
    pub fn every_layer_op(&self) -> Vec<Op> {
        let mut every = Vec::new();
        for kind in self.layers.kinds() {
            let ops = self.ops_of(kind);
            every.extend(ops.iter().filter(|op| !every.contains(*op)).collect::<Vec<_>>());
        }
        every
    }

    /// Returns true if any layer has this operation.
    pub fn has_layer_op(&self, op: Op) -> bool {
        self.layers.kinds().iter().any(|kind| self.ops_of(kind).contains(&op))
    }

    /// Returns the index of an operation in its layer's list. The fused attention is at the index
    /// of softmax, whose weights it uses.
    pub fn index_in_layer(&self, layer: usize, op: Op) -> Option<usize> {
        self.layer_ops(layer).iter().position(|other| *other == op.weights_op())
    }

    fn ops_of(&self, kind: &LayerKind) -> &'static [Op] {
        match (kind.mixing, kind.feed_forward) {
            (TokenMixer::Delta, FeedForward::Dense) => DELTA_LAYER,
            (TokenMixer::Delta, _) => DELTA_SHARED_LAYER,
            (TokenMixer::Attention, FeedForward::SharedExpert) => GATED_ATTENTION_SHARED_LAYER,
            (TokenMixer::Attention, FeedForward::Experts) => EXPERT_LAYER,
            (TokenMixer::Attention, FeedForward::Dense) if self.output_gate => {
                GATED_ATTENTION_LAYER
            }
            (TokenMixer::Attention, FeedForward::Dense) if self.post_norms => FOUR_NORM_LAYER,
            (TokenMixer::Attention, FeedForward::Dense) if self.activation.is_gated() => {
                GATED_LAYER
            }
            (TokenMixer::Attention, FeedForward::Dense) => PLAIN_LAYER,
        }
    }

    /// Returns the number of bytes of a layer's weights.
    pub fn layer_weight_bytes(&self, layer: usize, dtype: Dtype) -> usize {
        self.layer_ops(layer).iter().map(|op| op.weight_bytes(self, dtype)).sum()
    }
}
