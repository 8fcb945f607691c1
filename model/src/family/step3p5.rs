//! Step 3.5 and the text model of Step 3.7: windows in three of four layers, in which queries have
//! more heads and other rotary positions; a gate for each head of attention's output; experts that
//! are selected by the sigmoids of their logits and a bias, with a shared expert and dense first
//! layers; and limits of the networks' activations, which differ by layer.

use serde_json::{Value, json};

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::sigmoid_router::SHARED;
use super::tensors::{Layouts, TensorSlice, stacked};
use super::{expert_tensors, experts, layer_types, llama, nested, per_layer_config};
use crate::config::{Family, Features, ModelConfig, QkNorm, Scales};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_rope::{RopeDefaults, rope_of_lists, rope_of_type};
use crate::config_unknown;
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};
use crate::layers::{ActivationLimits, LayerKind, LayerSizes, Layers};
use crate::ops::Op;
use crate::rope::Rope;
use crate::source::{TensorId, TensorPart};

/// Default values of fields, those of the configuration class in transformers.
const THETA: f64 = 10_000.0;
const NORM_EPS: f64 = 1e-5;
/// Default number of first layers without experts.
const DENSE: usize = 3;

const SCORING: ExpertScoring = ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(0.0) };
const WINDOWED: &str = "sliding_attention";
/// Object with the heads of layers with a window in published files.
const OTHER_HEADS: &str = "attention_other_setting";
/// Layers with experts in published files.
const EXPERT_LAYERS: &str = "moe_layers_enum";

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    lacks_one: |op| matches!(op, Op::Norm0 | Op::Norm1 | Op::FinalNorm | Op::Q | Op::K),
    ..FamilyDescription::new(
        &[
            Architecture { name: "Step3p5ForCausalLM", model_type: "step3p5", config },
            Architecture {
                name: "Step3p7ForConditionalGeneration",
                model_type: "step3p7",
                config: |name, fields| {
                    nested::text_config("step3p5", fields, |text| config(name, text))
                },
            },
        ],
        layouts,
        GgufFamily {
            qk_norm: Some(QkNorm::PerHead),
            gates_heads: true,
            has_layer_heads: true,
            experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(SCORING) }),
            keys: &[
                "expert_shared_count",
                "expert_shared_feed_forward_length",
                "expert_weights_norm",
                "expert_weights_scale",
                "leading_dense_block_count",
                "nextn_predict_layers",
            ],
            stem: |op, _| (op == Op::OutGate).then_some("attn_gate"),
            ..GgufFamily::named(&["step35"])
        },
    )
};

/// Parses `Step3p5ForCausalLM`, and the text model of `Step3p7ForConditionalGeneration`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    refuse_variants(fields)?;
    let model = base(name, fields)?;
    let count = model.num_layers;
    let windowed = match fields.present("layer_types") {
        Some(types) => layer_types::windowed(types, count)?,
        None => vec![false; count],
    };
    let window = fields.optional_size("sliding_window")?;
    if window.is_none() && windowed.contains(&true) {
        return Err(ConfigError::Missing { field: "sliding_window" });
    }
    let [global, local] = ropes(fields, &windowed, &model)?;
    let max_positions = global.scaled_max_positions(model.max_positions);
    let heads = head_counts(fields, &windowed, &model)?;
    let of_experts = limits(fields, "swiglu_limits", count)?;
    let of_network = limits(fields, "swiglu_limits_shared", count)?;
    let kind = |layer: usize| {
        let num_heads = Some(heads[layer]).filter(|heads| *heads != model.num_heads);
        let rope = if windowed[layer] { &local } else { &global };
        LayerKind {
            rope: Some(rope.clone()),
            window: window.filter(|_| windowed[layer]),
            sizes: num_heads.map(|heads| LayerSizes { num_heads: Some(heads), ..model.sizes() }),
            limits: ActivationLimits { experts: of_experts[layer], network: of_network[layer] },
            ..model.layers.kind(layer).clone()
        }
    };
    let layers = Layers::try_from_kinds((0..count).map(kind)).ok_or_else(|| {
        let what = "more than 256 kinds of layers, which differ in heads or limits,".to_owned();
        ConfigError::Unsupported { what, hint: "" }
    })?;
    Ok(ModelConfig { layers, max_positions, ..model }.with_kind_models())
}

