//! Values that operations read and write.

use serde::{Deserialize, Serialize};

use super::op::Kv;
use crate::config::{Dtype, ModelConfig};
use crate::delta::DeltaNet;
use crate::indexer::Indexer;
use crate::latent::LatentAttention;
use crate::mamba::Mamba;

/// A value that is written by one operation and read by others. Every value has a single type in
/// memory ([`Value::element`]) and is rounded to it whether or not it crosses a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Value {
    /// Residual stream `[rows, hidden]`, or streams `[rows, streams, hidden]`, updated in place by
    /// the last operation of each half of a layer.
    Hidden,
    /// Input of q, k and v: `[rows, hidden]`.
    Normed0,
    /// Input of q if queries are computed from a latent: `[rows, q_rank]`.
    QueryLatent,
    /// Queries before they are multiplied into latents: `[rows, heads * (rope_dim + nope_dim)]`.
    HeadQuery,
    /// Queries `[rows, heads * head_dim]`.
    Query,
    /// Keys of the current rows: `[rows, kv_heads * head_dim]`.
    Key,
    /// Values of the current rows: `[rows, kv_heads * head_dim]`.
    Value,
    /// Attention scores `[unit, row, group, positions]`; a unit is a (sequence, KV head).
    Scores,
    /// Softmax of `Scores`, with the same layout.
    Probabilities,
    /// Output of attention: `[rows, heads * head_dim]`.
    Attended,
    /// Values of the heads that latent attention yields: `[rows, heads * value_dim]`.
    HeadValues,
    /// Output of attention after its gate (Qwen3-Next): `[rows, heads * head_dim]`.
    GatedAttended,
    /// q, k and v before their convolution: `[rows, channels]`.
    DeltaQkv,
    /// b and a of each value head: `[rows, 2, value heads]`; with a decay per channel b alone:
    /// `[rows, value heads]`.
    DeltaBa,
    /// q, k and v after their convolution: `[rows, channels]`.
    DeltaConvolved,
    /// Output of the recurrence, normalised per head: `[rows, value heads * value_dim]`.
    DeltaRead,
    /// Output of the recurrence after its gate, with the layout of `DeltaRead`.
    GatedDelta,
    /// B, C and x of a short convolution: `[rows, 3, hidden]`.
    ConvInput,
    /// Output of a short convolution after its gate: `[rows, hidden]`.
    Convolved,
    /// z, x, B, C and dt of Mamba2: `[rows, input_size]`.
    MambaInput,
    /// x, B and C after their convolution: `[rows, channels]`.
    MambaConvolved,
    /// Output of the recurrence after its gate, normalised per group: `[rows, heads * head_dim]`.
    MambaRead,
    /// Output of attention's last linear, before the norm that follows it (Gemma): `[rows,
    /// hidden]`.
    Projected0,
    /// Input of the feed-forward network: `[rows, hidden]`.
    Normed1,
    /// Gate before the activation (LLaMA family): `[rows, ffn]`.
    Gate,
    /// Input of `Down`/`Fc1`: `[rows, ffn]`.
    Ffn,
    /// Input of `Down` if the network is a shared expert: `[rows, ffn]`.
    SharedFfn,
    /// Gate before the activation in a layer without experts, if other layers have experts: `[rows,
    /// dense ffn]`.
    DenseGate,
    /// Input of `DenseDown`: `[rows, dense ffn]`.
    DenseFfn,
    /// Output of the feed-forward network, before the norm that follows it: `[rows, hidden]`.
    Projected1,
    /// Experts of each row and their weights: `[rows, experts per row]` pairs of a u32 and an f32,
    /// in ascending order of experts.
    Routing,
    /// Experts' gate before the activation: `[rows, experts per row, expert's ffn]`.
    ExpertGate,
    /// Input of `ExpertDown`: `[rows, experts per row, expert's ffn]`.
    ExpertFfn,
    /// Output of each of a row's experts, before their sum: `[rows, experts per row, hidden]`, or
    /// with rows of their latent.
    ExpertOut,
    /// Last row of each sequence, normalised: `[sequences, hidden]`.
    LastNormed,
    /// Logits `[sequences, vocab]`.
    Logits,
    /// Keys of the current rows that later layers attend to as well: `[rows, kv_heads * head_dim]`.
    SharedKey,
    /// Values of the current rows, with the layout of `SharedKey`.
    SharedValue,
    /// Keys like `SharedKey`, of layers with a window.
    WindowKey,
    WindowValue,
    /// Input of a router next to a dense network: `[rows, hidden]`.
    RouterNormed,
    /// Input of experts next to a dense network: `[rows, hidden]`.
    ExpertNormed,
    /// Output of experts apart from the residual stream: `[rows, hidden]`, or `[rows, latent]` of
    /// experts that compute rows of this width.
    ExpertSum,
    /// Sum of the outputs of a dense network and of experts after their norms: `[rows, hidden]`.
    NormedSum,
    /// Inputs of the layers in addition to the residual stream: `[rows, layers, size]`.
    PerLayer,
    /// A layer's part of `PerLayer` after its gate: `[rows, size]`.
    PerLayerGated,
    /// Output of `PerLayerOut`: `[rows, hidden]`.
    Projected2,
    /// Queries of an indexer: `[rows, indexer's heads * indexer's head_dim]`.
    IndexQuery,
    /// Weights of an indexer's heads: `[rows, indexer's heads]`.
    IndexWeights,
    /// Positions that rows attend to, ascending: `[rows, top_k]` u32, of which a row has as many as
    /// there are positions up to its own, at most `top_k`.
    Selection,
    /// Input of the second linear of the decay of channels: `[rows, rank]`.
    DeltaDecayLatent,
    /// a of each channel: `[rows, value heads, key_dim]`.
    DeltaDecay,
    /// Input of the second linear of the gate of a state that decays by channel: `[rows, rank]`.
    DeltaGateLatent,
    /// Mappings of the residual's streams for the first half of a layer, pre, post and comb:
    /// `[rows, (2 + streams) * streams]`.
    StreamMap0,
    /// Mappings for the second half, with the layout of `StreamMap0`.
    StreamMap1,
    /// Output of attention, rotated back: `[rows, heads * head_dim]`.
    Unrotated,
    /// Outputs of the linears of groups of heads: `[rows, groups * rank]`.
    OutLatent,
    /// Entries of the groups of positions that end with a row, `[rows, entry]`; undefined for other
    /// rows.
    Entry,
    /// Input of experts that compute rows of another width than the hidden state's:
    /// `[rows, latent]`.
    ExpertLatent,
}

