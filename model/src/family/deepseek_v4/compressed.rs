//! Layers with compressed entries in `config.json` and in safetensors files.

use serde_json::Value;

use super::{TensorSlice, elements_of_head, rotary_dim, rows_of_heads};
use crate::compression::PositionCompression;
use crate::config::ModelConfig;
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_rope::{RopeDefaults, rope_of_scaling, rope_of_type};
use crate::indexer::{Indexer, PositionSelection};
use crate::layers::LayerKind;
use crate::ops::Op;
use crate::rope::Rope;
use crate::source::TensorPart;

/// Types of layers.
const WINDOWED: &str = "sliding_attention";
const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";
/// Types of layers by their rates of compression in published files.
const RATES: [(u64, &str); 3] = [(0, WINDOWED), (4, SPARSE), (128, HEAVY)];

/// Default values of fields, those of the configuration class in transformers.
const SPARSE_RATE: usize = 4;
const HEAVY_RATE: usize = 128;
const THETA: f64 = 160_000.0;
const INDEX_HEADS: usize = 64;
const INDEX_DIM: usize = 128;
const INDEX_TOP_K: usize = 512;

/// Returns the kind of each layer, from that of layers with a window alone, and the indexer of
/// layers that select entries.
pub(super) fn layer_kinds(
    fields: &ConfigFields<'_>,
    model: &ModelConfig,
    windowed: &LayerKind,
) -> Result<(Vec<LayerKind>, Option<Indexer>), ConfigError> {
    let types = layer_types(fields, model.num_layers)?;
    let [sparse, heavy] = compressions(fields)?;
    fields.present("compress_rope_theta");
    let compresses = types.iter().any(|kind| *kind != WINDOWED);
    let rope = compresses.then(|| rope(fields, model)).transpose()?;
    let indexer = indexer(fields, model)?;
    let compressed = |compression: PositionCompression, selection| LayerKind {
        compression: Some(compression),
        selection,
        rope: rope.clone(),
        ..windowed.clone()
    };
    let kinds: Vec<_> = types
        .iter()
        .map(|kind| match *kind {
            SPARSE => compressed(sparse, PositionSelection::Own),
            HEAVY => compressed(heavy, PositionSelection::All),
            _ => windowed.clone(),
        })
        .collect();
    let window = windowed.window.unwrap_or(usize::MAX);
    for (name, compression) in [(SPARSE, sparse), (HEAVY, heavy)] {
        // Unfinished groups are in the cache of the window.
        if types.contains(&name) && compression.positions() > window {
            let found = Value::from(compression.rate);
            return Err(wrong("compress_rates", &found, "a rate within sliding_window"));
        }
    }
    let selects = types.contains(&SPARSE);
    if selects && indexer.head_dim < rotary_dim(model) {
        let size = Value::from(indexer.head_dim);
        return Err(wrong("index_head_dim", &size, "at least qk_rope_head_dim"));
    }
    Ok((kinds, selects.then_some(indexer)))
}

/// Returns the type of each layer, by its name or by its rate of compression.
fn layer_types<'a>(fields: &ConfigFields<'a>, layers: usize) -> Result<Vec<&'a str>, ConfigError> {
    let by_name = |value: &Value| {
        RATES.iter().find(|(_, name)| value.as_str() == Some(name)).map(|(_, name)| *name)
    };
    let by_rate = |value: &Value| {
        let rate = value.as_u64()?;
        RATES.iter().find(|(known, _)| *known == rate).map(|(_, name)| *name)
    };
    let (names, ratios) = (fields.present("layer_types"), fields.present("compress_ratios"));
    let found: Option<Vec<_>> = match (names, ratios) {
        (Some(names), _) => names.as_array().and_then(|list| list.iter().map(by_name).collect()),
        (None, Some(rates)) => rates.as_array().and_then(|list| list.iter().map(by_rate).collect()),
        (None, None) => {
            let default =
                |layer: usize| if layer < 2 || layer.is_multiple_of(2) { HEAVY } else { SPARSE };
            return Ok((0..layers).map(default).collect());
        }
    };
    let Some(mut found) = found else {
        return Err(match (names, ratios) {
            (Some(names), _) => {
                wrong("layer_types", names, "one of the types of DeepSeek V4 for each layer")
            }
            (None, ratios) => {
                let ratios = ratios.unwrap_or(&Value::Null);
                wrong("compress_ratios", ratios, "0, 4 or 128 for each layer")
            }
        });
    };
    if found.len() < layers {
        return Err(wrong("layer_types", &Value::from(found.len()), "a type for each layer"));
    }
    // Layers after the last one draft tokens.
    found.truncate(layers);
    Ok(found)
}