/// Refuses values of fields that would require other computations.
fn refuse_variants(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    for field in ["mlp_bias", "sink", "use_bidirectional_attention"] {
        fields.only(field, &Value::Bool(false))?;
    }
    let always = [
        "norm_expert_weight",
        "use_head_wise_attn_gate",
        "use_moe",
        "use_moe_router_bias",
        "use_qk_norm",
        "zero_centered",
    ];
    for field in always {
        fields.only(field, &Value::Bool(true))?;
    }
    if fields.text("gating") != Some("per-head") {
        fields.only("gating", &Value::Bool(true))?;
    }
    fields.only("att_impl_type", &json!("GQA"))?;
    fields.only("moe_router_activation", &json!("sigmoid"))?;
    fields.only("moe_every_n_layer", &json!(1))?;
    fields.only("moe_layer_offset", &json!(0))?;
    fields.only("yarn_only_types", &json!(["full_attention"]))?;
    if let Some(rotates) = fields.present("use_rope_layers") {
        let all_rotate = rotates.as_array().is_some_and(|list| list.iter().all(|one| *one == true));
        if !all_rotate {
            let what = format!("use_rope_layers = {rotates}");
            return Err(ConfigError::Unsupported { what, hint: "" });
        }
    }
    // The router's matrix is multiplied in f32 in any case.
    fields.present("need_fp32_gate");
    // The number of positions once more.
    fields.present("max_seq_len");
    // Layers for multi-token prediction, which is not supported.
    for field in
        ["num_nextn_predict_layers", "num_mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"]
    {
        fields.present(field);
    }
    Ok(())
}

/// Parses everything but the attention and the limits of each layer.
fn base(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    let (count, size) = (fields.size("num_attention_heads")?, fields.size("head_dim")?);
    let kv_count = fields.size_of_names(&["num_key_value_heads", "num_attention_groups"])?;
    let heads = llama::Heads { hidden: fields.size("hidden_size")?, count, kv_count, size };
    let positions = llama::Positions { max: fields.size("max_position_embeddings")?, rope: None };
    let family = Family::Step3p5;
    let model = llama::base_of_heads(family, name, fields, "intermediate_size", positions, heads)?;
    let bias = fields.flag("attention_bias", false)?;
    let divisor = fields.positive("query_pre_attn_scalar")?;
    let divisor = divisor.filter(|divisor| *divisor != size as f64);
    let attention = divisor.map(|divisor| divisor.powf(-0.5) as f32);
    let model = ModelConfig {
        norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(NORM_EPS) as f32,
        qkv_bias: bias,
        out_bias: bias,
        qk_norm: Some(QkNorm::PerHead),
        output_gate: true,
        features: Features { gates_heads: true, ..Features::default() },
        scales: Scales { attention, ..Scales::default() },
        ..model
    };
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        fields.size("moe_intermediate_size")?,
        SCORING,
    );
    let scale = fields.positive("moe_router_scaling_factor")?.unwrap_or(1.0) as f32;
    let selection = ExpertSelection { bias: true, groups: None, scale, is_f32: true };
    let shared = fields.size_of_names(&["share_expert_dim", "share_expert_dims"])?;
    let is_dense = dense_layers(fields, model.num_layers)?;
    let experts = Experts { selection, ..experts };
    Ok(experts::with_experts(model, experts, Some((shared, SHARED)), &is_dense))
}

