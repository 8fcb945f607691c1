//! Gemma 4: a norm before and after each half of a layer, heads of another size in layers without a
//! window, a norm of each head of v, and a factor of the residual stream per layer. Larger models
//! compute values by the matrix of keys in layers without a window, and one has experts next to the
//! dense network; in smaller ones the last layers attend to the caches of earlier ones, and each
//! layer has inputs of its own.

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::tensors::{Layouts, stacked};
use super::{experts, gemma3, layer_types, llama, nested, per_layer_config};
use crate::config::{Activation, Family, Features, ModelConfig, PerLayerInputs, QkNorm, Scales};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::config_rope::{RopeDefaults, rope_of_type};
use crate::experts::{ExpertScoring, Experts};
use crate::hidden_states::HiddenStates;
use crate::layers::{CacheSharing, FeedForward, LayerKind, LayerSizes, Layers};
use crate::ops::Op;
use crate::rope::{Rope, RopeScaling};
use crate::source::{TensorId, TensorPart};

/// Default values of fields, those of the configuration class in transformers.
const HEADS: usize = 8;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 256;
const GLOBAL_HEAD_DIM: usize = 512;
const VOCABULARY: usize = 262_144;
const POSITIONS: usize = 131_072;
const WINDOW: usize = 512;
const PER_LAYER_SIZE: usize = 256;
const THETA: f64 = 1e6;
const LOCAL_THETA: f64 = 1e4;
/// Default fraction of the pairs of a head that are rotated in layers without a window.
const ROTATED: f64 = 0.25;
/// Interval of the layers without a window.
const PATTERN: usize = 6;
/// Maximum number of different sizes of heads. Published models have two.
const SIZES_MAX: usize = 16;
const SCORING: ExpertScoring = ExpertScoring::SoftmaxTopK { renormalise: true };

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    ..FamilyDescription::new(
        &[
            Architecture { name: "Gemma4ForCausalLM", model_type: "gemma4_text", config },
            Architecture {
                name: "Gemma4ForConditionalGeneration",
                model_type: "gemma4",
                config: |name, fields| {
                    nested::text_config("gemma4_text", fields, |text| config(name, text))
                },
            },
        ],
        layouts,
        GgufFamily {
            activation: Activation::GeluTanh,
            has_post_norms: true,
            qk_norm: Some(QkNorm::PerHead),
            has_layer_sizes: true,
            experts: Some(GgufExperts {
                feed_forward: FeedForward::ParallelExperts,
                ..GgufExperts::scored(SCORING)
            }),
            experts_are_optional: true,
            keys: &["attention.shared_kv_layers", "final_logit_softcapping"],
            stem,
            ..GgufFamily::named(&["gemma4"])
        },
    )
};

/// Parses `Gemma4ForCausalLM`, and the text model of `Gemma4ForConditionalGeneration`.
pub(super) fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    // Images alone attend in both directions.
    if let Some(other) =
        fields.text("use_bidirectional_attention").filter(|tokens| *tokens != "vision")
    {
        return Err(unsupported(format!("use_bidirectional_attention = {other}")));
    }
    let model = base(name, fields)?;
    if model.experts.is_some() && model.features.per_layer_inputs.is_some() {
        return Err(unsupported("experts together with hidden_size_per_layer_input".to_owned()));
    }
    let kinds = attention_kinds(fields, &model)?;
    let shared = experts::count_or(fields, "num_kv_shared_layers", 0)?;
    let is_wide = fields.flag("use_double_wide_mlp", false)?;
    let readers_ffn = if is_wide { 2 * model.ffn_size } else { model.ffn_size };
    let layers = shared_caches(kinds, shared, model.sizes(), readers_ffn).ok_or_else(|| {
        let without = "without layers that compute their keys";
        unsupported(format!("num_kv_shared_layers = {shared} {without}"))
    })?;
    Ok(ModelConfig { layers: Layers::from_kinds(layers), ..model }.with_kind_models())
}

fn unsupported(what: String) -> ConfigError {
    ConfigError::Unsupported { what, hint: "" }
}

