//! Operations: their names, what each reads and what it writes.

use serde::{Deserialize, Serialize};

use super::value::Value;
use crate::config::{Family, ModelConfig};

/// An operation of a decoder layer, or one of the four around the layers. Where a layer has an
/// operation twice, its instance is part of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Op {
    /// Token (and learned position) embedding: tokens to the residual stream.
    Embed,
    Norm0,
    Q,
    K,
    V,
    Scores,
    Softmax,
    Wv,
    /// `Scores`, `Softmax` and `Wv` in one pass; bit-equal to the three.
    Attention,
    /// What attention computed times the sigmoid of a linear of the layer's input (Qwen3-Next).
    OutGate,
    Out,
    /// Q, k and v of a layer with a state, as one linear.
    DeltaQkv,
    /// How far each value head corrects its state (b), and how much of it it forgets (a).
    DeltaBa,
    /// The causal convolution of each channel of `DeltaQkv`, with SiLU; keeps the last inputs.
    DeltaConv,
    /// The recurrence of each value head, row by row, and the norm of what it reads; keeps the
    /// states.
    Delta,
    /// What the heads read times the SiLU of a linear of the layer's input.
    DeltaGate,
    DeltaOut,
    /// Norm of what attention computed, before it is added to the residual stream (Gemma).
    PostNorm0,
    Norm1,
    /// Picks each row's experts.
    Router,
    ExpertGate,
    ExpertUp,
    /// Also adds a row's experts up, each with its weight.
    ExpertDown,
    Gate,
    Up,
    /// A shared expert's rows times the sigmoid of one product of each row of its input.
    SharedGate,
    Down,
    Fc0,
    Fc1,
    /// Norm of what the feed-forward network computed, before it is added (Gemma).
    PostNorm1,
    /// Norm of the last row of each sequence.
    FinalNorm,
    Head,
    /// Logits to tokens; writes the step table.
    Sample,
}

/// Which of a layer's two caches. Of a layer with a state `K` is what its convolution keeps, and
/// `V` are the states of its heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kv {
    K,
    V,
}

