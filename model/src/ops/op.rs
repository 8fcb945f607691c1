//! Operations: their names, and the values that they read and write.

use serde::{Deserialize, Serialize};

use crate::config::{Family, ModelConfig};

/// An operation of a decoder layer, or one of those outside the layers. If a layer contains an
/// operation twice, the name includes the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Op {
    /// Token (and learned position) embedding: tokens to the residual stream.
    Embed,
    Norm0,
    /// First linear of q if queries are computed from a latent, and the norm of its result.
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
    /// Mappings of the residual's streams for the first half of a layer (DeepSeek V4).
    StreamMap0,
    /// Rotation of attention's output back by the position of its row, where values are rotated.
    Unrotate,
    /// Linear of each group of heads of attention's output.
    OutDown,
    /// Mixture of the residual's streams, and addition of the first half's output to each.
    StreamAdd0,
    StreamMap1,
    StreamAdd1,
    /// Compression of groups of positions to entries of a second cache.
    Compress,
    /// Linear of the input of experts that compute rows of another width (Nemotron 3 Super).
    ExpertLatentDown,
    /// Linear of the sum of these experts' outputs.
    ExpertLatentUp,
    /// Linear of the norms of the embedding and of another model's hidden state, which replaces the
    /// embedding (multi-token prediction).
    JoinHidden,
}

/// One of a layer's two caches. In a layer with a state, `K` contains the inputs of its convolution
/// and `V` the states of its heads, if it has any; in one that compresses positions, `K` those of
/// its window and `V` the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kv {
    K,
    V,
}

impl Op {
    /// Returns the name on the command line, in traces and in reports: `ln0` for OPT, `norm0` for
    /// the others.
    pub fn name(self, family: Family) -> &'static str {
        match self {
            Op::Norm0 if family == Family::Opt => "ln0",
            Op::Norm1 if family == Family::Opt => "ln1",
            op => op.usual_name(),
        }
    }

    const fn usual_name(self) -> &'static str {
        match self {
            Op::Embed => "embed",
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
            Op::PerLayerEmbed | Op::PerLayerGate | Op::PerLayerOut => self.feature_name(),
            Op::PerLayerNorm | Op::StreamMap0 | Op::StreamAdd0 => self.feature_name(),
            Op::StreamMap1 | Op::StreamAdd1 => self.feature_name(),
            Op::Unrotate => "unrotate",
            Op::OutDown => "out_down",
            Op::Compress => "compress",
            Op::ExpertLatentDown => "expert_latent_down",
            Op::ExpertLatentUp => "expert_latent_up",
            Op::JoinHidden => "join_hidden",
        }
    }

    /// Returns the name of an operation with inputs per layer, or that maps or mixes streams.
    const fn feature_name(self) -> &'static str {
        match self {
            Op::PerLayerEmbed => "per_layer_embed",
            Op::PerLayerGate => "per_layer_gate",
            Op::PerLayerOut => "per_layer_out",
            Op::PerLayerNorm => "per_layer_norm",
            Op::StreamMap0 => "stream_map0",
            Op::StreamAdd0 => "stream_add0",
            Op::StreamMap1 => "stream_map1",
            _ => "stream_add1",
        }
    }

    /// Returns true for `Scores`, `Softmax`, `Wv` and their fused form, and for what prepares them
    /// from the caches, all of which are split by units instead of rows.
    pub const fn is_attention(self) -> bool {
        self.prepares_attention()
            || matches!(self, Op::Scores | Op::Softmax | Op::Wv | Op::Attention)
    }

    /// Returns true for the operations that read caches before attention does: the compression of
    /// positions, and the selection of those to attend to.
    pub const fn prepares_attention(self) -> bool {
        matches!(self, Op::Compress | Op::Select)
    }

    /// Returns true for the operations before the first layer.
    pub const fn precedes_layers(self) -> bool {
        matches!(self, Op::Embed | Op::PerLayerEmbed | Op::JoinHidden)
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
}