/// Parses the fields that all layers share.
fn base(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let size = |field, default| -> Result<usize, ConfigError> {
        Ok(fields.optional_size(field)?.unwrap_or(default))
    };
    let hidden = fields.size("hidden_size")?;
    let bias = fields.flag("attention_bias", false)?;
    let num_layers = check_layers(fields.size("num_hidden_layers")?)?;
    Ok(ModelConfig {
        name: name.to_owned(),
        family: Family::Gemma4,
        num_layers,
        hidden_size: hidden,
        num_heads: size("num_attention_heads", HEADS)?,
        num_kv_heads: size("num_key_value_heads", KV_HEADS)?,
        head_dim: size("head_dim", HEAD_DIM)?,
        ffn_size: fields.size("intermediate_size")?,
        vocab_size: size("vocab_size", VOCABULARY)?,
        max_positions: size("max_position_embeddings", POSITIONS)?,
        norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        activation: fields.activation(
            "hidden_activation",
            Activation::GeluTanh,
            &[("gelu_pytorch_tanh", Activation::GeluTanh)],
            " in this family (supported: gelu_pytorch_tanh)",
        )?,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: experts_of(fields, hidden)?,
        qkv_bias: bias,
        out_bias: bias,
        ffn_bias: false,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
        qk_norm: Some(QkNorm::PerHead),
        pre_norms: true,
        post_norms: true,
        delta: None,
        latent: None,
        mamba: None,
        output_gate: false,
        sinks: false,
        scales: scales(hidden),
        features: Features {
            logit_cap: fields.positive("final_logit_softcapping")?.map(|cap| cap as f32),
            per_layer_inputs: per_layer_inputs(fields, num_layers)?,
            values_from_keys: fields.flag("attention_k_eq_v", false)?,
            ..FEATURES
        },
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    })
}

fn per_layer_inputs(
    fields: &ConfigFields<'_>,
    layers: usize,
) -> Result<Option<PerLayerInputs>, ConfigError> {
    const SIZE: &str = "hidden_size_per_layer_input";
    // A field that is absent has the default, but null is none.
    let is_null = fields.has(SIZE) && fields.present(SIZE).is_none();
    let size = experts::count_or(fields, SIZE, if is_null { 0 } else { PER_LAYER_SIZE })?;
    let vocab_size = fields.optional_size("vocab_size_per_layer_input")?.unwrap_or(VOCABULARY);
    Ok((size > 0).then_some(PerLayerInputs { size, layers, vocab_size }))
}

/// Features of all models of the family.
pub(crate) const FEATURES: Features = Features {
    value_norm: true,
    layer_scale: true,
    logit_cap: None,
    rounds_embedding_scale: true,
    per_layer_inputs: None,
    values_from_keys: false,
    indexer: None,
    gates_heads: false,
    unified_kv: None,
    streams: None,
    prediction_layer: None,
    hidden_states: HiddenStates::Internal,
    kind_models: Vec::new(),
};

/// Returns the factors of a model with a hidden state of `hidden` elements.
pub(crate) fn scales(hidden: usize) -> Scales {
    Scales { embedding: (hidden as f32).sqrt(), attention: Some(1.0), ..Scales::default() }
}

/// Returns experts with the rules of this family's router for rows of `hidden` elements.
pub(crate) fn with_router(experts: Experts, hidden: usize) -> Experts {
    Experts { has_factors: true, logit_factor: (hidden as f32).powf(-0.5), ..experts }
}

fn experts_of(fields: &ConfigFields<'_>, hidden: usize) -> Result<Option<Experts>, ConfigError> {
    const NAMES: [&str; 3] = ["num_experts", "top_k_experts", "moe_intermediate_size"];
    if !fields.flag("enable_moe_block", false)? {
        NAMES.iter().for_each(|name| _ = fields.present(name));
        return Ok(None);
    }
    let [count, per_token, ffn_size] = NAMES.map(|name| fields.size(name));
    let experts = Experts::new(count?, per_token?, ffn_size?, SCORING);
    Ok(Some(with_router(experts, hidden)))
}

