//! How large a model can be: no model comes near these sizes, and below them nothing that is made
//! of a configuration alone (operations, programs, tables) is large and no product overflows.

use crate::config::ModelConfig;
use crate::delta::DeltaNet;
use crate::experts::Experts;

/// A program names a layer in 16 bits; the deepest models that are published have some 130.
const LAYERS_MAX: usize = 4096;
/// The widest have some 2^15 in the hidden state and four times as much behind it.
const HIDDEN_MAX: usize = 1 << 18;
const FFN_MAX: usize = 1 << 20;
const HEADS_MAX: usize = 1 << 12;
const HEAD_DIM_MAX: usize = 1 << 14;
/// The largest vocabularies have some 2^18 tokens.
const VOCABULARY_MAX: usize = 1 << 22;
const ENDS_MAX: usize = 1 << 10;
/// Those that are published have 128.
const STATE_DIM_MAX: usize = 1 << 10;
/// Likewise 4.
const TAPS_MAX: usize = 1 << 5;
const EXPERTS_MAX: usize = 1 << 12;
/// Learned positions are a table of weights.
const LEARNED_POSITIONS_MAX: usize = 1 << 22;

/// A size that no model has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration says {value} {what}; at most {bound} can be run, so it is damaged")]
pub struct TooLarge {
    pub what: &'static str,
    pub value: usize,
    pub bound: usize,
}

/// Whether a number of layers is within its bound, before there is a list of them.
///
/// # Errors
/// It is not.
pub fn check_layers(layers: usize) -> Result<usize, TooLarge> {
    match layers {
        0..=LAYERS_MAX => Ok(layers),
        value => Err(TooLarge { what: "layers", value, bound: LAYERS_MAX }),
    }
}

/// Whether all sizes of a configuration are within their bounds.
///
/// # Errors
/// The first one that is not.
pub fn check(config: &ModelConfig) -> Result<(), TooLarge> {
    let positions = config.learned_position_rows();
    let of_experts = |experts: Experts| [experts.count, experts.per_token, experts.ffn_size];
    let [count, per_token, ffn_size] = config.experts.map_or([0; 3], of_experts);
    let of_delta = |delta: DeltaNet| {
        [delta.value_heads, delta.key_dim, delta.value_dim, delta.taps, delta.key_heads]
    };
    let [value_heads, key_dim, value_dim, taps, key_heads] = config.delta.map_or([0; 5], of_delta);
    let sizes = [
        ("layers", config.num_layers, LAYERS_MAX),
        ("values of the hidden state", config.hidden_size, HIDDEN_MAX),
        ("values of the feed-forward layer", config.ffn_size, FFN_MAX),
        ("attention heads", config.num_heads, HEADS_MAX),
        ("KV heads", config.num_kv_heads, HEADS_MAX),
        ("values of a head", config.head_dim, HEAD_DIM_MAX),
        ("tokens of the vocabulary", config.vocab_size, VOCABULARY_MAX),
        ("experts", count, EXPERTS_MAX),
        ("experts of a row", per_token, EXPERTS_MAX),
        ("values of an expert's layer", ffn_size, FFN_MAX),
        ("heads of a state", value_heads, HEADS_MAX),
        ("heads of keys of a state", key_heads, HEADS_MAX),
        ("values of a state's key", key_dim, STATE_DIM_MAX),
        ("values of a state's head", value_dim, STATE_DIM_MAX),
        ("rows of a convolution", taps, TAPS_MAX),
        ("learned positions", positions, LEARNED_POSITIONS_MAX),
        ("end-of-sequence tokens", config.eos_token_ids.len(), ENDS_MAX),
    ];
    match sizes.into_iter().find(|(_, value, bound)| value > bound) {
        Some((what, value, bound)) => Err(TooLarge { what, value, bound }),
        None => Ok(()),
    }
}
