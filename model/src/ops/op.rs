//! Operations: their names, and the values that they read and write.

use serde::{Deserialize, Serialize};

use super::value::Value;
use crate::config::{Family, ModelConfig};
use crate::layers::CacheSharing;

/// An operation of a decoder layer, or one of the four outside the layers. If a layer contains an
/// operation twice, the name includes the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Op {
    /// Token (and learned position) embedding: tokens to the residual stream.
    Embed,
    Norm0,
    /// First linear of q with latent attention, and the norm of its result.
    QDown,
    Q,
    /// Product of the part of each head of q that is not rotated and the head's matrix of keys,
    /// which makes it a query of latents.
    QAbsorb,
    K,
    V,
    Scores,
    Softmax,
    Wv,
    /// `Scores`, `Softmax` and `Wv` in a single pass, with bit-identical results.
    Attention,
    /// Product of attention's output and the sigmoid of a linear of the layer's input (Qwen3-Next),
    /// which may have one result for each head (Step 3.5).
    OutGate,
    /// Product of each head's weighted sum of latents and the head's matrix of values.
    VUp,
    Out,
    /// q, k and v of a layer with a state, as a single linear.
    DeltaQkv,
    /// Correction rate (b) of each value head's state and, unless it decays by channel, its decay
    /// (a).
    DeltaBa,
    /// Causal convolution per channel of `DeltaQkv`, followed by SiLU; stores its last inputs.
    DeltaConv,
    /// Recurrence of each value head, row by row, and the norm of its output; stores the states.
    Delta,
    /// Product of the recurrence's output and a gate: the SiLU of a linear of the layer's input or,
    /// with a decay per channel, the sigmoid of a linear of `DeltaGateDown`.
    DeltaGate,
    DeltaOut,
    /// B, C and x of a layer with a short convolution, as a single linear.
    ConvIn,
    /// Causal convolution per channel of the products of B and x, multiplied by C; stores its last
    /// inputs.
    ShortConv,
    ConvOut,
    /// z, x, B, C and dt of a layer with Mamba2, as a single linear.
    MambaIn,
    /// Causal convolution per channel of x, B and C, followed by SiLU; stores its last inputs.
    MambaConv,
    /// Recurrence of each head, row by row, multiplied by the SiLU of z, and the norm of each group
    /// of the result; stores the states.
    Mamba,
    MambaOut,
    /// Norm of attention's output before it is added to the residual stream (Gemma).
    PostNorm0,
    Norm1,
    /// Selection of each row's experts.
    Router,
    ExpertGate,
    ExpertUp,
    /// Third linear of the experts, including the weighted sum over a row's experts.
    ExpertDown,
    /// That sum alone, if the experts of a layer are computed in portions.
    ExpertCombine,
    Gate,
    Up,
    /// Product of a shared expert's activations and a gate: the sigmoid of one dot product per row
    /// of the network's input.
    SharedGate,
    Down,
    /// Gate of the network of a layer without experts, in a model in which others have experts.
    DenseGate,
    DenseUp,
    DenseDown,
    Fc0,
    Fc1,
    /// Norm of the feed-forward network's output before it is added to the residual stream (Gemma).
    PostNorm1,
    /// Norm of the last row of each sequence.
    FinalNorm,
    Head,
    /// Sampling of tokens from logits, which writes the step table.
    Sample,
    /// Norm of the input of a router that is next to a dense network (Gemma 4).
    RouterNorm,
    /// Norm of the input of experts that are next to a dense network.
    ExpertNorm,
    /// Sum of the norms of a dense network's output and of its experts'.
    SumNorm,
    /// Inputs of all layers from the embedding and a second table of tokens.
    PerLayerEmbed,
    /// Product of a layer's input and GELU of a linear of the residual stream.
    PerLayerGate,
    PerLayerOut,
    /// Norm of `PerLayerOut` before it is added to the residual stream.
    PerLayerNorm,
    /// Queries of an indexer's heads.
    IndexQuery,
    /// Weights of an indexer's heads.
    IndexWeights,
    /// Selection of the positions that a row attends to, by an indexer.
    Select,
    /// First linear of the decay of each channel of a state.
    DeltaDecayDown,
    DeltaDecay,
    /// First linear of the gate of a state that decays by channel.
    DeltaGateDown,
}

/// The values with the keys and values of the current rows that a layer attends to.
#[derive(Clone, Copy)]
enum FreshKv {
    OfLayer,
    /// Those of the last layer that computes some and shares them.
    Shared,
    /// Like `Shared`, for layers with a window.
    SharedInWindow,
}

