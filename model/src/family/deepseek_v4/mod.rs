//! DeepSeek V4: a residual of several streams, attention with one KV head that is key and value at
//! once, and experts in all layers, which the first layers select by token, with a shared expert.
//! Layers attend to a window, most of them also to compressed entries of all positions before it.

mod compressed;

use serde_json::{Value, json};

use super::description::{Architecture, FamilyDescription, GgufFamily};
use super::llama::{self, Heads, Positions};
use super::tensors::{Layouts, TensorSlice};
use super::{experts, sigmoid_router};
use crate::config::{Activation, Family, Features, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_rope::{RopeDefaults, rope_of_type};
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};
use crate::layers::{ActivationLimits, ExpertRouting, LayerKind, Layers};
use crate::ops::Op;
use crate::rope::{Rope, RopeScaling};
use crate::source::{TensorId, TensorPart};
use crate::streams::{ResidualStreams, STREAMS_MAX};
use crate::unified_kv::UnifiedKv;

/// Default values of fields, those of the configuration class in transformers.
const THETA: f64 = 10_000.0;
const ROTATED: f64 = 64.0 / 512.0;
const WINDOW: usize = 128;
const LIMIT: f64 = 10.0;
const ROUTED_SCALE: f64 = 1.5;
const STREAM_EPS: f64 = 1e-6;
const STREAMS: usize = 4;
const ITERATIONS: usize = 20;
/// Default number of first layers that select experts by token.
const BY_TOKEN: usize = 3;

/// Fields of layers that draft tokens, which are not computed.
const OF_DRAFTS: [&str; 4] =
    ["dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids"];

const SCORING: ExpertScoring = ExpertScoring::SqrtSoftplusTopK { sum: ScoreSum::Plus(1e-20) };
pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "DeepseekV4ForCausalLM", model_type: "deepseek_v4", config }],
    layouts,
    GgufFamily::NONE,
);

/// Parses `DeepseekV4ForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    for field in ["attention_bias", "mlp_bias"] {
        fields.only(field, &Value::Bool(false))?;
    }
    fields.only("num_key_value_heads", &json!(1))?;
    fields.only("scoring_func", &json!("sqrtsoftplus"))?;
    fields.only("topk_method", &json!("noaux_tc"))?;
    fields.only("norm_topk_prob", &Value::Bool(true))?;
    check_expert_dtype(fields)?;
    for field in OF_DRAFTS {
        fields.present(field);
    }
    let model = base(name, fields)?;
    let limit = fields.positive("swiglu_limit")?.unwrap_or(LIMIT) as f32;
    let limits = ActivationLimits { experts: Some(limit), network: Some(limit) };
    let window = Some(fields.optional_size("sliding_window")?.unwrap_or(WINDOW));
    let windowed = LayerKind { window, limits, ..model.layers.kind(0).clone() };
    let (kinds, indexer) = compressed::layer_kinds(fields, &model, &windowed)?;
    let by_token = by_token(fields, model.num_layers)?;
    let layers = kinds.into_iter().zip(by_token).map(|(kind, by_token)| {
        let routing = if by_token { ExpertRouting::ByToken } else { ExpertRouting::ByScores };
        LayerKind { routing, ..kind }
    });
    let layers = Layers::from_kinds(layers.collect::<Vec<_>>());
    let features = Features { indexer, ..model.features };
    Ok(ModelConfig { layers, features, ..model }.with_kind_models())
}

/// Refuses types of experts that no checkpoint is read with. Their tensors define the actual one.
fn check_expert_dtype(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    const FIELD: &str = "expert_dtype";
    match fields.present(FIELD) {
        Some(dtype) if !matches!(dtype.as_str(), Some("fp4" | "fp8" | "bf16")) => {
            Err(wrong(FIELD, dtype, "fp4, fp8 or bf16"))
        }
        _ => Ok(()),
    }
}

