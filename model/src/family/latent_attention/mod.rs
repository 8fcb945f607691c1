//! Multi-head latent attention in `config.json` and in safetensors files. Its families differ in
//! their routers and defaults only.

mod indexer;

use serde_json::Value;

use super::expert_tensors;
use super::llama::{self, Heads, Positions};
use super::tensors::{Layouts, TensorSlice};
use crate::config::{Family, ModelConfig, Scales};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_rope::{RopeDefaults, rope, yarn_score_factor};
use crate::latent::LatentAttention;
use crate::ops::Op;
use crate::rope::Rope;
use crate::source::{TensorId, TensorPart};
pub(super) use indexer::IndexerFields;
pub(crate) use indexer::with_indexer;

/// Default rope base.
const THETA: f64 = 10_000.0;
/// Names of the number of positions.
const POSITIONS: [&str; 2] = ["max_position_embeddings", "model_max_length"];

/// Parses the fields of a dense model with latent attention.
///
/// # Errors
/// Missing or invalid fields, or an attention with biases.
pub(super) fn base(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    parse(family, name, fields, RopeFields::OfRotatedPart)
}

/// Parses the fields of a dense model with latent attention whose queries are multiplied by a
/// factor of their position.
///
/// # Errors
/// Missing or invalid fields, or an attention with biases.
pub(super) fn base_with_temperature(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    parse(family, name, fields, RopeFields::OfHead)
}

/// Parses the fields of a dense model with latent attention whose layers have no rope: the part of
/// a head that others rotate is as it was computed.
///
/// # Errors
/// Missing or invalid fields, or an attention with biases.
pub(super) fn base_without_rope(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    parse(family, name, fields, RopeFields::WithoutEffect)
}

/// Meaning of the fields of a rope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RopeFields {
    /// No layer rotates.
    WithoutEffect,
    /// All elements of the rotated part of a head are rotated.
    OfRotatedPart,
    /// A fraction of a head of q is rotated, and queries have a factor of their position.
    OfHead,
}

fn parse(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    rope_fields: RopeFields,
) -> Result<ModelConfig, ConfigError> {
    let latent = LatentAttention {
        q_rank: fields.optional_size("q_lora_rank")?,
        kv_rank: fields.size("kv_lora_rank")?,
        nope_dim: fields.size("qk_nope_head_dim")?,
        rope_dim: fields.size("qk_rope_head_dim")?,
        value_dim: fields.size("v_head_dim")?,
        rotates_neighbours: fields.flag("rope_interleave", true)?,
    };
    fields.only("attention_bias", &Value::Bool(false))?;
    let count = fields.size("num_attention_heads")?;
    // Keys and values of all heads are computed from one latent.
    same_size(fields, "num_key_value_heads", count)?;
    same_size(fields, "qk_head_dim", latent.query_dim())?;
    // Files have the size of one of the parts of a head here.
    fields.optional_size("head_dim")?;
    let max_positions = fields.size_of_names(&POSITIONS)?;
    let (rope, score_factor) = match rope_fields {
        RopeFields::WithoutEffect => {
            for field in ["rope_parameters", "rope_scaling", "rope_theta"] {
                fields.present(field);
            }
            (None, 1.0)
        }
        _ => {
            let rope = parse_rope(fields, latent, max_positions, rope_fields)?;
            let score_factor = yarn_score_factor(fields, &rope)?;
            (Some(Rope { rotary_dim: Some(latent.rope_dim), ..rope }), score_factor)
        }
    };
    let hidden = fields.size("hidden_size")?;
    let heads = Heads { hidden, count, kv_count: 1, size: latent.key_dim() };
    let attention = score_factor / (latent.query_dim() as f64).sqrt();
    let positions = Positions { max: max_positions, rope };
    Ok(ModelConfig {
        latent: Some(latent),
        scales: Scales { attention: Some(attention as f32), ..Scales::default() },
        ..llama::base_of_heads(family, name, fields, "intermediate_size", positions, heads)?
    })
}

/// Parses the rope of the rotated part of each head.
fn parse_rope(
    fields: &ConfigFields<'_>,
    latent: LatentAttention,
    max_positions: usize,
    rope_fields: RopeFields,
) -> Result<Rope, ConfigError> {
    let part = latent.rope_dim as f64 / latent.query_dim() as f64;
    let is_of_head = rope_fields == RopeFields::OfHead;
    let (head_dim, rotated) =
        if is_of_head { (latent.query_dim(), part) } else { (latent.rope_dim, 1.0) };
    let defaults = RopeDefaults {
        theta: THETA,
        head_dim,
        max_positions,
        can_be_partial: is_of_head,
        rotated,
        has_temperature: is_of_head,
    };
    let rope = rope(fields, defaults)?;
    if rope.rotary_dim(head_dim) != latent.rope_dim {
        let dim = Value::from(rope.rotary_dim(head_dim));
        return Err(wrong("partial_rotary_factor", &dim, "a rotated part of qk_rope_head_dim"));
    }
    Ok(rope)
}

