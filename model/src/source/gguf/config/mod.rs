//! Conversion of GGUF metadata to a [`ModelConfig`].
//!
//! `families` contains the architectures, `rope` and `experts` their keys, and `refused` the keys
//! that would require unsupported computations (another rope scaling, shared experts, different
//! layers). Files with such keys are refused by name; the keys are never ignored.

mod experts;
mod families;
mod gemma4;
mod keys;
mod latent;
mod layer_heads;
mod mamba;
mod nemotron;
mod refused;
mod rope;
mod states;
mod tokens;

use keys::{ConfigError, Keys, wrong};
use nemotron::PairedLayers;

use super::facts::TensorFacts;
use super::metadata::{Metadata, required};
use crate::config::{Family, Features, ModelConfig, Rope};
use crate::config_bounds::{self, check_layers};
use crate::experts::Experts;
use crate::family::{GgufFamily, description};

/// Returns the configuration of the model called `name`.
pub(super) fn model_config(
    metadata: &Metadata,
    name: String,
    facts: &TensorFacts,
) -> Result<ModelConfig, ConfigError> {
    let key = "general.architecture";
    let architecture = required(key, metadata.text(key)?)?;
    let keys = Keys { metadata, architecture };
    let family = families::family(&keys, facts)?;
    let gguf = &description(family).gguf;
    refused::refuse_variants(&keys, gguf)?;
    layer_heads::refuse_limits(&keys, gguf)?;

    let hidden_size = keys.required_size("embedding_length")?;
    let latent = latent::latent(&keys, gguf)?;
    let (num_heads, num_kv_heads, head_dim) = match latent {
        Some(latent) => latent::heads(&keys, gguf, latent)?,
        None if gguf.has_layer_sizes => gemma4::heads(&keys)?,
        None if gguf.has_layer_heads => layer_heads::heads(&keys)?,
        None => heads(&keys, gguf, hidden_size)?,
    };
    let vocab_size = tokens::vocab_size(metadata, facts)?;
    let blocks = check_layers(states::layers(&keys, gguf)?)?;
    let context = keys.required_size("context_length")?;
    let norm_key = "attention.layer_norm_rms_epsilon";
    let rotated_dim = if gguf.has_layer_sizes { gemma4::global_dim(&keys)? } else { head_dim };
    let rope = rope::rope(&keys, family, rotated_dim, context, &facts.rope)?;
    let scaling = rope.scaling.clone();
    let experts = experts::experts(&keys, gguf, blocks)?;
    let paired = layers(&keys, family, blocks, &rope, experts)?;
    let config = ModelConfig {
        name,
        family,
        num_layers: paired.count,
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        ffn_size: paired.ffn_size,
        vocab_size,
        max_positions: rope.scaled_max_positions(context),
        norm_eps: required(&keys.key(norm_key), keys.positive(norm_key)?)? as f32,
        activation: gguf.activation,
        learned_positions: None,
        layers: paired.layers,
        experts,
        delta: states::delta(&keys, family)?,
        latent,
        mamba: mamba::mamba(&keys, family, blocks, facts)?,
        output_gate: states::has_states(family) || gguf.gates_heads,
        qkv_bias: facts.has_q_bias,
        out_bias: facts.has_out_bias,
        ffn_bias: facts.has_ffn_bias,
        tied_embeddings: !facts.has_output,
        qk_norm: families::qk_norm(gguf, facts),
        pre_norms: gguf.has_pre_norms,
        post_norms: gguf.has_post_norms,
        sinks: family == Family::GptOss,
        scales: match latent {
            Some(latent) => latent::scales(&keys, latent, &scaling)?,
            None => families::scales(&keys, family, paired.count, hidden_size, num_heads)?,
        },
        features: Features { gates_heads: gguf.gates_heads, ..Features::default() },
        bos_token_id: tokens::token_id(metadata, "tokenizer.ggml.bos_token_id", vocab_size)?,
        eos_token_ids: tokens::eos_token_ids(metadata, vocab_size)?,
    };
    let config = with_layer_sizes(&keys, config, facts)?;
    config_bounds::check(&config)?;
    Ok(config)
}

/// Returns the model with the sizes, caches and indexers of each layer, in families whose layers
/// differ in them.
fn with_layer_sizes(
    keys: &Keys<'_>,
    config: ModelConfig,
    facts: &TensorFacts,
) -> Result<ModelConfig, ConfigError> {
    let gguf = &description(config.family).gguf;
    match gguf {
        _ if gguf.has_layer_sizes => gemma4::sized(keys, config, facts),
        _ if gguf.has_layer_heads => layer_heads::sized(keys, config),
        _ if gguf.has_indexers => latent::with_indexers(keys, config),
        _ => Ok(config),
    }
}

/// Returns the layers of a file of `blocks` blocks.
fn layers(
    keys: &Keys<'_>,
    family: Family,
    blocks: usize,
    rope: &Rope,
    experts: Option<Experts>,
) -> Result<PairedLayers, ConfigError> {
    let gguf = &description(family).gguf;
    if gguf.has_single_mixers {
        return nemotron::layers(keys, blocks, experts);
    }
    let (ffn_size, feed_forward) = experts::feed_forward(keys, gguf, experts)?;
    let layers = families::layers(keys, family, blocks, rope, &feed_forward)?;
    Ok(PairedLayers { count: blocks, layers, ffn_size })
}

/// Returns the number of heads of q, the number of heads of k and v, and their size.
fn heads(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    hidden_size: usize,
) -> Result<(usize, usize, usize), ConfigError> {
    let num_heads = keys.required_size("attention.head_count")?;
    let num_kv_heads = states::kv_heads(keys, gguf)?.unwrap_or(num_heads);
    if num_heads % num_kv_heads != 0 {
        let key = keys.key("attention.head_count_kv");
        return Err(wrong(key, num_kv_heads, "a divisor of attention.head_count"));
    }
    let head_dim = match keys.size("attention.key_length")? {
        Some(size) => size,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let key = keys.key("embedding_length");
            return Err(wrong(key, hidden_size, "a multiple of attention.head_count"));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(wrong(keys.key("attention.key_length"), head_dim, "an even size"));
    }
    keys.same_size("attention.value_length", head_dim, "the same as attention.key_length")?;
    Ok((num_heads, num_kv_heads, head_dim))
}