/// Returns the kind of each layer, with caches of its own.
fn attention_kinds(
    fields: &ConfigFields<'_>,
    model: &ModelConfig,
) -> Result<Vec<LayerKind>, ConfigError> {
    let count = model.num_layers;
    let window = fields.optional_size("sliding_window")?.unwrap_or(WINDOW);
    let mut windowed = match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, count)?,
        None => (0..count).map(|layer| (layer + 1) % PATTERN != 0).collect(),
    };
    // transformers forces the last layer to attend to all positions.
    windowed.iter_mut().skip(count - 1).for_each(|windowed| *windowed = false);
    let sizes = head_sizes(fields, model, &windowed)?;
    let kind = |windowed: bool, sizes: LayerSizes| -> Result<LayerKind, ConfigError> {
        let (name, theta) =
            if windowed { ("sliding_attention", LOCAL_THETA) } else { ("full_attention", THETA) };
        let defaults = RopeDefaults {
            theta,
            head_dim: sizes.head_dim,
            max_positions: model.max_positions,
            can_be_partial: !windowed,
            rotated: 1.0,
            has_temperature: false,
        };
        let rope = match (rope_of_type(fields, name, defaults)?, windowed) {
            (Some(rope), _) => rope,
            (None, true) => Rope::new(theta, RopeScaling::None),
            (None, false) => {
                let rotated_pairs = (sizes.head_dim as f64 * ROTATED) as usize / 2;
                Rope::new(theta, RopeScaling::Proportional { rotated_pairs })
            }
        };
        Ok(LayerKind {
            window: windowed.then_some(window),
            feed_forward: match model.experts {
                Some(_) => FeedForward::ParallelExperts,
                None => FeedForward::Dense,
            },
            sizes: Some(sizes).filter(|sizes| *sizes != model.sizes()),
            ..LayerKind::dense(Some(rope))
        })
    };
    windowed.into_iter().zip(sizes).map(|(windowed, sizes)| kind(windowed, sizes)).collect()
}

/// Returns the sizes of each layer: according to `per_layer_config`, which newer versions of
/// transformers write, or else to fields for the layers without a window.
fn head_sizes(
    fields: &ConfigFields<'_>,
    model: &ModelConfig,
    windowed: &[bool],
) -> Result<Vec<LayerSizes>, ConfigError> {
    let of_all = model.sizes();
    let global_dim = fields.optional_size("global_head_dim")?.unwrap_or(GLOBAL_HEAD_DIM);
    let global_kv = fields.optional_size("num_global_key_value_heads")?;
    let global_kv = global_kv.filter(|_| model.features.values_from_keys);
    let mut sizes = vec![of_all; windowed.len()];
    let has_own = per_layer_config::read_layers(fields, windowed.len(), |layer, own| {
        let head_dim = own.optional_size("head_dim")?.unwrap_or(of_all.head_dim);
        let kv_heads = own.optional_size("num_key_value_heads")?.unwrap_or(of_all.num_kv_heads);
        sizes[layer] = LayerSizes { head_dim, num_kv_heads: kv_heads, ..of_all };
        Ok(())
    })?;
    if !has_own {
        let num_kv_heads = global_kv.unwrap_or(of_all.num_kv_heads);
        let global = LayerSizes { head_dim: global_dim, num_kv_heads, ..of_all };
        return Ok(windowed.iter().map(|local| if *local { of_all } else { global }).collect());
    }
    let mut distinct = Vec::new();
    for sizes in &sizes {
        if !distinct.contains(sizes) {
            distinct.push(*sizes);
        }
        if distinct.len() > SIZES_MAX {
            let what = format!("per_layer_config with more than {SIZES_MAX} sizes of heads");
            return Err(unsupported(what));
        }
    }
    Ok(sizes)
}

