//! A decoder layer as a list of operations.

use super::op::Op;
use crate::config::{Dtype, ModelConfig};
use crate::layers::FeedForward;

/// The list of a layer whose attention is everybody's, with what follows it.
macro_rules! layer {
    ($($op:ident),*) => {
        &[
            Op::Norm0,
            Op::Q,
            Op::K,
            Op::V,
            Op::Scores,
            Op::Softmax,
            Op::Wv,
            Op::Out,
            $(Op::$op),*
        ]
    };
}

/// OPT's.
pub const PLAIN_LAYER: &[Op] = layer![Norm1, Fc0, Fc1];
/// LLaMA's, and that of most others.
pub const GATED_LAYER: &[Op] = layer![Norm1, Gate, Up, Down];
/// Gemma's: each half has a norm before it and one behind it.
const FOUR_NORM_LAYER: &[Op] = layer![PostNorm0, Norm1, Gate, Up, Down, PostNorm1];
const EXPERT_LAYER: &[Op] = layer![Norm1, Router, ExpertGate, ExpertUp, ExpertDown];

impl ModelConfig {
    /// The operations of a decoder layer, in order.
    pub fn layer_ops(&self, layer: usize) -> &'static [Op] {
        self.ops_of(self.layers.of(layer).feed_forward)
    }

    /// Every operation that any layer has, once; the order is that of the layers.
    pub fn every_layer_op(&self) -> Vec<Op> {
        let mut every = Vec::new();
        for kind in self.layers.kinds() {
            let ops = self.ops_of(kind.feed_forward);
            every.extend(ops.iter().filter(|op| !every.contains(*op)).collect::<Vec<_>>());
        }
        every
    }

    /// Whether any layer has this operation.
    pub fn has_layer_op(&self, op: Op) -> bool {
        self.layers.kinds().iter().any(|kind| self.ops_of(kind.feed_forward).contains(&op))
    }

    /// The place of an operation in its layer's list, also of the fused form of attention, whose
    /// weights are those of its softmax.
    pub fn place_in_layer(&self, layer: usize, op: Op) -> Option<usize> {
        self.layer_ops(layer).iter().position(|other| *other == op.weights_op())
    }

    fn ops_of(&self, feed_forward: FeedForward) -> &'static [Op] {
        match feed_forward {
            FeedForward::Experts => EXPERT_LAYER,
            FeedForward::Dense if self.post_norms => FOUR_NORM_LAYER,
            FeedForward::Dense if self.activation.is_gated() => GATED_LAYER,
            FeedForward::Dense => PLAIN_LAYER,
        }
    }

    /// Bytes of a layer's weights.
    pub fn layer_weight_bytes(&self, layer: usize, dtype: Dtype) -> usize {
        self.layer_ops(layer).iter().map(|op| op.weight_bytes(self, dtype)).sum()
    }
}
