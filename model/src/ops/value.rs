//! What flows between operations.

use serde::{Deserialize, Serialize};

use crate::config::{Dtype, ModelConfig};
use crate::delta::DeltaNet;

/// What flows between operations. Every value has one type in memory ([`Value::element`]) and is
/// rounded to it whether or not it crosses a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Value {
    /// Residual stream `[rows, hidden]`, updated in place by what ends a half of a layer.
    Hidden,
    /// `[rows, hidden]`, input of q, k, v.
    Normed0,
    /// `[rows, heads * head_dim]`.
    Query,
    /// Fresh keys `[rows, kv_heads * head_dim]`.
    Key,
    /// Fresh values `[rows, kv_heads * head_dim]`.
    Value,
    /// `[unit, row, group, positions]`; a unit is a (sequence, KV head).
    Scores,
    /// Softmax of `Scores`, same layout.
    Probabilities,
    /// `[rows, heads * head_dim]`.
    Attended,
    /// `[rows, heads * head_dim]`, behind the gate of what attention computed (Qwen3-Next).
    GatedAttended,
    /// `[rows, channels]`: q, k and v before their convolution.
    DeltaQkv,
    /// `[rows, 2, value heads]`: b and a.
    DeltaBa,
    /// `[rows, channels]`: q, k and v behind their convolution.
    DeltaConvolved,
    /// `[rows, value heads * value_dim]`: what the states say, normed by heads.
    DeltaRead,
    /// The same behind the gate.
    GatedDelta,
    /// `[rows, hidden]`, what attention computed, before the norm behind it (Gemma).
    Projected0,
    /// `[rows, hidden]`, input of the feed-forward network.
    Normed1,
    /// `[rows, ffn]`, before the activation (LLaMA family).
    Gate,
    /// `[rows, ffn]`, input of `Down`/`Fc1`.
    Ffn,
    /// `[rows, ffn]`, input of `Down` where the network is a shared expert.
    SharedFfn,
    /// `[rows, hidden]`, what the feed-forward network computed, before the norm behind it.
    Projected1,
    /// `[rows, experts per row]` pairs of a u32 and an f32: an expert and its weight, ascending by
    /// expert.
    Routing,
    /// `[rows, experts per row, expert's ffn]`, before the activation.
    ExpertGate,
    /// `[rows, experts per row, expert's ffn]`, input of `ExpertDown`.
    ExpertFfn,
    /// `[sequences, hidden]`: the last row of each sequence, normed.
    LastNormed,
    /// `[sequences, vocab]`.
    Logits,
}

/// Element type of a value in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// The run's `--dtype`.
    Compute,
    F32,
}

impl Value {
    /// The one type this value has in memory.
    pub const fn element(self) -> Element {
        match self {
            Value::Hidden
            | Value::Scores
            | Value::Probabilities
            | Value::Routing
            | Value::Logits => Element::F32,
            _ => Element::Compute,
        }
    }

    /// Bytes of one element under `dtype`.
    pub const fn element_bytes(self, dtype: Dtype) -> usize {
        match self.element() {
            Element::Compute => dtype.size_bytes(),
            Element::F32 => 4,
        }
    }

    /// Elements of one row, for the values that are rows; `None` for `Scores` and `Probabilities`,
    /// whose size depends on the KV length.
    pub fn row_elements(self, config: &ModelConfig) -> Option<usize> {
        let per_token = config.experts.map_or(0, |experts| experts.per_token);
        let expert_ffn = config.experts.map_or(0, |experts| experts.ffn_size);
        let delta = |size: fn(&DeltaNet) -> usize| config.delta.as_ref().map_or(0, size);
        match self {
            Value::Hidden
            | Value::Normed0
            | Value::Projected0
            | Value::Projected1
            | Value::Normed1
            | Value::LastNormed => Some(config.hidden_size),
            Value::Query | Value::Attended | Value::GatedAttended => Some(config.q_size()),
            Value::DeltaQkv | Value::DeltaConvolved => Some(delta(DeltaNet::channels)),
            Value::DeltaBa => Some(delta(|delta| 2 * delta.value_heads)),
            Value::DeltaRead | Value::GatedDelta => Some(delta(DeltaNet::value_size)),
            Value::Key | Value::Value => Some(config.kv_size()),
            Value::Gate | Value::Ffn | Value::SharedFfn => Some(config.ffn_size),
            Value::Routing => Some(2 * per_token),
            Value::ExpertGate | Value::ExpertFfn => Some(per_token * expert_ffn),
            Value::Logits => Some(config.vocab_size),
            Value::Scores | Value::Probabilities => None,
        }
    }
}