impl Op {
    /// Name on the command line, in traces and in reports: `ln0` for OPT, `norm0` for the others.
    pub fn name(self, family: Family) -> &'static str {
        let opt = family == Family::Opt;
        match self {
            Op::Embed => "embed",
            Op::Norm0 if opt => "ln0",
            Op::Norm0 => "norm0",
            Op::Q => "q",
            Op::K => "k",
            Op::V => "v",
            Op::Scores => "scores",
            Op::Softmax => "softmax",
            Op::Wv => "wv",
            Op::Attention => "attention",
            Op::OutGate => "out_gate",
            Op::Out => "out",
            Op::DeltaQkv => "delta_qkv",
            Op::DeltaBa => "delta_ba",
            Op::DeltaConv => "delta_conv",
            Op::Delta => "delta",
            Op::DeltaGate => "delta_gate",
            Op::DeltaOut => "delta_out",
            Op::PostNorm0 => "post_norm0",
            Op::Norm1 if opt => "ln1",
            Op::Norm1 => "norm1",
            Op::Gate => "gate",
            Op::Up => "up",
            Op::SharedGate => "shared_gate",
            Op::Down => "down",
            Op::Fc0 => "fc0",
            Op::Fc1 => "fc1",
            Op::PostNorm1 => "post_norm1",
            Op::Router => "router",
            Op::ExpertGate => "expert_gate",
            Op::ExpertUp => "expert_up",
            Op::ExpertDown => "expert_down",
            Op::FinalNorm => "final_norm",
            Op::Head => "head",
            Op::Sample => "sample",
        }
    }

    /// `Scores`, `Softmax`, `Wv` or the fused form: split by units, not by rows.
    pub const fn is_attention(self) -> bool {
        matches!(self, Op::Scores | Op::Softmax | Op::Wv | Op::Attention)
    }

    /// Reads what its layer keeps of a sequence and brings it up to date, in place.
    pub const fn updates_state(self) -> bool {
        matches!(self, Op::DeltaConv | Op::Delta)
    }

    /// The operation of a layer that attends by which placements name this one, of a layer with a
    /// state; others stand for themselves.
    pub const fn counterpart(self) -> Op {
        match self {
            Op::DeltaQkv => Op::Q,
            Op::DeltaBa => Op::K,
            Op::DeltaConv => Op::Scores,
            Op::Delta => Op::Wv,
            Op::DeltaGate => Op::OutGate,
            Op::DeltaOut => Op::Out,
            other => other,
        }
    }

    /// A linear of which each row has those of its experts.
    pub const fn is_expert(self) -> bool {
        matches!(self, Op::ExpertGate | Op::ExpertUp | Op::ExpertDown)
    }

    /// Values read, in the order in which a program's instruction lists them.
    /// Caches, weights and the step table are listed by the compiler, not here.
    pub fn reads(self, config: &ModelConfig) -> &'static [Value] {
        match self {
            Op::Embed => &[],
            Op::Norm0 => &[Value::Hidden],
            Op::Q | Op::K | Op::V | Op::DeltaQkv | Op::DeltaBa => &[Value::Normed0],
            Op::Scores => &[Value::Query, Value::Key],
            Op::Softmax => &[Value::Scores],
            Op::Wv => &[Value::Probabilities, Value::Value],
            Op::Attention => &[Value::Query, Value::Key, Value::Value],
            Op::OutGate => &[Value::Normed0, Value::Attended],
            Op::Out if config.output_gate => &[Value::GatedAttended, Value::Hidden],
            Op::Out if config.post_norms => &[Value::Attended],
            Op::Out => &[Value::Attended, Value::Hidden],
            Op::DeltaConv => &[Value::DeltaQkv],
            Op::Delta => &[Value::DeltaConvolved, Value::DeltaBa],
            Op::DeltaGate => &[Value::Normed0, Value::DeltaRead],
            Op::DeltaOut => &[Value::GatedDelta, Value::Hidden],
            Op::PostNorm0 => &[Value::Projected0, Value::Hidden],
            Op::PostNorm1 => &[Value::Projected1, Value::Hidden],
            Op::Norm1 => &[Value::Hidden],
            Op::Gate | Op::Fc0 | Op::Router => &[Value::Normed1],
            Op::Up => &[Value::Normed1, Value::Gate],
            Op::SharedGate => &[Value::Normed1, Value::Ffn],
            Op::Down if config.has_shared_expert() => &[Value::SharedFfn, Value::Hidden],
            Op::Down | Op::Fc1 if config.post_norms => &[Value::Ffn],
            Op::Down | Op::Fc1 => &[Value::Ffn, Value::Hidden],
            Op::ExpertGate => &[Value::Normed1, Value::Routing],
            Op::ExpertUp => &[Value::Normed1, Value::Routing, Value::ExpertGate],
            Op::ExpertDown => &[Value::ExpertFfn, Value::Routing, Value::Hidden],
            Op::FinalNorm => &[Value::Hidden],
            Op::Head => &[Value::LastNormed],
            Op::Sample => &[Value::Logits],
        }
    }

    /// The value written; `None` for `Sample`, which writes the step table.
    pub fn writes(self, config: &ModelConfig) -> Option<Value> {
        Some(match self {
            Op::Out if config.post_norms => Value::Projected0,
            Op::Down | Op::Fc1 if config.post_norms => Value::Projected1,
            Op::Embed
            | Op::Out
            | Op::DeltaOut
            | Op::PostNorm0
            | Op::Down
            | Op::Fc1
            | Op::PostNorm1
            | Op::ExpertDown => Value::Hidden,
            Op::Norm0 => Value::Normed0,
            Op::Q => Value::Query,
            Op::K => Value::Key,
            Op::V => Value::Value,
            Op::Scores => Value::Scores,
            Op::Softmax => Value::Probabilities,
            Op::Wv | Op::Attention => Value::Attended,
            Op::OutGate => Value::GatedAttended,
            Op::DeltaQkv => Value::DeltaQkv,
            Op::DeltaBa => Value::DeltaBa,
            Op::DeltaConv => Value::DeltaConvolved,
            Op::Delta => Value::DeltaRead,
            Op::DeltaGate => Value::GatedDelta,
            Op::Norm1 => Value::Normed1,
            Op::Gate => Value::Gate,
            Op::Up | Op::Fc0 => Value::Ffn,
            Op::SharedGate => Value::SharedFfn,
            Op::Router => Value::Routing,
            Op::ExpertGate => Value::ExpertGate,
            Op::ExpertUp => Value::ExpertFfn,
            Op::FinalNorm => Value::LastNormed,
            Op::Head => Value::Logits,
            Op::Sample => return None,
        })
    }

    /// Whether it adds to the residual stream, in place.
    pub fn adds_to_residual(self, config: &ModelConfig) -> bool {
        let reads_it = self.reads(config).contains(&Value::Hidden);
        reads_it && self.writes(config) == Some(Value::Hidden)
    }

    /// Caches read: `Scores` reads K, `Wv` reads V, the fused form both. Those that update a
    /// state have it here.
    pub const fn caches(self) -> &'static [Kv] {
        match self {
            Op::Scores | Op::DeltaConv => &[Kv::K],
            Op::Wv | Op::Delta => &[Kv::V],
            Op::Attention => &[Kv::K, Kv::V],
            _ => &[],
        }
    }

    /// The operation of a layer's list that has this one's weights.
    pub const fn weights_op(self) -> Op {
        match self {
            Op::Attention => Op::Softmax,
            other => other,
        }
    }
}