impl FreshKv {
    /// Returns the values of the layers of a model of one kind; see `ModelConfig::of_layer`.
    fn new(config: &ModelConfig) -> FreshKv {
        match config.layers.kinds() {
            [kind] if kind.caches != CacheSharing::Own => match kind.window {
                Some(_) => FreshKv::SharedInWindow,
                None => FreshKv::Shared,
            },
            _ => FreshKv::OfLayer,
        }
    }

    /// Returns the values that a part of attention reads, or the fused form.
    const fn reads(self, op: Op) -> &'static [Value] {
        match (self, op) {
            (FreshKv::OfLayer, Op::Scores) => &[Value::Query, Value::Key],
            (FreshKv::Shared, Op::Scores) => &[Value::Query, Value::SharedKey],
            (FreshKv::SharedInWindow, Op::Scores) => &[Value::Query, Value::WindowKey],
            (FreshKv::OfLayer, Op::Wv) => &[Value::Probabilities, Value::Value],
            (FreshKv::Shared, Op::Wv) => &[Value::Probabilities, Value::SharedValue],
            (FreshKv::SharedInWindow, Op::Wv) => &[Value::Probabilities, Value::WindowValue],
            (FreshKv::OfLayer, _) => &[Value::Query, Value::Key, Value::Value],
            (FreshKv::Shared, _) => &[Value::Query, Value::SharedKey, Value::SharedValue],
            (FreshKv::SharedInWindow, _) => &[Value::Query, Value::WindowKey, Value::WindowValue],
        }
    }

    const fn values(self) -> [Value; 2] {
        match self {
            FreshKv::OfLayer => [Value::Key, Value::Value],
            FreshKv::Shared => [Value::SharedKey, Value::SharedValue],
            FreshKv::SharedInWindow => [Value::WindowKey, Value::WindowValue],
        }
    }
}

impl Kv {
    /// Returns the value with the rows that a layer appends to this cache.
    pub fn fresh(self, config: &ModelConfig) -> Value {
        let [key, value] = FreshKv::new(config).values();
        if self == Kv::K { key } else { value }
    }
}

/// One of a layer's two caches. In a layer with a state, `K` contains the inputs of its convolution
/// and `V` the states of its heads, if it has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kv {
    K,
    V,
}

