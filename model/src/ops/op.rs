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
    Out,
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

/// Which of the two caches.
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
            Op::Out => "out",
            Op::PostNorm0 => "post_norm0",
            Op::Norm1 if opt => "ln1",
            Op::Norm1 => "norm1",
            Op::Gate => "gate",
            Op::Up => "up",
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

    /// A linear of which each row has those of its experts.
    pub const fn is_expert(self) -> bool {
        matches!(self, Op::ExpertGate | Op::ExpertUp | Op::ExpertDown)
    }

    /// Values read, in the order in which a program's instruction lists them.
    /// Caches, weights and the step table are listed by the compiler, not here.
    pub const fn reads(self, config: &ModelConfig) -> &'static [Value] {
        match self {
            Op::Embed => &[],
            Op::Norm0 => &[Value::Hidden],
            Op::Q | Op::K | Op::V => &[Value::Normed0],
            Op::Scores => &[Value::Query, Value::Key],
            Op::Softmax => &[Value::Scores],
            Op::Wv => &[Value::Probabilities, Value::Value],
            Op::Attention => &[Value::Query, Value::Key, Value::Value],
            Op::Out if config.post_norms => &[Value::Attended],
            Op::Out => &[Value::Attended, Value::Hidden],
            Op::PostNorm0 => &[Value::Projected0, Value::Hidden],
            Op::PostNorm1 => &[Value::Projected1, Value::Hidden],
            Op::Norm1 => &[Value::Hidden],
            Op::Gate | Op::Fc0 | Op::Router => &[Value::Normed1],
            Op::Up => &[Value::Normed1, Value::Gate],
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
    pub const fn writes(self, config: &ModelConfig) -> Option<Value> {
        Some(match self {
            Op::Out if config.post_norms => Value::Projected0,
            Op::Down | Op::Fc1 if config.post_norms => Value::Projected1,
            Op::Embed
            | Op::Out
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
            Op::Norm1 => Value::Normed1,
            Op::Gate => Value::Gate,
            Op::Up | Op::Fc0 => Value::Ffn,
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

    /// Caches read: `Scores` reads K, `Wv` reads V, the fused form both.
    pub const fn caches(self) -> &'static [Kv] {
        match self {
            Op::Scores => &[Kv::K],
            Op::Wv => &[Kv::V],
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