/// Returns a flag per layer that is true if it has no experts: according to `mlp_layer_types` if
/// present, else to the list of the layers with experts.
fn dense_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let listed = fields.present(EXPERT_LAYERS);
    let (None, Some(listed)) = (fields.present("mlp_layer_types"), listed) else {
        return experts::dense_layers(fields, layers, DENSE);
    };
    let refused = || wrong(EXPERT_LAYERS, listed, "numbers of layers, in a list or with commas,");
    let numbers: Option<Vec<usize>> = match listed {
        Value::String(text) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(|part| part.parse().ok()).collect()
        }
        Value::Array(list) => {
            list.iter().map(|one| one.as_u64().and_then(|one| one.try_into().ok())).collect()
        }
        _ => None,
    };
    let mut dense = vec![true; layers];
    // Numbers beyond the layers are those of layers for multi-token prediction.
    for number in numbers.ok_or_else(refused)? {
        if let Some(dense) = dense.get_mut(number) {
            *dense = false;
        }
    }
    Ok(dense)
}

/// Returns the number of heads of q of each layer.
fn head_counts(
    fields: &ConfigFields<'_>,
    windowed: &[bool],
    model: &ModelConfig,
) -> Result<Vec<usize>, ConfigError> {
    let in_window =
        match (fields.optional_size("num_sliding_attention_heads")?, other(fields, model)?) {
            (Some(heads), _) | (None, Some(heads)) => heads,
            (None, None) => model.num_heads,
        };
    let mut heads = vec![model.num_heads; windowed.len()];
    let has_own = per_layer_config::read_layers(fields, windowed.len(), |layer, own| {
        heads[layer] = own.optional_size("num_attention_heads")?.unwrap_or(model.num_heads);
        Ok(())
    })?;
    if !has_own {
        let of_layer = |windowed: &bool| if *windowed { in_window } else { model.num_heads };
        heads = windowed.iter().map(of_layer).collect();
    }
    Ok(heads)
}

/// Returns the number of heads of q in layers with a window that published files specify; `None` in
/// files without that object.
fn other(fields: &ConfigFields<'_>, model: &ModelConfig) -> Result<Option<usize>, ConfigError> {
    let Some(value) = fields.present(OTHER_HEADS) else { return Ok(None) };
    let Some(other) = fields.block(OTHER_HEADS) else {
        return Err(wrong(OTHER_HEADS, value, "an object with the heads of layers with a window"));
    };
    other.only("attention_type", &json!(WINDOWED))?;
    other.only("num_attention_groups", &json!(model.num_kv_heads))?;
    for field in ["head_dim", "true_head_dim"] {
        other.only(field, &json!(model.head_dim))?;
    }
    let heads = other.optional_size("num_attention_heads")?;
    fields.add_unknown(config_unknown::check(&other)?);
    Ok(heads)
}

/// Returns the rotary positions of layers without a window and of those with one.
fn ropes(
    fields: &ConfigFields<'_>,
    windowed: &[bool],
    model: &ModelConfig,
) -> Result<[Rope; 2], ConfigError> {
    let bases = by_type(fields, "rope_theta", windowed, THETA)?;
    let parts = by_type(fields, "partial_rotary_factors", windowed, 1.0)?;
    let of_type = |index: usize, layer_type: &'static str| {
        let defaults = RopeDefaults {
            theta: bases[index],
            head_dim: model.head_dim,
            max_positions: model.max_positions,
            can_be_partial: true,
            rotated: parts[index],
            has_temperature: false,
        };
        match has_types(fields) {
            true => Ok(rope_of_type(fields, layer_type, defaults)?),
            false => rope_of_lists(fields, index == 0, defaults).map(Some),
        }
    };
    let missing = || ConfigError::Missing { field: "rope_parameters of each type of layers" };
    let (global, local) = (of_type(0, "full_attention")?, of_type(1, WINDOWED)?);
    // Files have no parameters of a type that no layer has.
    let is_complete = (global.is_some() || !windowed.contains(&false))
        && (local.is_some() || !windowed.contains(&true));
    match (global, local) {
        (Some(global), Some(local)) => Ok([global, local]),
        (Some(only), None) | (None, Some(only)) if is_complete => Ok([only.clone(), only]),
        _ => Err(missing()),
    }
}

