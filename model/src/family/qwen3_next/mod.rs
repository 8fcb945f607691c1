//! Qwen3-Next and Qwen3.5: of every four layers, three keep a state (`delta`) and one attends, with
//! a gate on its output; gains of 1 + w; a dense network, or experts including a shared one.

use serde_json::{Value, json};

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::layer_types::LayerType;
use super::tensors::{Layouts, TensorSlice};
use super::{expert_tensors, experts, llama, nested};
use crate::config::{Family, ModelConfig, QkNorm};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::delta::{DeltaNet, StateDecay};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Default fraction of each head that is rotated.
const ROTATED: f64 = 0.25;
const THETA: f64 = 10_000.0;
/// Interval of the layers that attend.
const INTERVAL: usize = 4;

/// Experts of the variants that have them.
const EXPERTS: GgufExperts = GgufExperts {
    feed_forward: FeedForward::SharedExpert,
    ..GgufExperts::scored(ExpertScoring::SoftmaxTopK { renormalise: true })
};

/// Returns the description of GGUF files with these architectures and experts.
const fn gguf(names: &'static [&'static str], experts: Option<GgufExperts>) -> GgufFamily {
    GgufFamily {
        qk_norm: Some(QkNorm::PerHead),
        can_rotate_part: true,
        experts,
        keys: &["expert_shared_count", "expert_shared_feed_forward_length", "nextn_predict_layers"],
        stem: |op, _| (op == Op::Norm1).then_some("post_attention_norm"),
        ..GgufFamily::named(names)
    }
}

/// Returns true if the gain is that of a norm that multiplies by 1 + w.
fn lacks_one(op: Op) -> bool {
    !matches!(op, Op::Delta | Op::DeltaConv | Op::SharedGate)
}

pub(super) const FAMILY: FamilyDescription = FamilyDescription {
    lacks_one,
    ..FamilyDescription::new(
        &[Architecture {
            name: "Qwen3NextForCausalLM",
            model_type: "qwen3_next",
            config: next_config,
        }],
        layouts,
        gguf(&["qwen3next"], Some(EXPERTS)),
    )
};

pub(super) const QWEN35: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    lacks_one,
    ..FamilyDescription::new(
        &[
            Architecture {
                name: "Qwen3_5ForCausalLM",
                model_type: "qwen3_5_text",
                config: dense_config,
            },
            Architecture {
                name: "Qwen3_5ForConditionalGeneration",
                model_type: "qwen3_5",
                config: |name, fields| {
                    nested::text_config("qwen3_5_text", fields, |text| dense_config(name, text))
                },
            },
        ],
        layouts,
        gguf(&["qwen35"], None),
    )
};

pub(super) const QWEN35_WITH_EXPERTS: FamilyDescription = FamilyDescription {
    is_multimodal: true,
    lacks_one,
    ..FamilyDescription::new(
        &[
            Architecture {
                name: "Qwen3_5MoeForCausalLM",
                model_type: "qwen3_5_moe_text",
                config: moe_config,
            },
            Architecture {
                name: "Qwen3_5MoeForConditionalGeneration",
                model_type: "qwen3_5_moe",
                config: |name, fields| {
                    nested::text_config("qwen3_5_moe_text", fields, |text| moe_config(name, text))
                },
            },
        ],
        layouts,
        gguf(&["qwen35moe"], Some(EXPERTS)),
    )
};

/// Parses `Qwen3NextForCausalLM`, in which all layers have experts.
pub(super) fn next_config(
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    fields.only("mlp_only_layers", &Value::Array(Vec::new()))?;
    fields.only("decoder_sparse_step", &Value::from(1))?;
    // Width of layers without experts, of which there are none.
    fields.optional_size("intermediate_size")?;
    let renormalise = fields.flag("norm_topk_prob", true)?;
    with_experts(Family::Qwen3Next, name, fields, ExpertScoring::SoftmaxTopK { renormalise })
}

/// Parses `Qwen3_5ForCausalLM`, and the text model of `Qwen3_5ForConditionalGeneration`.
pub(super) fn dense_config(
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    config(Family::Qwen35, name, fields, "intermediate_size", FeedForward::Dense)
}