/// Element type of a value in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// Type selected by the run's `--dtype`.
    Compute,
    F32,
}

impl Value {
    /// Returns the type that this value has in memory.
    pub const fn element(self) -> ElementType {
        match self {
            Value::Hidden
            | Value::Scores
            | Value::Probabilities
            | Value::Routing
            | Value::ExpertOut
            | Value::ExpertSum
            | Value::NormedSum
            | Value::IndexWeights
            | Value::Selection
            | Value::StreamMap0
            | Value::StreamMap1
            | Value::Logits => ElementType::F32,
            _ => ElementType::Compute,
        }
    }

    /// Returns the number of bytes of one element with `dtype`.
    pub const fn element_bytes(self, dtype: Dtype) -> usize {
        match self.element() {
            ElementType::Compute => dtype.size_bytes(),
            ElementType::F32 => 4,
        }
    }

    /// Returns true if layers read the value that earlier layers have written, or that was written
    /// before the layers.
    pub const fn outlives_layer(self) -> bool {
        self.is_shared_kv() || matches!(self, Value::Hidden | Value::PerLayer | Value::Selection)
    }

    /// Returns true for keys and values that later layers attend to as well.
    pub const fn is_shared_kv(self) -> bool {
        matches!(
            self,
            Value::SharedKey | Value::SharedValue | Value::WindowKey | Value::WindowValue
        )
    }

    /// Returns [`Value::row_elements`] in the layer with the widest rows.
    pub fn max_row_elements(self, config: &ModelConfig) -> Option<usize> {
        config.kind_models().filter_map(|model| self.row_elements(model)).max()
    }