/// Parses everything but the differences between layers.
fn base(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let (count, size) = (fields.size("num_attention_heads")?, fields.size("head_dim")?);
    let heads = Heads { hidden: fields.size("hidden_size")?, count, kv_count: 1, size };
    let max = fields.size("max_position_embeddings")?;
    let positions = Positions { max, rope: Some(rope(fields, size, max)?) };
    let ffn_field = "moe_intermediate_size";
    let family = Family::DeepseekV4;
    let model = llama::base_of_heads(family, name, fields, ffn_field, positions, heads)?;
    let unified_kv = Some(unified_kv(fields, count)?);
    let streams = Some(streams(fields)?);
    let model = ModelConfig {
        max_positions: max,
        activation: Activation::SiluOfLimited,
        sinks: true,
        features: Features { unified_kv, streams, ..Features::default() },
        ..model
    };
    let ffn_size = model.ffn_size;
    let experts =
        Experts::new(experts::count(fields)?, experts::per_token(fields)?, ffn_size, SCORING);
    let scale = fields.positive("routed_scaling_factor")?.unwrap_or(ROUTED_SCALE) as f32;
    let selection = ExpertSelection { bias: true, groups: None, scale, is_f32: true };
    let shared = experts::shared_ffn_size(fields, "n_shared_experts", ffn_size)?;
    let shared = shared.unwrap_or(ffn_size);
    let is_dense = vec![false; model.num_layers];
    let experts = Experts { selection, ..experts };
    let shared = Some((shared, sigmoid_router::SHARED));
    Ok(experts::with_experts(model, experts, shared, &is_dense))
}

/// Returns the sizes of attention's linears.
fn unified_kv(fields: &ConfigFields<'_>, heads: usize) -> Result<UnifiedKv, ConfigError> {
    let out_groups = fields.size("o_groups")?;
    if !heads.is_multiple_of(out_groups) {
        return Err(wrong("o_groups", &Value::from(out_groups), "a divisor of the heads"));
    }
    let (q_rank, out_rank) = (fields.size("q_lora_rank")?, fields.size("o_lora_rank")?);
    Ok(UnifiedKv { q_rank, out_groups, out_rank })
}

fn streams(fields: &ConfigFields<'_>) -> Result<ResidualStreams, ConfigError> {
    let count = fields.optional_size("hc_mult")?.unwrap_or(STREAMS);
    if count > STREAMS_MAX {
        return Err(wrong("hc_mult", &Value::from(count), "at most 8 streams"));
    }
    let iterations = fields.optional_size("hc_sinkhorn_iters")?.unwrap_or(ITERATIONS);
    if iterations > 1000 {
        return Err(wrong("hc_sinkhorn_iters", &Value::from(iterations), "at most 1000"));
    }
    let eps = fields.positive("hc_eps")?.unwrap_or(STREAM_EPS) as f32;
    Ok(ResidualStreams { count, iterations, eps })
}

/// Returns the rotary positions of layers without compressed entries: newer files have parameters
/// of each type of layers, and in others a scaling is that of layers with entries.
fn rope(
    fields: &ConfigFields<'_>,
    head_dim: usize,
    max_positions: usize,
) -> Result<Rope, ConfigError> {
    let theta = fields.positive("rope_theta")?.unwrap_or(THETA);
    let rope_dim = fields.optional_size("qk_rope_head_dim")?;
    let fraction = rope_dim.map(|dim| dim as f64 / head_dim as f64);
    let outside = fields.positive("partial_rotary_factor")?;
    let rotated = outside.or(fraction).unwrap_or(ROTATED);
    let defaults = RopeDefaults {
        theta,
        head_dim,
        max_positions,
        can_be_partial: true,
        rotated,
        has_temperature: false,
    };
    if let Some(rope) = rope_of_type(fields, "main", defaults)? {
        return Ok(rope);
    }
    let dim = (head_dim as f64 * rotated) as usize;
    if dim == 0 || !dim.is_multiple_of(2) || dim > head_dim {
        return Err(wrong("qk_rope_head_dim", &Value::from(dim), "an even part of a head"));
    }
    Ok(Rope { rotary_dim: Some(dim), ..Rope::new(theta, RopeScaling::None) })
}