/// Parses `Qwen3_5MoeForCausalLM`, and the text model of `Qwen3_5MoeForConditionalGeneration`.
pub(super) fn moe_config(
    name: &str,
    fields: &ConfigFields<'_>,
) -> Result<ModelConfig, ConfigError> {
    let scoring = ExpertScoring::SoftmaxTopK { renormalise: true };
    with_experts(Family::Qwen35Moe, name, fields, scoring)
}

fn with_experts(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    scoring: ExpertScoring,
) -> Result<ModelConfig, ConfigError> {
    let ffn_field = "shared_expert_intermediate_size";
    let model = config(family, name, fields, ffn_field, FeedForward::SharedExpert)?;
    let experts = Experts::new(
        experts::count(fields)?,
        experts::per_token(fields)?,
        fields.size("moe_intermediate_size")?,
        scoring,
    );
    Ok(ModelConfig { experts: Some(experts), ..model })
}

/// Parses the fields that the three variants share. `ffn_field` is the field with the width of the
/// dense or shared network.
fn config(
    family: Family,
    name: &str,
    fields: &ConfigFields<'_>,
    ffn_field: &'static str,
    feed_forward: FeedForward,
) -> Result<ModelConfig, ConfigError> {
    for field in ["head_dim", "num_key_value_heads"] {
        fields.size(field)?;
    }
    fields.only("attention_bias", &Value::Bool(false))?;
    fields.only("attn_output_gate", &Value::Bool(true))?;
    fields.only("mamba_ssm_dtype", &json!("float32"))?;
    // Layers for multi-token prediction, which is not supported.
    for field in ["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"] {
        fields.present(field);
    }
    let defaults = llama::Defaults {
        rotated: ROTATED,
        can_be_partial: true,
        ffn_field,
        ..llama::Defaults::of(THETA)
    };
    let model = llama::base_with(family, name, fields, defaults)?;
    let attending = LayerKind { feed_forward, ..model.layers.kind(0).clone() };
    let kind = |attends: bool| match attends {
        true => attending.clone(),
        false => LayerKind::delta(feed_forward),
    };
    let layers = attending_layers(fields, model.num_layers)?.into_iter().map(kind);
    Ok(ModelConfig {
        layers: Layers::from_kinds(layers),
        delta: Some(delta(fields)?),
        output_gate: true,
        qk_norm: Some(QkNorm::PerHead),
        ..model
    })
}

/// Returns a flag per layer that is true if it attends: according to `layer_types` if present, else
/// for the last layer of every `full_attention_interval`.
fn attending_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let interval = fields.optional_size("full_attention_interval")?.unwrap_or(INTERVAL);
    let layers = check_layers(layers)?;
    let Some(types) = fields.present("layer_types") else {
        return Ok((0..layers).map(|layer| (layer + 1) % interval == 0).collect());
    };
    let has_state = LayerType::STATE.layers(types, layers)?;
    Ok(has_state.into_iter().map(|has_state| !has_state).collect())
}

fn delta(fields: &ConfigFields<'_>) -> Result<DeltaNet, ConfigError> {
    let delta = DeltaNet {
        key_heads: fields.size("linear_num_key_heads")?,
        value_heads: fields.size("linear_num_value_heads")?,
        key_dim: fields.size("linear_key_head_dim")?,
        takes_turns: false,
        value_dim: fields.size("linear_value_head_dim")?,
        taps: fields.size("linear_conv_kernel_dim")?,
        decay: StateDecay::PerHead,
    };
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let field = "linear_num_value_heads";
        let value = Value::from(delta.value_heads);
        return Err(wrong(field, &value, "a multiple of linear_num_key_heads"));
    }
    Ok(delta)
}

