//! Upper bounds on the sizes of a model. No published model approaches them. Below them, nothing
//! that is derived from a configuration alone (operations, programs, tables) is large, and no
//! product overflows.

use crate::config::ModelConfig;
use crate::delta::DeltaNet;
use crate::experts::{EXPERT_GROUPS_MAX, Experts};
use crate::latent::LatentAttention;
use crate::mamba::Mamba;
use crate::streams::STREAMS_MAX;

/// Maximum number of layers, which programs identify by 16 bits. The deepest published models have
/// some 130 layers.
const LAYERS_MAX: usize = 4096;
/// Maximum width of the hidden state. The widest published models have some 2^15 elements there,
/// and four times as many in the feed-forward network.
const HIDDEN_MAX: usize = 1 << 18;
const FFN_MAX: usize = 1 << 20;
const HEADS_MAX: usize = 1 << 12;
/// Maximum number of elements of a head.
pub const HEAD_DIM_MAX: usize = 1 << 14;
/// Maximum number of positions that a row attends to by selection. Published models select 2048.
const SELECTED_MAX: usize = 1 << 16;
/// Maximum number of tokens. The largest published vocabularies have some 2^18.
const VOCABULARY_MAX: usize = 1 << 22;
const ENDS_MAX: usize = 1 << 10;
/// Maximum number of elements in a key or value of a state. Published models have 128.
const STATE_DIM_MAX: usize = 1 << 10;
/// Maximum number of rows of a convolution. Published models have 4.
const TAPS_MAX: usize = 1 << 5;
const EXPERTS_MAX: usize = 1 << 12;
/// Maximum number of learned positions, which are rows of a table of weights.
const LEARNED_POSITIONS_MAX: usize = 1 << 22;

/// Error for a size that exceeds its bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has {value} {what}; at most {bound} can be run, so it is damaged")]
pub struct TooLarge {
    pub what: &'static str,
    pub value: usize,
    pub bound: usize,
}

/// Checks a number of layers before a list of them is created.
///
/// # Errors
/// The number exceeds its bound.
pub fn check_layers(layers: usize) -> Result<usize, TooLarge> {
    match layers {
        0..=LAYERS_MAX => Ok(layers),
        value => Err(TooLarge { what: "layers", value, bound: LAYERS_MAX }),
    }
}

/// Checks all sizes of a configuration.
///
/// # Errors
/// The first size that exceeds its bound.
pub fn check(config: &ModelConfig) -> Result<(), TooLarge> {
    let of_experts = |experts: Experts| {
        let groups = experts.selection.groups.map_or(0, |groups| groups.count);
        [experts.count, experts.per_token, experts.ffn_size, experts.dense_ffn_size(), groups]
    };
    let [count, per_token, ffn_size, dense_ffn_size, groups] =
        config.experts.map_or([0; 5], of_experts);
    let of_delta = |delta: DeltaNet| {
        [delta.value_heads, delta.key_dim, delta.value_dim, delta.taps, delta.key_heads]
    };
    let [value_heads, key_dim, value_dim, taps, key_heads] = config.delta.map_or([0; 5], of_delta);
    let decay_rank = config.delta.and_then(|delta| delta.decay_rank()).unwrap_or(0);
    let of_mamba =
        |mamba: Mamba| [mamba.heads, mamba.groups, mamba.head_dim, mamba.state_dim, mamba.taps];
    let [mamba_heads, mamba_groups, mamba_head_dim, mamba_state_dim, mamba_taps] =
        config.mamba.map_or([0; 5], of_mamba);
    let short_taps = config.short_conv().map_or(0, |conv| conv.taps);
    let of_latent = |latent: LatentAttention| [latent.query_dim(), latent.value_dim];
    let [query_dim, head_value_dim] = config.latent.map_or([0; 2], of_latent);
    let out = config.features.unified_kv.map(|unified| (unified.out_groups, unified.out_rank));
    let (out_groups, out_rank) = out.unwrap_or_default();
    let indexer = config.features.indexer;
    let [index_heads, index_dim, top_k] =
        indexer.map_or([0; 3], |indexer| [indexer.heads, indexer.head_dim, indexer.top_k]);
    let inputs = config.features.per_layer_inputs;
    let [input_size, input_vocab] =
        inputs.map_or([0; 2], |inputs| [inputs.size, inputs.vocab_size]);
    let sizes = [
        ("layers", config.num_layers, LAYERS_MAX),
        ("values of the hidden state", config.hidden_size, HIDDEN_MAX),
        ("values of the feed-forward layer", config.max_ffn_size(), FFN_MAX),
        ("attention heads", config.max_of_layers(|model| model.num_heads), HEADS_MAX),
        ("KV heads", config.max_of_layers(|model| model.num_kv_heads), HEADS_MAX),
        ("values of a head", config.max_of_layers(|model| model.head_dim), HEAD_DIM_MAX),
        ("values of a layer's own input", input_size, HIDDEN_MAX),
        ("tokens of the table of inputs", input_vocab, VOCABULARY_MAX),
        ("values of a query's latent", config.query_rank().unwrap_or(0), HIDDEN_MAX),
        ("streams of the residual", config.stream_count(), STREAMS_MAX),
        ("groups of heads", out_groups, HEADS_MAX),
        ("outputs of a group of heads", out_rank, HIDDEN_MAX),
        ("values of a head of q", query_dim, HEAD_DIM_MAX),
        ("values of a head's value", head_value_dim, HEAD_DIM_MAX),
        ("heads of an indexer", index_heads, HEADS_MAX),
        ("values of a head of an indexer", index_dim, HEAD_DIM_MAX),
        ("positions that an indexer selects", top_k, SELECTED_MAX),
        ("tokens of the vocabulary", config.vocab_size, VOCABULARY_MAX),
        ("experts", count, EXPERTS_MAX),
        ("experts of a row", per_token, EXPERTS_MAX),
        ("values of an expert's layer", ffn_size, FFN_MAX),
        ("values of an expert's input", config.expert_row_size(), HIDDEN_MAX),
        ("values of the feed-forward layer without experts", dense_ffn_size, FFN_MAX),
        ("groups of experts", groups, EXPERT_GROUPS_MAX),
        ("heads of a state", value_heads, HEADS_MAX),
        ("heads of keys of a state", key_heads, HEADS_MAX),
        ("values of a state's key", key_dim, STATE_DIM_MAX),
        ("values of a state's head", value_dim, STATE_DIM_MAX),
        ("values between the linears of a decay", decay_rank, HIDDEN_MAX),
        ("heads of Mamba2", mamba_heads, HEADS_MAX),
        ("groups of Mamba2", mamba_groups, HEADS_MAX),
        ("values of a head of Mamba2", mamba_head_dim, STATE_DIM_MAX),
        ("values of a state of Mamba2", mamba_state_dim, STATE_DIM_MAX),
        ("rows of a convolution", taps.max(short_taps).max(mamba_taps), TAPS_MAX),
        ("learned positions", config.learned_position_rows(), LEARNED_POSITIONS_MAX),
        ("end-of-sequence tokens", config.eos_token_ids.len(), ENDS_MAX),
    ];
    match sizes.into_iter().find(|(_, value, bound)| value > bound) {
        Some((what, value, bound)) => Err(TooLarge { what, value, bound }),
        None => Ok(()),
    }
}