/// Returns a flag per layer that is true if it selects experts by token.
fn by_token(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    const FIELD: &str = "mlp_layer_types";
    let first = experts::count_or(fields, "num_hash_layers", BY_TOKEN)?;
    let Some(types) = fields.present(FIELD) else {
        return Ok((0..layers).map(|layer| layer < first).collect());
    };
    let is_by_token = |kind: &Value| match kind.as_str() {
        Some("hash_moe") => Some(true),
        Some("moe") => Some(false),
        _ => None,
    };
    let list = types.as_array().filter(|list| list.len() >= layers);
    let found = list.and_then(|list| list.iter().take(layers).map(is_by_token).collect());
    found.ok_or_else(|| wrong(FIELD, types, "hash_moe or moe for each layer"))
}

/// Returns the possible layouts of a tensor: as published, and as transformers saves it.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let mut pieces = published(config, id);
    for piece in &mut pieces {
        let saved: Vec<String> = piece.names.iter().map(|name| saved_name(name)).collect();
        piece.names.extend(saved);
    }
    vec![pieces]
}

/// Returns the name with which transformers saves a tensor that is published as `name`.
fn saved_name(name: &str) -> String {
    let name = name.replace("hc_head_", "hc_head.hc_").replace("attn.kv_norm.", "attn.norm.");
    match name.as_str() {
        "head.weight" => name,
        "embed.weight" => "model.embed_tokens.weight".to_owned(),
        _ => format!("model.{name}"),
    }
}

/// Returns the pieces of a tensor with their published names; empty for a tensor that the family
/// does not have.
fn published(config: &ModelConfig, id: TensorId) -> Vec<TensorSlice> {
    let whole = |name: &str| llama::whole(config, id, name.to_owned());
    match id {
        TensorId::Embedding => whole("embed.weight"),
        TensorId::Head if config.tied_embeddings => whole("embed.weight"),
        TensorId::Head => whole("head.weight"),
        TensorId::FinalNorm { part: TensorPart::Gain } => whole("norm.weight"),
        TensorId::FinalNorm { part: TensorPart::Matrix } => whole("hc_head_fn"),
        TensorId::FinalNorm { part: TensorPart::Bias } => vec![
            TensorSlice::whole("hc_head_base".to_owned(), &[config.stream_count()]),
            TensorSlice::whole("hc_head_scale".to_owned(), &[1]),
        ],
        TensorId::Layer { layer, op, part } => layer_pieces(config, id, layer, op, part),
        TensorId::Positions
        | TensorId::PerLayerTable
        | TensorId::PerLayerProjection { .. }
        | TensorId::JoinHidden { .. } => Vec::new(),
    }
}