/// Returns the compressions of layers that select entries, and of layers that attend to all.
fn compressions(fields: &ConfigFields<'_>) -> Result<[PositionCompression; 2], ConfigError> {
    let block = fields.block("compress_rates");
    let rate = |inside: &'static str, outside: &'static str, default: usize| {
        let inside = block.as_ref().map(|block| block.optional_size(inside)).transpose()?.flatten();
        let rate = fields.optional_size(outside)?.or(inside).unwrap_or(default);
        match rate {
            2.. => Ok(rate),
            _ => Err(wrong("compress_rates", &Value::from(rate), "rates of at least 2")),
        }
    };
    let sparse = rate(SPARSE, "compress_rate_csa", SPARSE_RATE)?;
    let heavy = rate(HEAVY, "compress_rate_hca", HEAVY_RATE)?;
    Ok([
        PositionCompression { rate: sparse, overlaps: true },
        PositionCompression { rate: heavy, overlaps: false },
    ])
}

/// Returns the rotary positions of layers with entries. A scaling does not multiply sines and
/// cosines unless the file says so.
fn rope(fields: &ConfigFields<'_>, model: &ModelConfig) -> Result<Rope, ConfigError> {
    let theta = fields.positive("compress_rope_theta")?.unwrap_or(THETA);
    let rotated = rotary_dim(model) as f64 / model.head_dim as f64;
    let defaults = RopeDefaults {
        theta,
        head_dim: model.head_dim,
        max_positions: model.max_positions,
        can_be_partial: true,
        rotated,
        has_temperature: false,
    };
    let rope = match rope_of_type(fields, "compress", defaults)? {
        Some(rope) => rope,
        None => rope_of_scaling(fields, defaults)?,
    };
    if rope.depends_on_length() {
        let what = "compressed entries whose rotation depends on a sequence's length".to_owned();
        return Err(ConfigError::Unsupported { what, hint: "" });
    }
    Ok(rope)
}

fn indexer(fields: &ConfigFields<'_>, model: &ModelConfig) -> Result<Indexer, ConfigError> {
    let size = |field: &'static str, default: usize| -> Result<usize, ConfigError> {
        Ok(fields.optional_size(field)?.unwrap_or(default))
    };
    Ok(Indexer {
        heads: size("index_n_heads", INDEX_HEADS)?,
        head_dim: size("index_head_dim", INDEX_DIM)?,
        // No row has more positions.
        top_k: size("index_topk", INDEX_TOP_K)?.min(model.max_positions),
        rotates_neighbours: true,
    })
}

/// Returns the pieces of an operation that computes entries or selects them: those of a layer's
/// queries of its indexer, of its values and gates, or of their compression. Rotated elements come
/// first, as in queries and keys.
pub(super) fn entry_pieces(
    model: &ModelConfig,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Vec<TensorSlice> {
    let config = model.of_layer(layer);
    let Some(compression) = config.compression() else { return Vec::new() };
    let at = |tensor: String| format!("layers.{layer}.attn.{tensor}");
    let [vector, key] = config.entry_dims();
    let spans = [("compressor", vector), ("indexer.compressor", key)];
    let spans = || spans.iter().filter(|(_, size)| *size > 0);
    let series = compression.series();
    let rows = |name: String, heads: usize, size: usize, columns: usize| {
        let all = TensorSlice::whole(at(name), &[heads * size, columns]);
        rows_of_heads(config, &all, heads, size)
    };
    match (op, part) {
        (Op::IndexQuery, _) => {
            let heads = config.entry_indexer().map_or(0, |indexer| indexer.heads);
            let columns = config.query_rank().unwrap_or(0);
            rows("indexer.wq_b.weight".to_owned(), heads, key, columns)
        }
        (Op::K, _) => spans()
            .flat_map(|(of, size)| ["wkv", "wgate"].map(|linear| (of, *size, linear)))
            .flat_map(|(of, size, linear)| {
                rows(format!("{of}.{linear}.weight"), series, size, config.hidden_size)
            })
            .collect(),
        (_, TensorPart::Gain) => spans()
            .flat_map(|(of, size)| {
                let gains = TensorSlice::whole(at(format!("{of}.norm.weight")), &[*size]);
                elements_of_head(config, &gains, 0, *size)
            })
            .collect(),
        _ => spans()
            .flat_map(|(of, size)| {
                let (count, shape) = (compression.rate * series, [compression.rate, series * size]);
                let biases = TensorSlice::whole(at(format!("{of}.ape")), &shape);
                let of_series =
                    move |index: usize| elements_of_head(config, &biases, index * size, *size);
                (0..count).flat_map(of_series).collect::<Vec<_>>()
            })
            .collect(),
    }
}