/// Returns the kinds of layers of which the last `shared` attend to the caches of the last one
/// before them with the same window, and have networks of width `ffn_size`; `None` if there is no
/// such layer, or if its heads have other sizes. `of_model` are the sizes of kinds without any.
pub(crate) fn shared_caches(
    mut kinds: Vec<LayerKind>,
    shared: usize,
    of_model: LayerSizes,
    ffn_size: usize,
) -> Option<Vec<LayerKind>> {
    let first = kinds.len().checked_sub(shared)?;
    for reader in first..kinds.len() {
        let LayerKind { window, sizes, .. } = kinds[reader];
        let source = (0..first).rev().find(|layer| kinds[*layer].window == window)?;
        let source = &mut kinds[source];
        source.caches = CacheSharing::Source;
        if sizes != source.sizes {
            return None;
        }
        kinds[reader].caches = CacheSharing::Reader;
    }
    for kind in &mut kinds[first..] {
        let sizes = LayerSizes { ffn_size, ..kind.sizes.unwrap_or(of_model) };
        kind.sizes = Some(sizes).filter(|sizes| *sizes != of_model);
    }
    Some(kinds)
}

/// Returns the possible layouts of a tensor.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let whole = |name: &str| vec![llama::whole(config, id, name.to_owned())];
    let (layer, op, part) = match id {
        TensorId::PerLayerTable => return whole("model.embed_tokens_per_layer.weight"),
        TensorId::PerLayerProjection { part: TensorPart::Matrix } => {
            return whole("model.per_layer_model_projection.weight");
        }
        TensorId::PerLayerProjection { .. } => {
            return whole("model.per_layer_projection_norm.weight");
        }
        TensorId::Layer { layer, op, part } => (layer, op, part),
        _ => return vec![llama::pieces(config, id)],
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    let experts = |name: &str, all: usize, first: usize, rows: usize, columns: usize| {
        let count = config.experts.map_or(0, |experts| experts.count);
        vec![stacked(&at(name), count, all, columns, first, rows)]
    };
    let (hidden, ffn) = (config.hidden_size, config.experts.map_or(0, |experts| experts.ffn_size));
    let tensor = match (op, part) {
        (Op::ExpertGate, _) => return experts("experts.gate_up_proj", 2 * ffn, 0, ffn, hidden),
        (Op::ExpertUp, _) => return experts("experts.gate_up_proj", 2 * ffn, ffn, ffn, hidden),
        (Op::ExpertDown, _) => return experts("experts.down_proj", hidden, 0, hidden, ffn),
        (Op::Router, TensorPart::Matrix) => "router.proj.weight",
        (Op::Router, _) => "router.per_expert_scale",
        (Op::RouterNorm, _) => "router.scale",
        (Op::ExpertNorm, _) => "pre_feedforward_layernorm_2.weight",
        (Op::SumNorm, TensorPart::Gain) => "post_feedforward_layernorm_1.weight",
        (Op::SumNorm, _) => "post_feedforward_layernorm_2.weight",
        (Op::PostNorm1 | Op::PerLayerNorm, TensorPart::Bias) => "layer_scalar",
        (Op::PerLayerGate, _) => "per_layer_input_gate.weight",
        (Op::PerLayerOut, _) => "per_layer_projection.weight",
        (Op::PerLayerNorm, _) => "post_per_layer_input_norm.weight",
        (Op::V, TensorPart::Matrix) if config.computes_values_from_keys(layer) => {
            "self_attn.k_proj.weight"
        }
        (Op::V, _) if config.computes_values_from_keys(layer) => "self_attn.k_proj.bias",
        _ => return vec![gemma3::pieces(config, id)],
    };
    vec![llama::whole(config, id, at(tensor))]
}

/// Returns the name of a tensor within a layer of a GGUF file.
fn stem(op: Op, part: TensorPart) -> Option<&'static str> {
    Some(match (op, part) {
        (Op::Router, TensorPart::Gain) => "ffn_down_exps.scale",
        (Op::RouterNorm, _) => "ffn_gate_inp.scale",
        (Op::ExpertNorm, _) => "pre_ffw_norm_2",
        (Op::SumNorm, TensorPart::Gain) => "post_ffw_norm_1",
        (Op::SumNorm, _) => "post_ffw_norm_2.weight",
        (Op::PostNorm1 | Op::PerLayerNorm, TensorPart::Bias) => "layer_output_scale.weight",
        (Op::PerLayerGate, _) => "inp_gate",
        (Op::PerLayerOut, _) => "proj",
        (Op::PerLayerNorm, _) => "post_norm",
        _ => return None,
    })
}
