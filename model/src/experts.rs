//! A mixture of experts: feed-forward networks of which a router picks a few for each row.

use serde::{Deserialize, Serialize};

/// The experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Experts {
    pub count: usize,
    /// Experts that compute a row.
    pub per_token: usize,
    /// Width of an expert's network.
    pub ffn_size: usize,
    pub scoring: Scoring,
    /// The router and the three linears of an expert have biases.
    pub bias: bool,
}

/// How a row's experts and their weights follow from the router's logits. Equal logits go to the
/// lower expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Softmax over all experts in f32, the largest of it, and these divided by their sum if
    /// `renormalise`.
    SoftmaxTopK { renormalise: bool },
    /// The largest logits, and softmax over these alone.
    TopKSoftmax,
}
