//! Sizes of latent attention.

use super::super::metadata::required;
use super::keys::{ConfigError, Keys, wrong};
use super::states::{KV_HEADS, kv_heads};
use crate::config::{ModelConfig, RopeScaling, Scales};
use crate::family::{GgufFamily, latent_attention};
use crate::indexer::Indexer;
use crate::latent::LatentAttention;
use crate::rope::yarn_scale;

/// Size of a head of q, of which a part is rotated.
const QUERY: &str = "attention.key_length_mla";
const VALUE: &str = "attention.value_length_mla";
const ROTATED: &str = "rope.dimension_count";
const INDEX_KEY: &str = "attention.indexer.key_length";
const KEY_LENGTH: &str = "attention.key_length";
const VALUE_LENGTH: &str = "attention.value_length";

/// Returns the sizes; `None` for a family without latent attention.
///
/// # Errors
/// Missing or invalid sizes.
pub(super) fn latent(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
) -> Result<Option<LatentAttention>, ConfigError> {
    if !gguf.has_latent_attention {
        return Ok(None);
    }
    let (query, value_dim) = match keys.size(QUERY)? {
        Some(query) => (query, required(&keys.key(VALUE), keys.size(VALUE)?)?),
        // Files from before these keys existed have the sizes of the heads that latents are
        // expanded to here.
        None => (keys.required_size(KEY_LENGTH)?, keys.required_size(VALUE_LENGTH)?),
    };
    let rope_dim = keys.required_size(ROTATED)?;
    if rope_dim >= query || !rope_dim.is_multiple_of(2) {
        return Err(wrong(keys.key(ROTATED), rope_dim, "an even part of a head"));
    }
    Ok(Some(LatentAttention {
        q_rank: keys.size_or_none("attention.q_lora_rank")?,
        kv_rank: keys.required_size("attention.kv_lora_rank")?,
        nope_dim: query - rope_dim,
        rope_dim,
        value_dim,
        rotates_neighbours: true,
    }))
}

/// Adds an indexer to each layer of a model with latent attention. Files have no layers that share
/// selections.
///
/// # Errors
/// Missing or invalid sizes, or queries that are not computed from a latent.
pub(super) fn with_indexers(
    keys: &Keys<'_>,
    model: ModelConfig,
) -> Result<ModelConfig, ConfigError> {
    keys.required_size("attention.q_lora_rank")?;
    let rope_dim = model.latent.map_or(0, |latent| latent.rope_dim);
    let indexer = Indexer {
        heads: keys.required_size("attention.indexer.head_count")?,
        head_dim: keys.required_size(INDEX_KEY)?,
        top_k: keys.required_size("attention.indexer.top_k")?.min(model.max_positions),
        rotates_neighbours: true,
    };
    if indexer.head_dim < rope_dim {
        let what = "at least the rotated part of a head";
        return Err(wrong(keys.key(INDEX_KEY), indexer.head_dim, what));
    }
    let layers = vec![true; model.num_layers];
    Ok(latent_attention::with_indexer(model, indexer, &layers))
}

/// Returns the number of heads of q, the number of cached heads, and their size. Old files have the
/// number and the sizes of expanded heads instead of those of the cached one.
///
/// # Errors
/// A cached head of another size.
pub(super) fn heads(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    latent: LatentAttention,
) -> Result<(usize, usize, usize), ConfigError> {
    let heads = keys.required_size("attention.head_count")?;
    let size = latent.key_dim();
    if keys.size(QUERY)?.is_none() {
        keys.same_size(KV_HEADS, heads, "the number of heads of q")?;
        return Ok((heads, 1, size));
    }
    match kv_heads(keys, gguf)? {
        None | Some(1) => {}
        Some(heads) => return Err(wrong(keys.key(KV_HEADS), heads, "one cached head")),
    }
    keys.same_size(KEY_LENGTH, size, "the sum of the rotated part and the latent")?;
    // llama.cpp's converter writes another size into files of Kimi Linear.
    if !gguf.has_channel_decay {
        keys.same_size(VALUE_LENGTH, latent.kv_rank, "the size of the latent")?;
    }
    Ok((heads, 1, size))
}

/// Returns the factors of a model, of which that of scores depends on YaRN.
///
/// # Errors
/// An invalid number.
pub(super) fn scales(
    keys: &Keys<'_>,
    latent: LatentAttention,
    scaling: &RopeScaling,
) -> Result<Scales, ConfigError> {
    let factor = match (scaling, all_dim(keys)?) {
        (RopeScaling::Yarn { factor, .. }, Some(all_dim)) => yarn_scale(*factor, all_dim).powi(2),
        _ => 1.0,
    };
    let attention = factor / (latent.query_dim() as f64).sqrt();
    Ok(Scales { attention: Some(attention as f32), ..Scales::default() })
}

/// Returns YaRN's `mscale_all_dim`, of which files with latent attention have a tenth.
///
/// # Errors
/// An invalid number.
pub(super) fn all_dim(keys: &Keys<'_>) -> Result<Option<f64>, ConfigError> {
    let tenth = keys.positive_or_none("rope.scaling.yarn_log_multiplier")?;
    // The file has it as f32.
    Ok(tenth.map(|tenth| (tenth * 1e7).round() / 1e6))
}