impl Op {
    /// Returns the name on the command line, in traces and in reports: `ln0` for OPT, `norm0` for
    /// the others.
    pub fn name(self, family: Family) -> &'static str {
        let opt = family == Family::Opt;
        match self {
            Op::Embed => "embed",
            Op::Norm0 if opt => "ln0",
            Op::Norm0 => "norm0",
            Op::QDown => "q_down",
            Op::Q => "q",
            Op::QAbsorb => "q_absorb",
            Op::K => "k",
            Op::V => "v",
            Op::Scores => "scores",
            Op::Softmax => "softmax",
            Op::Wv => "wv",
            Op::Attention => "attention",
            Op::OutGate => "out_gate",
            Op::IndexQuery => "index_query",
            Op::IndexWeights => "index_weights",
            Op::Select => "select",
            Op::VUp => "v_up",
            Op::Out => "out",
            Op::DeltaQkv => "delta_qkv",
            Op::DeltaBa => "delta_ba",
            Op::DeltaDecayDown => "delta_decay_down",
            Op::DeltaDecay => "delta_decay",
            Op::DeltaConv => "delta_conv",
            Op::Delta => "delta",
            Op::DeltaGateDown => "delta_gate_down",
            Op::DeltaGate => "delta_gate",
            Op::DeltaOut => "delta_out",
            Op::ConvIn => "conv_in",
            Op::ShortConv => "short_conv",
            Op::ConvOut => "conv_out",
            Op::MambaIn => "mamba_in",
            Op::MambaConv => "mamba_conv",
            Op::Mamba => "mamba",
            Op::MambaOut => "mamba_out",
            Op::PostNorm0 => "post_norm0",
            Op::Norm1 if opt => "ln1",
            Op::Norm1 => "norm1",
            Op::Gate => "gate",
            Op::Up => "up",
            Op::SharedGate => "shared_gate",
            Op::Down => "down",
            Op::DenseGate => "dense_gate",
            Op::DenseUp => "dense_up",
            Op::DenseDown => "dense_down",
            Op::Fc0 => "fc0",
            Op::Fc1 => "fc1",
            Op::PostNorm1 => "post_norm1",
            Op::Router => "router",
            Op::ExpertGate => "expert_gate",
            Op::ExpertUp => "expert_up",
            Op::ExpertDown => "expert_down",
            Op::ExpertCombine => "expert_combine",
            Op::FinalNorm => "final_norm",
            Op::Head => "head",
            Op::Sample => "sample",
            Op::RouterNorm => "router_norm",
            Op::ExpertNorm => "expert_norm",
            Op::SumNorm => "sum_norm",
            Op::PerLayerEmbed => "per_layer_embed",
            Op::PerLayerGate => "per_layer_gate",
            Op::PerLayerOut => "per_layer_out",
            Op::PerLayerNorm => "per_layer_norm",
        }
    }

    /// Returns true for `Scores`, `Softmax`, `Wv` and their fused form, and for the selection of
    /// positions for them, which are split by units instead of rows.
    pub const fn is_attention(self) -> bool {
        matches!(self, Op::Select | Op::Scores | Op::Softmax | Op::Wv | Op::Attention)
    }

    /// Returns true if the operation reads its layer's state of a sequence and updates it in place.
    pub const fn updates_state(self) -> bool {
        matches!(self, Op::DeltaConv | Op::Delta | Op::ShortConv | Op::MambaConv | Op::Mamba)
    }

    /// Returns the operation whose name placements use for this operation: that of an attention
    /// layer for one of a layer with a state, that of experts for one of a layer without them. All
    /// other operations are returned unchanged.
    pub const fn counterpart(self, config: &ModelConfig) -> Op {
        match self {
            Op::DeltaQkv | Op::ConvIn | Op::MambaIn => Op::Q,
            Op::DeltaBa | Op::DeltaDecayDown | Op::DeltaDecay => Op::K,
            Op::DeltaConv | Op::ShortConv | Op::MambaConv => Op::Scores,
            Op::Delta | Op::Mamba => Op::Wv,
            Op::DeltaGateDown | Op::DeltaGate if config.output_gate => Op::OutGate,
            Op::DeltaGateDown | Op::DeltaGate => Op::Out,
            Op::DeltaOut | Op::ConvOut | Op::MambaOut => Op::Out,
            Op::DenseGate => Op::ExpertGate,
            Op::DenseUp => Op::ExpertUp,
            Op::DenseDown => Op::ExpertDown,
            other => other,
        }
    }

    /// Returns true for the linears of experts, which each row multiplies by the weights of its own
    /// experts.
    pub const fn is_expert(self) -> bool {
        matches!(self, Op::ExpertGate | Op::ExpertUp | Op::ExpertDown)
    }

    /// Returns the values that are read, in the order of the operands in a program's instruction.
    /// Caches, weights and the step table are not included: the compiler adds them.
    pub fn reads(self, config: &ModelConfig) -> &'static [Value] {
        match self {
            op if op.is_of_experts() && config.has_parallel_experts() => op.parallel_reads(),
            Op::Embed => &[],
            Op::Norm0 | Op::FinalNorm => &[Value::Hidden],
            Op::Q if config.latent.is_some_and(|latent| latent.q_rank.is_some()) => {
                &[Value::QueryLatent]
            }
            Op::QDown | Op::Q | Op::K | Op::V | Op::IndexWeights => &[Value::Normed0],
            Op::IndexQuery => &[Value::QueryLatent],
            Op::Select => &[Value::IndexQuery, Value::IndexWeights, Value::Key],
            Op::DeltaQkv | Op::DeltaBa | Op::ConvIn | Op::MambaIn => &[Value::Normed0],
            Op::QAbsorb => &[Value::HeadQuery],
            Op::Softmax => &[Value::Scores],
            Op::Scores | Op::Attention if config.attends_to_selection() => {
                &[Value::Query, Value::Key, Value::Selection]
            }
            Op::Wv if config.attends_to_selection() => {
                &[Value::Probabilities, Value::Key, Value::Selection]
            }
            Op::Wv if config.latent.is_some() => &[Value::Probabilities, Value::Key],
            Op::Attention if config.latent.is_some() => &[Value::Query, Value::Key],
            Op::Scores | Op::Wv | Op::Attention => FreshKv::new(config).reads(self),
            Op::OutGate => &[Value::Normed0, Value::Attended],
            Op::VUp => &[Value::Attended],
            Op::Out if config.latent.is_some() => &[Value::HeadValues, Value::Hidden],
            Op::Out if config.output_gate => &[Value::GatedAttended, Value::Hidden],
            Op::Out if config.post_norms => &[Value::Attended],
            Op::Out => &[Value::Attended, Value::Hidden],
            Op::DeltaDecayDown | Op::DeltaGateDown => &[Value::Normed0],
            Op::DeltaDecay => &[Value::DeltaDecayLatent],
            Op::DeltaConv => &[Value::DeltaQkv],
            Op::Delta if config.decays_by_channel() => {
                &[Value::DeltaConvolved, Value::DeltaBa, Value::DeltaDecay]
            }
            Op::Delta => &[Value::DeltaConvolved, Value::DeltaBa],
            Op::DeltaGate if config.decays_by_channel() => {
                &[Value::DeltaGateLatent, Value::DeltaRead]
            }
            Op::DeltaGate => &[Value::Normed0, Value::DeltaRead],
            Op::DeltaOut => &[Value::GatedDelta, Value::Hidden],
            Op::ShortConv => &[Value::ConvInput],
            Op::ConvOut => &[Value::Convolved, Value::Hidden],
            Op::MambaConv => &[Value::MambaInput],
            Op::Mamba => &[Value::MambaConvolved, Value::MambaInput],
            Op::MambaOut => &[Value::MambaRead, Value::Hidden],
            Op::PostNorm0 => &[Value::Projected0, Value::Hidden],
            Op::PostNorm1 => &[Value::Projected1, Value::Hidden],
            Op::Norm1 | Op::RouterNorm | Op::ExpertNorm | Op::PerLayerEmbed => &[Value::Hidden],
            Op::SumNorm => &[Value::Projected1, Value::ExpertSum],
            Op::PerLayerGate => &[Value::Hidden, Value::PerLayer],
            Op::PerLayerOut => &[Value::PerLayerGated],
            Op::PerLayerNorm => &[Value::Projected2, Value::Hidden],
            Op::Gate | Op::DenseGate | Op::Fc0 | Op::Router => &[Value::Normed1],
            Op::Up => &[Value::Normed1, Value::Gate],
            Op::DenseUp => &[Value::Normed1, Value::DenseGate],
            Op::SharedGate => &[Value::Normed1, Value::Ffn],
            Op::Down if config.has_shared_gate() => &[Value::SharedFfn, Value::Hidden],
            Op::DenseDown => &[Value::DenseFfn, Value::Hidden],
            Op::Down | Op::Fc1 if config.post_norms => &[Value::Ffn],
            Op::Down | Op::Fc1 => &[Value::Ffn, Value::Hidden],
            Op::ExpertGate => &[Value::Normed1, Value::Routing],
            Op::ExpertUp if !config.activation.is_gated() => &[Value::Normed1, Value::Routing],
            Op::ExpertUp => &[Value::Normed1, Value::Routing, Value::ExpertGate],
            Op::ExpertDown => &[Value::ExpertFfn, Value::Routing, Value::Hidden],
            Op::ExpertCombine => &[Value::ExpertOut, Value::Routing, Value::Hidden],
            Op::Head => &[Value::LastNormed],
            Op::Sample => &[Value::Logits],
        }
    }

    /// Returns true for operations of layers with experts that read other values where the experts
    /// are next to a dense network.
    const fn is_of_experts(self) -> bool {
        self.is_expert() || matches!(self, Op::Router | Op::ExpertCombine | Op::PostNorm1)
    }

    /// Returns the values that such an operation reads.
    const fn parallel_reads(self) -> &'static [Value] {
        match self {
            Op::Router => &[Value::RouterNormed],
            Op::ExpertGate => &[Value::ExpertNormed, Value::Routing],
            Op::ExpertUp => &[Value::ExpertNormed, Value::Routing, Value::ExpertGate],
            Op::ExpertDown => &[Value::ExpertFfn, Value::Routing],
            Op::ExpertCombine => &[Value::ExpertOut, Value::Routing],
            _ => &[Value::NormedSum, Value::Hidden],
        }
    }

    /// Returns the value that is written; `None` for `Sample`, which writes the step table.
    pub fn writes(self, config: &ModelConfig) -> Option<Value> {
        Some(match self {
            Op::Out if config.post_norms => Value::Projected0,
            Op::Down | Op::Fc1 if config.post_norms => Value::Projected1,
            Op::ExpertDown | Op::ExpertCombine if config.has_parallel_experts() => Value::ExpertSum,
            Op::RouterNorm => Value::RouterNormed,
            Op::ExpertNorm => Value::ExpertNormed,
            Op::SumNorm => Value::NormedSum,
            Op::PerLayerEmbed => Value::PerLayer,
            Op::PerLayerGate => Value::PerLayerGated,
            Op::PerLayerOut => Value::Projected2,
            Op::Embed
            | Op::Out
            | Op::DeltaOut
            | Op::ConvOut
            | Op::MambaOut
            | Op::PostNorm0
            | Op::Down
            | Op::DenseDown
            | Op::Fc1
            | Op::PostNorm1
            | Op::PerLayerNorm
            | Op::ExpertDown
            | Op::ExpertCombine => Value::Hidden,
            Op::Norm0 => Value::Normed0,
            Op::QDown => Value::QueryLatent,
            Op::Q if config.latent.is_some() => Value::HeadQuery,
            Op::Q | Op::QAbsorb => Value::Query,
            Op::K => FreshKv::new(config).values()[0],
            Op::V => FreshKv::new(config).values()[1],
            Op::Scores => Value::Scores,
            Op::Softmax => Value::Probabilities,
            Op::Wv | Op::Attention => Value::Attended,
            Op::OutGate => Value::GatedAttended,
            Op::IndexQuery => Value::IndexQuery,
            Op::IndexWeights => Value::IndexWeights,
            Op::Select => Value::Selection,
            Op::VUp => Value::HeadValues,
            Op::DeltaQkv => Value::DeltaQkv,
            Op::DeltaBa => Value::DeltaBa,
            Op::DeltaDecayDown => Value::DeltaDecayLatent,
            Op::DeltaDecay => Value::DeltaDecay,
            Op::DeltaGateDown => Value::DeltaGateLatent,
            Op::DeltaConv => Value::DeltaConvolved,
            Op::Delta => Value::DeltaRead,
            Op::DeltaGate => Value::GatedDelta,
            Op::ConvIn => Value::ConvInput,
            Op::ShortConv => Value::Convolved,
            Op::MambaIn => Value::MambaInput,
            Op::MambaConv => Value::MambaConvolved,
            Op::Mamba => Value::MambaRead,
            Op::Norm1 => Value::Normed1,
            Op::Gate => Value::Gate,
            Op::Up | Op::Fc0 => Value::Ffn,
            Op::DenseGate => Value::DenseGate,
            Op::DenseUp => Value::DenseFfn,
            Op::SharedGate => Value::SharedFfn,
            Op::Router => Value::Routing,
            Op::ExpertGate => Value::ExpertGate,
            Op::ExpertUp => Value::ExpertFfn,
            Op::FinalNorm => Value::LastNormed,
            Op::Head => Value::Logits,
            Op::Sample => return None,
        })
    }

    /// Returns true if the operation adds to the residual stream in place.
    pub fn adds_to_residual(self, config: &ModelConfig) -> bool {
        let reads_it = self.reads(config).contains(&Value::Hidden);
        reads_it && self.writes(config) == Some(Value::Hidden)
    }

    /// Returns the gate that the second linear of a gated network is multiplied by; `None` for
    /// other operations, and for experts.
    pub const fn gate_of_up(self) -> Option<Value> {
        match self {
            Op::Up => Some(Value::Gate),
            Op::DenseUp => Some(Value::DenseGate),
            _ => None,
        }
    }

    /// Returns the caches that are read: K for `Scores`, V for `Wv`, and both for the fused form.
    /// With latent attention, K is the only one. For operations that update a state, returns the
    /// cache that contains it.
    pub const fn caches(self, config: &ModelConfig) -> &'static [Kv] {
        match self {
            Op::Wv | Op::Attention if config.latent.is_some() => &[Kv::K],
            Op::Select => &[Kv::K],
            Op::Scores | Op::DeltaConv | Op::ShortConv | Op::MambaConv => &[Kv::K],
            Op::Wv | Op::Delta | Op::Mamba => &[Kv::V],
            Op::Attention => &[Kv::K, Kv::V],
            _ => &[],
        }
    }

    /// Returns the operation of a layer's list that has the weights of this one, or that contains
    /// it.
    pub const fn weights_op(self) -> Op {
        match self {
            Op::Attention => Op::Softmax,
            Op::ExpertCombine => Op::ExpertDown,
            other => other,
        }
    }
}
