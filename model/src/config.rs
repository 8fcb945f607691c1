//! What a model is, independent of its file format: sizes, family, positions, token ids.
//!
//! A [`ModelConfig`] is made by `config_json` (Hugging Face `config.json`), by `source::gguf`, or
//! by `known` (an architecture by name), and is never changed afterwards except by
//! [`ModelConfig::keep_layers`].

use serde::{Deserialize, Serialize};

pub use crate::rope::{Rope, RopeScaling};

/// Number format of weights, activations that cross a cut, and the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bf16 storage, f32 accumulation (the default).
    Bf16,
    /// f32 everywhere, for verification.
    F32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }

    /// The name used on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
        }
    }
}

/// Decoder families; each has a file of its own under `model/src/family/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Llama,
    Mistral,
    Opt,
    Qwen2,
}

/// The function between the two halves of the feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// OPT: `relu(x)`.
    Relu,
    /// OPT variants: the erf form of GELU.
    Gelu,
    /// LLaMA family: `silu(gate) * up`.
    Silu,
}

/// A decoder-only transformer, fully described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// For reports: directory name, repository id or known name.
    pub name: String,
    pub family: Family,
    pub num_layers: usize,
    pub hidden_size: usize,
    pub num_heads: usize,
    /// Divides `num_heads`; smaller than it under GQA, 1 under MQA.
    pub num_kv_heads: usize,
    /// Even. Not always `hidden_size / num_heads`.
    pub head_dim: usize,
    pub ffn_size: usize,
    pub vocab_size: usize,
    /// Positions that the model was made for: prompt + output never exceeds it.
    pub max_positions: usize,
    pub norm_eps: f32,
    pub activation: Activation,
    /// `None`: learned positions (OPT).
    pub rope: Option<Rope>,
    /// Rows of the learned position table that precede position 0 (OPT: 2).
    pub position_offset: usize,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Bias of the attention output projection.
    pub out_bias: bool,
    /// Biases of the feed-forward linears.
    pub ffn_bias: bool,
    /// The head multiplies by the embedding table.
    pub tied_embeddings: bool,
    /// Attention looks back only so many positions (Mistral); `None`: all of them.
    pub sliding_window: Option<usize>,
    pub bos_token_id: Option<u32>,
    /// Generation stops at any of them; may be empty.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Query heads that share one KV head.
    pub fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Width of q and of the attention output, in elements.
    pub fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of k and of v, in elements.
    pub fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Keeps the first `layers` layers, so that true layers of a large model run on a small
    /// machine.
    pub fn keep_layers(&mut self, layers: usize) {
        self.num_layers = self.num_layers.min(layers);
    }

    /// Bytes of K and V of one position in one layer.
    pub fn kv_bytes_per_position(&self, dtype: Dtype) -> usize {
        2 * self.kv_size() * dtype.size_bytes()
    }
}