/// Returns the possible layouts of a tensor. Qwen3-Next's projections store the rows of each head
/// of q and k together with the corresponding rows of v, z, b and a; Qwen3.5's are separate.
pub(super) fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let TensorId::Layer { layer, op, part } = id else {
        return vec![llama::pieces(config, id)];
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    if let Some(delta) =
        config.delta.filter(|_| op != Op::Norm1 && config.layers.kind(layer).has_state())
        && let Some(layouts) = of_delta(config, &delta, op, part, &at)
    {
        return layouts;
    }
    match (op, part) {
        (Op::Q | Op::OutGate, TensorPart::Matrix) => {
            vec![of_heads(config, at("self_attn.q_proj.weight"), op == Op::OutGate)]
        }
        _ => expert_tensors::layouts(config, id),
    }
}

/// Returns each head's rows of q, or those of its gate, which are stored after them.
fn of_heads(config: &ModelConfig, name: String, gates: bool) -> Vec<TensorSlice> {
    let head_dim = config.head_dim;
    let whole = TensorSlice::whole(name, &[2 * config.q_size(), config.hidden_size]);
    let first = |head: usize| (2 * head + usize::from(gates)) * head_dim;
    (0..config.num_heads).map(|head| whole.clone().rows_from(first(head), head_dim)).collect()
}

fn of_delta(
    config: &ModelConfig,
    delta: &DeltaNet,
    op: Op,
    part: TensorPart,
    at: &dyn Fn(&str) -> String,
) -> Option<Layouts> {
    let (hidden, channels) = (config.hidden_size, delta.channels());
    let (heads, values) = (delta.value_heads, delta.value_size());
    let named = |module: &str| at(&format!("linear_attn.{module}.weight"));
    let whole = |module: &str, rows: usize| TensorSlice::whole(named(module), &[rows, hidden]);
    Some(match (op, part) {
        (Op::DeltaQkv, _) => {
            let [q, k, v, _] = together(delta, &named("in_proj_qkvz"), hidden);
            vec![vec![whole("in_proj_qkv", channels)], [q, k, v].concat()]
        }
        (Op::DeltaGate, _) => {
            let [_, _, _, z] = together(delta, &named("in_proj_qkvz"), hidden);
            vec![vec![whole("in_proj_z", values)], z]
        }
        (Op::DeltaBa, _) => {
            let both = whole("in_proj_ba", 2 * heads);
            let group = delta.group();
            let of = |first: usize| {
                let rows = (0..delta.key_heads).map(move |head| 2 * head * group + first);
                rows.map(|first| both.clone().rows_from(first, group)).collect::<Vec<_>>()
            };
            let apart = ["in_proj_b", "in_proj_a"].map(|module| whole(module, heads));
            vec![apart.into(), [of(0), of(group)].concat()]
        }
        // Stored by channel.
        (Op::DeltaConv, _) => vec![vec![TensorSlice {
            names: vec![named("conv1d")],
            shape: vec![channels, 1, delta.taps],
            first: 0,
            rows: delta.taps,
            columns: channels,
            strides: (1, delta.taps),
            is_transposed: false,
        }]],
        (Op::Delta, TensorPart::Gain) => {
            vec![vec![TensorSlice::whole(named("norm"), &[delta.value_dim])]]
        }
        (Op::Delta, _) => {
            let numbers = ["linear_attn.A_log", "linear_attn.dt_bias"].map(at);
            vec![numbers.map(|name| TensorSlice::whole(name, &[heads])).into()]
        }
        (Op::DeltaOut, _) => vec![vec![TensorSlice::whole(named("out_proj"), &[hidden, values])]],
        _ => return None,
    })
}

/// Returns the rows of q, k, v and z in a matrix that stores those of each head of q and k
/// together.
fn together(delta: &DeltaNet, name: &str, hidden: usize) -> [Vec<TensorSlice>; 4] {
    let values = delta.group() * delta.value_dim;
    let sizes = [delta.key_dim, delta.key_dim, values, values];
    let of_head: usize = sizes.iter().sum();
    let whole = TensorSlice::whole(name.to_owned(), &[delta.key_heads * of_head, hidden]);
    std::array::from_fn(|which| {
        let before: usize = sizes[..which].iter().sum();
        let first = |head: usize| head * of_head + before;
        let heads = 0..delta.key_heads;
        heads.map(|head| whole.clone().rows_from(first(head), sizes[which])).collect()
    })
}

#[cfg(test)]
mod tests;