/// Refuses a field that is present and differs from `size`.
fn same_size(
    fields: &ConfigFields<'_>,
    field: &'static str,
    size: usize,
) -> Result<(), ConfigError> {
    match fields.optional_size(field)? {
        Some(other) if other != size => {
            Err(wrong(field, &Value::from(other), "the size that other fields imply"))
        }
        _ => Ok(()),
    }
}

/// Returns the possible layouts of a tensor of a model with latent attention and experts.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let (TensorId::Layer { layer, op, part }, Some(latent)) = (id, config.latent) else {
        return expert_tensors::layouts(config, id);
    };
    let at = |tensor: &str| format!("model.layers.{layer}.self_attn.{tensor}.weight");
    let matrix = |tensor: &str, rows: usize, columns: usize| {
        TensorSlice::whole(at(tensor), &[rows, columns])
    };
    let LatentAttention { q_rank, kv_rank, nope_dim, rope_dim, value_dim, .. } = latent;
    let (hidden, heads) = (config.hidden_size, 0..config.num_heads);
    let all_queries = config.num_heads * latent.query_dim();
    let of_heads = nope_dim + value_dim;
    let rotated = |whole: &TensorSlice, first: usize| {
        rotated_rows(latent.rotates_neighbours, rope_dim, whole, first)
    };
    let keys_and_values = || matrix("kv_b_proj", config.num_heads * of_heads, kv_rank);
    let pieces = match (op, part) {
        (Op::QDown, TensorPart::Gain) => {
            vec![TensorSlice::whole(at("q_a_layernorm"), &[q_rank.unwrap_or(0)])]
        }
        (Op::K, TensorPart::Gain) => {
            let norm = TensorSlice::whole(at("kv_a_layernorm"), &[kv_rank]);
            [norm].into_iter().chain(indexer::pieces(config, layer, op, part)).collect()
        }
        (_, TensorPart::Gain | TensorPart::Bias) => return expert_tensors::layouts(config, id),
        (Op::QDown, TensorPart::Matrix) => vec![matrix("q_a_proj", q_rank.unwrap_or(0), hidden)],
        (Op::Q, TensorPart::Matrix) => {
            let whole = match q_rank {
                Some(rank) => matrix("q_b_proj", all_queries, rank),
                None => matrix("q_proj", all_queries, hidden),
            };
            let of_head = |head: usize| {
                let first = head * latent.query_dim();
                let rows = rotated(&whole, first + nope_dim);
                rows.into_iter().chain([whole.clone().rows_from(first, nope_dim)])
            };
            heads.flat_map(of_head).collect()
        }
        (Op::K, TensorPart::Matrix) => {
            let whole = matrix("kv_a_proj_with_mqa", kv_rank + rope_dim, hidden);
            let rows = rotated(&whole, kv_rank);
            let rows = rows.into_iter().chain([whole.rows_from(0, kv_rank)]);
            rows.chain(indexer::pieces(config, layer, op, part)).collect()
        }
        (Op::IndexQuery | Op::IndexWeights, TensorPart::Matrix) => {
            indexer::pieces(config, layer, op, part)
        }
        (Op::QAbsorb, TensorPart::Matrix) => {
            let of_head = |head: usize| TensorSlice {
                first: head * of_heads * kv_rank,
                rows: kv_rank,
                columns: nope_dim,
                strides: (1, kv_rank),
                is_transposed: true,
                ..keys_and_values()
            };
            heads.map(of_head).collect()
        }
        (Op::VUp, TensorPart::Matrix) => heads
            .map(|head| keys_and_values().rows_from(head * of_heads + nope_dim, value_dim))
            .collect(),
        _ => return expert_tensors::layouts(config, id),
    };
    vec![pieces]
}

/// Returns the rotated rows of a head, which start at `first` in a whole matrix and may be stored
/// in the order of a rope that rotates neighbours, in the order of one that rotates halves.
fn rotated_rows(
    are_neighbours: bool,
    rope_dim: usize,
    whole: &TensorSlice,
    first: usize,
) -> Vec<TensorSlice> {
    let columns = whole.columns;
    if !are_neighbours {
        return vec![whole.clone().rows_from(first, rope_dim)];
    }
    let half = |first: usize| TensorSlice {
        first: first * columns,
        rows: rope_dim / 2,
        strides: (2 * columns, 1),
        ..whole.clone()
    };
    vec![half(first), half(first + 1)]
}

#[cfg(test)]
mod tests;
