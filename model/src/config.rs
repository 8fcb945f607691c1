//! What a model is, independent of its file format: sizes, family, positions, token ids.
//!
//! A [`ModelConfig`] is made by `config_json` (Hugging Face `config.json`), by `source::gguf`, or
//! by `known` (an architecture by name), and is never changed afterwards except by
//! [`ModelConfig::keep_layers`].

use serde::{Deserialize, Serialize};

use crate::delta::DeltaNet;
use crate::experts::Experts;
use crate::layers::{FeedForward, Layers};
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
    Gemma3,
    GptOss,
    Granite,
    GraniteMoe,
    Llama,
    Mistral,
    Mixtral,
    Olmoe,
    Opt,
    Phi3,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    SmolLm3,
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
    /// Gemma: `gelu(gate) * up` with the tanh form of GELU.
    GeluTanh,
    /// gpt-oss: `(up + 1) * gate * sigmoid(1.702 * gate)`, the gate at most 7, up within -7 and 7.
    ClampedSwiGlu,
}

impl Activation {
    /// Whether it multiplies two linears of the network (`Gate` and `Up`).
    pub const fn is_gated(self) -> bool {
        !matches!(self, Activation::Relu | Activation::Gelu)
    }
}

/// Over what the norm of q and k goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head by itself, all with the same gain `[head_dim]`.
    PerHead,
    /// All heads together, gain `[heads * head_dim]`.
    FullWidth,
}

/// Factors by which a model scales what others take as it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scales {
    /// Of the embedding.
    pub embedding: f32,
    /// Of scores of attention; `None`: `1 / sqrt(head_dim)`.
    pub attention: Option<f32>,
    /// Of what each half of a layer adds to the residual stream.
    pub residual: f32,
    /// Of logits.
    pub logits: f32,
}

impl Default for Scales {
    fn default() -> Scales {
        Scales { embedding: 1.0, attention: None, residual: 1.0, logits: 1.0 }
    }
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
    /// A table of positions is added to the embedding; so many of its rows precede position 0 (OPT:
    /// 2).
    pub learned_positions: Option<usize>,
    pub layers: Layers,
    /// Of the layers that have them.
    pub experts: Option<Experts>,
    /// Of the layers with a state.
    pub delta: Option<DeltaNet>,
    /// What attention computed is multiplied by the sigmoid of a linear of its input.
    pub output_gate: bool,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Bias of the attention output projection.
    pub out_bias: bool,
    /// Biases of the feed-forward linears.
    pub ffn_bias: bool,
    /// The head multiplies by the embedding table.
    pub tied_embeddings: bool,
    /// q and k are normed before they are rotated.
    pub qk_norm: Option<QkNorm>,
    /// Each half of a layer has a norm behind it too (Gemma).
    pub post_norms: bool,
    /// Softmax of attention counts a logit of each head that attends to nothing (gpt-oss).
    pub sinks: bool,
    pub scales: Scales,
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

    /// Rows of the table of learned positions, 0 where there is none.
    pub fn learned_position_rows(&self) -> usize {
        self.learned_positions.map_or(0, |offset| self.max_positions + offset)
    }

    /// Whether layers with experts have one that every row passes.
    pub fn has_shared_expert(&self) -> bool {
        let kinds = self.layers.kinds().iter();
        kinds.into_iter().any(|kind| kind.feed_forward == FeedForward::SharedExpert)
    }

    /// Factor of every score of attention.
    pub fn attention_scale(&self) -> f32 {
        self.scales.attention.unwrap_or_else(|| 1.0 / (self.head_dim as f32).sqrt())
    }

    /// Keeps the first `layers` layers, so that true layers of a large model run on a small
    /// machine.
    pub fn keep_layers(&mut self, layers: usize) {
        self.num_layers = self.num_layers.min(layers);
        self.layers.keep(self.num_layers);
    }

    /// Bytes of K and V of one position in one layer.
    pub fn kv_bytes_per_position(&self, dtype: Dtype) -> usize {
        2 * self.kv_size() * dtype.size_bytes()
    }
}