    /// Returns the number of elements in a row, for values that consist of rows; `None` for
    /// `Scores` and `Probabilities`, whose size depends on the KV length.
    pub fn row_elements(self, config: &ModelConfig) -> Option<usize> {
        let per_token = config.experts.map_or(0, |experts| experts.per_token);
        let expert_ffn = config.experts.map_or(0, |experts| experts.ffn_size);
        let indexer =
            |size: fn(&Indexer) -> usize| config.features.indexer.as_ref().map_or(0, size);
        let latent = |size: fn(&LatentAttention) -> usize| config.latent.as_ref().map_or(0, size);
        let delta = |size: fn(&DeltaNet) -> usize| config.delta.as_ref().map_or(0, size);
        let mamba = |size: fn(&Mamba) -> usize| config.mamba.as_ref().map_or(0, size);
        match self {
            Value::Hidden => Some(config.residual_size()),
            Value::StreamMap0 | Value::StreamMap1 => {
                Some(config.features.streams.map_or(0, |streams| streams.map_size()))
            }
            Value::OutLatent => Some(config.features.unified_kv.map_or(0, |kv| kv.out_size())),
            Value::Normed0
            | Value::Convolved
            | Value::Projected0
            | Value::Projected1
            | Value::Projected2
            | Value::Normed1
            | Value::RouterNormed
            | Value::ExpertNormed
            | Value::NormedSum
            | Value::LastNormed => Some(config.hidden_size),
            Value::Query | Value::Attended | Value::GatedAttended | Value::Unrotated => {
                Some(config.q_size())
            }
            Value::QueryLatent => Some(config.query_rank().unwrap_or(0)),
            Value::HeadQuery => Some(config.num_heads * latent(LatentAttention::query_dim)),
            Value::HeadValues => Some(config.num_heads * latent(|latent| latent.value_dim)),
            Value::IndexQuery => Some(indexer(Indexer::query_size)),
            Value::IndexWeights => Some(indexer(|indexer| indexer.heads)),
            Value::Selection => Some(indexer(|indexer| indexer.top_k)),
            Value::DeltaQkv | Value::DeltaConvolved => Some(delta(DeltaNet::channels)),
            Value::ConvInput => Some(3 * config.hidden_size),
            Value::MambaInput => Some(mamba(Mamba::input_size)),
            Value::MambaConvolved => Some(mamba(Mamba::channels)),
            Value::MambaRead => Some(mamba(Mamba::inner_size)),
            Value::DeltaBa => Some(delta(DeltaNet::rates_size)),
            Value::DeltaDecayLatent | Value::DeltaGateLatent => {
                Some(delta(|delta| delta.decay_rank().unwrap_or(0)))
            }
            Value::DeltaDecay => Some(delta(DeltaNet::decays_len)),
            Value::DeltaRead | Value::GatedDelta => Some(delta(DeltaNet::value_size)),
            Value::Key => Some(config.cache_size(Kv::K)),
            Value::Entry => Some(config.cache_size(Kv::V)),
            Value::Value
            | Value::SharedKey
            | Value::SharedValue
            | Value::WindowKey
            | Value::WindowValue => Some(config.kv_size()),
            Value::PerLayer => {
                Some(config.features.per_layer_inputs.map_or(0, |inputs| inputs.row_elements()))
            }
            Value::PerLayerGated => {
                Some(config.features.per_layer_inputs.map_or(0, |inputs| inputs.size))
            }
            Value::Gate | Value::Ffn | Value::SharedFfn => Some(config.ffn_size),
            Value::DenseGate | Value::DenseFfn => {
                Some(config.experts.map_or(0, |experts| experts.dense_ffn_size()))
            }
            Value::Routing => Some(2 * per_token),
            Value::ExpertGate | Value::ExpertFfn => Some(per_token * expert_ffn),
            Value::ExpertOut => Some(per_token * config.expert_row_size()),
            Value::ExpertLatent | Value::ExpertSum => Some(config.expert_row_size()),
            Value::Logits => Some(config.vocab_size),
            Value::Scores | Value::Probabilities => None,
        }
    }
}
