//! Indexers of latent attention in `config.json` and in safetensors files.

use serde_json::Value;

use super::{TensorSlice, rotated_rows};
use crate::config::{Features, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::indexer::{Indexer, PositionSelection};
use crate::latent::LatentAttention;
use crate::layers::{LayerKind, LayerSizes, Layers};
use crate::ops::Op;
use crate::source::TensorPart;

/// Fields of indexers whose meaning depends on the family.
#[derive(Debug, Clone, Copy)]
pub(in crate::family) struct IndexerFields {
    /// Checkpoints store the rotated rows of indexers in the order of a rope that rotates
    /// neighbours.
    pub(in crate::family) rotates_neighbours: bool,
    /// Layers may share the selections of earlier ones.
    pub(in crate::family) can_share: bool,
}

impl IndexerFields {
    /// Adds the indexers to a model with latent attention.
    ///
    /// # Errors
    /// Missing or invalid fields, queries that are not computed from a latent, or a first layer
    /// without an indexer.
    pub(in crate::family) fn add_to(
        self,
        model: ModelConfig,
        fields: &ConfigFields<'_>,
    ) -> Result<ModelConfig, ConfigError> {
        let Some(latent) = model.latent.filter(|latent| latent.q_rank.is_some()) else {
            return Err(ConfigError::Missing { field: "q_lora_rank" });
        };
        let indexer = Indexer {
            heads: fields.size("index_n_heads")?,
            head_dim: fields.size("index_head_dim")?,
            // No row has more positions.
            top_k: fields.size("index_topk")?.min(model.max_positions),
            rotates_neighbours: fields.flag("indexer_rope_interleave", self.rotates_neighbours)?,
        };
        if indexer.head_dim < latent.rope_dim {
            let size = Value::from(indexer.head_dim);
            return Err(wrong("index_head_dim", &size, "at least qk_rope_head_dim"));
        }
        check_layer_types(fields, model.num_layers)?;
        let has_indexer = layers_with_indexers(fields, model.num_layers)?;
        if !self.can_share && has_indexer.contains(&false) {
            let what = "indexer_types with shared selections".to_owned();
            return Err(ConfigError::Unsupported { what, hint: "" });
        }
        Ok(with_indexer(model, indexer, &has_indexer))
    }
}

/// Returns a model with latent attention and an indexer in the layers for which `has_indexer` is
/// true, whose selections the others share. The first layer has one.
pub(crate) fn with_indexer(
    model: ModelConfig,
    indexer: Indexer,
    has_indexer: &[bool],
) -> ModelConfig {
    let latent = model.latent.expect("indexers are of latent attention");
    let place_dim = indexer.place_dim(&latent);
    let shared = LayerSizes { head_dim: latent.key_dim(), ..model.sizes() };
    let layers = has_indexer.iter().enumerate().map(|(layer, has_indexer)| {
        let (selection, sizes) = match has_indexer {
            true => (PositionSelection::Own, None),
            false => (PositionSelection::Shared, Some(shared)),
        };
        LayerKind { selection, sizes, ..model.layers.kind(layer).clone() }
    });
    let layers = Layers::from_kinds(layers.collect::<Vec<_>>());
    let features = Features { indexer: Some(indexer), ..model.features };
    ModelConfig { head_dim: place_dim, layers, features, ..model }.with_kind_models()
}

/// Refuses layers of other types than those with selected positions.
fn check_layer_types(fields: &ConfigFields<'_>, layers: usize) -> Result<(), ConfigError> {
    const FIELD: &str = "layer_types";
    let Some(types) = fields.present(FIELD) else { return Ok(()) };
    let is_indexed = |kind: &Value| kind.as_str() == Some("indexed_attention");
    match types.as_array() {
        Some(list) if list.len() >= layers && list.iter().all(is_indexed) => Ok(()),
        _ => Err(wrong(FIELD, types, "indexed_attention for each layer")),
    }
}

/// Returns a flag per layer that is true if it has an indexer: by a list or, in older files, by a
/// pattern of letters or a period.
fn layers_with_indexers(
    fields: &ConfigFields<'_>,
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    // Read in any case, since files have all of them.
    let pattern = fields.present("index_topk_pattern");
    let frequency = number(fields, "index_topk_freq", 1)?;
    let offset = number(fields, "index_skip_topk_offset", 2)?;
    let types = fields.present("indexer_types");
    let (field, value, found) = match (types, pattern) {
        (Some(types), _) => ("indexer_types", types, list(types)),
        (None, Some(pattern)) => ("index_topk_pattern", pattern, letters(pattern)),
        (None, None) => {
            let place = |layer: u64| (layer + 1).saturating_sub(offset);
            let has_indexer = |layer| place(layer).is_multiple_of(frequency.max(1));
            if !has_indexer(0) {
                let offset = Value::from(offset);
                let expected = "an offset with which the first layer has an indexer";
                return Err(wrong("index_skip_topk_offset", &offset, expected));
            }
            return Ok((0..layers as u64).map(has_indexer).collect());
        }
    };
    let complete = found.filter(|list| list.len() >= layers && list.first() == Some(&true));
    let expected = "full or shared for each layer, full for the first";
    let complete = complete.ok_or_else(|| wrong(field, value, expected))?;
    Ok(complete.into_iter().take(layers).collect())
}

/// Returns a whole number from 0 on, or `default` if the field is absent.
fn number(
    fields: &ConfigFields<'_>,
    field: &'static str,
    default: u64,
) -> Result<u64, ConfigError> {
    fields.present(field).map_or(Ok(default), |value| {
        value.as_u64().ok_or_else(|| wrong(field, value, "a whole number"))
    })
}

fn list(types: &Value) -> Option<Vec<bool>> {
    let has_indexer = |kind: &Value| match kind.as_str() {
        Some("full") => Some(true),
        Some("shared") => Some(false),
        _ => None,
    };
    types.as_array()?.iter().map(has_indexer).collect()
}

/// Parses a pattern such as `FSSF`, or a list of full and shared.
fn letters(pattern: &Value) -> Option<Vec<bool>> {
    let Some(text) = pattern.as_str() else { return list(pattern) };
    let has_indexer = |letter: char| match letter {
        'F' => Some(true),
        'S' => Some(false),
        _ => None,
    };
    text.chars().map(has_indexer).collect()
}

/// Returns the pieces of a tensor that are an indexer's; none in a layer without one.
pub(super) fn pieces(
    config: &ModelConfig,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Vec<TensorSlice> {
    let indexer = config.of_layer(layer).own_indexer();
    let (Some(latent), Some(indexer)) = (config.latent, indexer) else { return Vec::new() };
    let whole = |tensor: &str, shape: &[usize]| {
        let name = format!("model.layers.{layer}.self_attn.indexer.{tensor}");
        TensorSlice::whole(name, shape)
    };
    let (hidden, size) = (config.hidden_size, indexer.head_dim);
    match (op, part) {
        (Op::K, TensorPart::Matrix) => {
            key_pieces(&latent, indexer, &whole("wk.weight", &[size, hidden]))
        }
        (Op::K, _) => {
            let norm = ["k_norm.weight", "k_norm.bias"].map(|name| whole(name, &[size]));
            norm.iter().flat_map(|vector| key_pieces(&latent, indexer, vector)).collect()
        }
        (Op::IndexQuery, _) => {
            let shape = [indexer.query_size(), latent.q_rank.unwrap_or(0)];
            query_pieces(&latent, indexer, &whole("wq_b.weight", &shape))
        }
        _ => vec![whole("weights_proj.weight", &[indexer.heads, hidden])],
    }
}

/// Returns the pieces of the indexer's key in a matrix or a vector of a layer: its rotated rows in
/// the order of a rope that rotates halves, and the others. `whole` has a row or an element per
/// element of the key.
fn key_pieces(
    latent: &LatentAttention,
    indexer: &Indexer,
    whole: &TensorSlice,
) -> Vec<TensorSlice> {
    let rest = whole.clone().rows_from(latent.rope_dim, indexer.head_dim - latent.rope_dim);
    let rotated = if whole.shape.len() == 1 {
        rotated_elements(latent, indexer, whole)
    } else {
        rotated_rows(indexer.rotates_neighbours, latent.rope_dim, whole, 0)
    };
    rotated.into_iter().chain((rest.rows * rest.columns > 0).then_some(rest)).collect()
}

/// Returns the rotated elements of a vector.
fn rotated_elements(
    latent: &LatentAttention,
    indexer: &Indexer,
    whole: &TensorSlice,
) -> Vec<TensorSlice> {
    if !indexer.rotates_neighbours {
        return vec![whole.clone().rows_from(0, latent.rope_dim)];
    }
    let columns = latent.rope_dim / 2;
    let half = |first: usize| TensorSlice { first, columns, strides: (1, 2), ..whole.clone() };
    vec![half(0), half(1)]
}

/// Returns the pieces of the queries of all heads.
fn query_pieces(
    latent: &LatentAttention,
    indexer: &Indexer,
    whole: &TensorSlice,
) -> Vec<TensorSlice> {
    let of_head = |head: usize| {
        let first = head * indexer.head_dim;
        let rotated = rotated_rows(indexer.rotates_neighbours, latent.rope_dim, whole, first);
        let count = indexer.head_dim - latent.rope_dim;
        let rest = whole.clone().rows_from(first + latent.rope_dim, count);
        rotated.into_iter().chain((count > 0).then_some(rest))
    };
    (0..indexer.heads).flat_map(of_head).collect()
}