/// Returns the pieces of a tensor of a layer.
fn layer_pieces(
    config: &ModelConfig,
    id: TensorId,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Vec<TensorSlice> {
    let at = |tensor: &str| format!("layers.{layer}.{tensor}");
    let whole = |tensor: &str| llama::whole(config, id, at(tensor));
    let tensor = match (op, part) {
        (Op::Q | Op::K, TensorPart::Matrix) => {
            let (tensor, heads) = match op {
                Op::Q => ("attn.wq_b.weight", config.num_heads),
                _ => ("attn.wkv.weight", 1),
            };
            let columns =
                if op == Op::Q { config.query_rank().unwrap_or(0) } else { config.hidden_size };
            let all = TensorSlice::whole(at(tensor), &[heads * config.head_dim, columns]);
            let mut pieces = rows_of_heads(config, &all, heads, config.head_dim);
            if op == Op::K {
                pieces.extend(compressed::entry_pieces(config, layer, op, part));
            }
            return pieces;
        }
        (Op::Compress | Op::IndexQuery, _) => {
            return compressed::entry_pieces(config, layer, op, part);
        }
        (Op::K, _) => {
            let gain = TensorSlice::whole(at("attn.kv_norm.weight"), &[config.head_dim]);
            return elements_of_head(config, &gain, 0, config.head_dim);
        }
        (Op::Router, TensorPart::Gain) if routes_by_token(config, layer) => {
            let per_token = config.experts.map_or(0, |experts| experts.per_token);
            let name = at("ffn.gate.tid2eid");
            let table = TensorSlice::whole(name, &[config.vocab_size, per_token]);
            return vec![TensorSlice { rows: 1, columns: table.rows * table.columns, ..table }];
        }
        (Op::ExpertGate | Op::ExpertUp | Op::ExpertDown, _) => {
            return expert_pieces(config, layer, op);
        }
        (Op::IndexWeights, _) => "attn.indexer.weights_proj.weight",
        (Op::QDown, TensorPart::Matrix) => "attn.wq_a.weight",
        (Op::QDown, _) => "attn.q_norm.weight",
        (Op::Softmax, _) => "attn.attn_sink",
        (Op::OutDown, _) => "attn.wo_a.weight",
        (Op::Out, _) => "attn.wo_b.weight",
        (Op::Norm0, _) => "attn_norm.weight",
        (Op::Norm1, _) => "ffn_norm.weight",
        (Op::StreamMap0, TensorPart::Matrix) => "hc_attn_fn",
        (Op::StreamMap0, TensorPart::Bias) => "hc_attn_base",
        (Op::StreamMap0, TensorPart::Gain) => "hc_attn_scale",
        (Op::StreamMap1, TensorPart::Matrix) => "hc_ffn_fn",
        (Op::StreamMap1, TensorPart::Bias) => "hc_ffn_base",
        (Op::StreamMap1, TensorPart::Gain) => "hc_ffn_scale",
        (Op::Router, TensorPart::Matrix) => "ffn.gate.weight",
        (Op::Router, _) => "ffn.gate.bias",
        (Op::Gate, _) => "ffn.shared_experts.w1.weight",
        (Op::Up, _) => "ffn.shared_experts.w3.weight",
        (Op::Down, _) => "ffn.shared_experts.w2.weight",
        _ => return Vec::new(),
    };
    whole(tensor)
}

fn routes_by_token(config: &ModelConfig, layer: usize) -> bool {
    config.layers.kind(layer).routing == ExpertRouting::ByToken
}

fn expert_pieces(config: &ModelConfig, layer: usize, op: Op) -> Vec<TensorSlice> {
    let Some(Experts { count, ffn_size, .. }) = config.experts else { return Vec::new() };
    let hidden = config.hidden_size;
    let (matrix, shape) = match op {
        Op::ExpertGate => ("w1", [ffn_size, hidden]),
        Op::ExpertUp => ("w3", [ffn_size, hidden]),
        _ => ("w2", [hidden, ffn_size]),
    };
    let name = |expert: usize| format!("layers.{layer}.ffn.experts.{expert}.{matrix}.weight");
    (0..count).map(|expert| TensorSlice::whole(name(expert), &shape)).collect()
}

/// Returns the number of rotated elements of a head.
fn rotary_dim(config: &ModelConfig) -> usize {
    let rope = config.layers.kind(0).rope.as_ref();
    rope.map_or(0, |rope| rope.rotary_dim(config.head_dim))
}

/// Returns the rows of the heads of `head_dim` rows of a whole matrix: of each head the rotated
/// ones, in the order of a rope that rotates halves, and then the others.
fn rows_of_heads(
    config: &ModelConfig,
    whole: &TensorSlice,
    heads: usize,
    head_dim: usize,
) -> Vec<TensorSlice> {
    let rotated = rotary_dim(config);
    let others = head_dim - rotated;
    let of_head = |head: usize| {
        let first = head * head_dim;
        let half = |first: usize| TensorSlice {
            first: first * whole.columns,
            rows: rotated / 2,
            strides: (2 * whole.columns, 1),
            ..whole.clone()
        };
        let rest = (others > 0).then(|| whole.clone().rows_from(first, others));
        [half(first + others), half(first + others + 1)].into_iter().chain(rest)
    };
    (0..heads).flat_map(of_head).collect()
}

/// Returns `head_dim` elements of a whole tensor from `first` on, as a vector in the order of
/// [`rows_of_heads`].
fn elements_of_head(
    config: &ModelConfig,
    whole: &TensorSlice,
    first: usize,
    head_dim: usize,
) -> Vec<TensorSlice> {
    let rotated = rotary_dim(config);
    let others = head_dim - rotated;
    let piece = |first: usize, columns: usize, step: usize| TensorSlice {
        first,
        rows: 1,
        columns,
        strides: (whole.strides.0, step),
        ..whole.clone()
    };
    let half = |at: usize| piece(first + at, rotated / 2, 2);
    let rest = (others > 0).then(|| piece(first, others, 1));
    [half(others), half(others + 1)].into_iter().chain(rest).collect()
}
