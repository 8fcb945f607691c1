//! How large a model can be: no model comes near these sizes, and below them nothing that is made
//! of a configuration alone (operations, programs, tables) is large and no product overflows.

use crate::config::ModelConfig;

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

/// Whether all sizes of a configuration are within their bounds.
///
/// # Errors
/// The first one that is not.
pub fn check(config: &ModelConfig) -> Result<(), TooLarge> {
    let positions = if config.rope.is_none() { config.max_positions } else { 0 };
    let sizes = [
        ("layers", config.num_layers, LAYERS_MAX),
        ("values of the hidden state", config.hidden_size, HIDDEN_MAX),
        ("values of the feed-forward layer", config.ffn_size, FFN_MAX),
        ("attention heads", config.num_heads, HEADS_MAX),
        ("KV heads", config.num_kv_heads, HEADS_MAX),
        ("values of a head", config.head_dim, HEAD_DIM_MAX),
        ("tokens of the vocabulary", config.vocab_size, VOCABULARY_MAX),
        ("learned positions", positions, LEARNED_POSITIONS_MAX),
        ("end-of-sequence tokens", config.eos_token_ids.len(), ENDS_MAX),
    ];
    match sizes.into_iter().find(|(_, value, bound)| value > bound) {
        Some((what, value, bound)) => Err(TooLarge { what, value, bound }),
        None => Ok(()),
    }
}