/// Returns true if the rope's parameters are given by type of layers.
fn has_types(fields: &ConfigFields<'_>) -> bool {
    fields.block("rope_parameters").is_some_and(|block| block.objects().next().is_some())
}

/// Returns a number of the layers without a window and one of those with one, from a field with one
/// number or with one per layer.
fn by_type(
    fields: &ConfigFields<'_>,
    field: &'static str,
    windowed: &[bool],
    default: f64,
) -> Result<[f64; 2], ConfigError> {
    let Some(value) = fields.present(field) else { return Ok([default; 2]) };
    let expected = "a positive number, or one for each layer that is the same for each type,";
    let refused = || wrong(field, value, expected);
    let positive = |number: f64| Some(number).filter(|one| one.is_finite() && *one > 0.0);
    let Some(list) = value.as_array().filter(|list| list.len() >= windowed.len()) else {
        return value.as_f64().and_then(positive).map(|one| [one; 2]).ok_or_else(refused);
    };
    let mut found = [None; 2];
    for (value, windowed) in list.iter().zip(windowed) {
        let number = value.as_f64().and_then(positive).ok_or_else(refused)?;
        if *found[usize::from(*windowed)].get_or_insert(number) != number {
            return Err(refused());
        }
    }
    Ok(found.map(|number| number.unwrap_or(default)))
}

/// Returns the limit of each layer in a list in which 0 and null are none.
fn limits(
    fields: &ConfigFields<'_>,
    field: &'static str,
    layers: usize,
) -> Result<Vec<Option<f32>>, ConfigError> {
    let Some(value) = fields.present(field) else { return Ok(vec![None; layers]) };
    let limit = |value: &Value| match value {
        Value::Null => Some(None),
        _ => {
            let number = value.as_f64().filter(|limit| limit.is_finite() && *limit >= 0.0)?;
            Some(Some(number as f32).filter(|limit| *limit > 0.0))
        }
    };
    let list = value.as_array().filter(|list| list.len() >= layers);
    let found = list.and_then(|list| list.iter().take(layers).map(limit).collect());
    found.ok_or_else(|| wrong(field, value, "a positive number, 0 or null for each layer"))
}

/// Returns the possible layouts of a tensor: as published, and as transformers saves it.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let mut layouts: Layouts = published(config, id).into_iter().collect();
    let usual = expert_tensors::layouts(config, id).into_iter();
    layouts.extend(usual.filter(|pieces| !pieces.is_empty()));
    layouts
}

/// Returns the pieces of a tensor that is published under a name of this family's own.
fn published(config: &ModelConfig, id: TensorId) -> Option<Vec<TensorSlice>> {
    let TensorId::Layer { layer, op, part } = id else { return None };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    let Experts { count, ffn_size: ffn, .. } = config.experts?;
    let hidden = config.hidden_size;
    let of_experts =
        |name: &str, rows, columns| Some(stacked(&at(name), count, rows, columns, 0, rows));
    let tensor = match (op, part) {
        (Op::ExpertGate, TensorPart::Matrix) => {
            return of_experts("moe.gate_proj.weight", ffn, hidden);
        }
        (Op::ExpertUp, TensorPart::Matrix) => return of_experts("moe.up_proj.weight", ffn, hidden),
        (Op::ExpertDown, TensorPart::Matrix) => {
            return of_experts("moe.down_proj.weight", hidden, ffn);
        }
        (Op::Router, TensorPart::Matrix) => "moe.gate.weight",
        (Op::Router, TensorPart::Gain) => "moe.router_bias",
        (Op::Gate, TensorPart::Matrix) => "share_expert.gate_proj.weight",
        (Op::Up, TensorPart::Matrix) => "share_expert.up_proj.weight",
        (Op::Down, TensorPart::Matrix) => "share_expert.down_proj.weight",
        (Op::OutGate, TensorPart::Matrix) => "self_attn.g_proj.weight",
        _ => return None,
    };
    Some(llama::whole(config, id, at(tensor)))
}
