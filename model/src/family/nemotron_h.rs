//! Nemotron-H and Nemotron 3: a layer of the files is a single mixer, which is Mamba2, attention
//! without rope, a network with a squared ReLU, or experts with such networks and a shared one. The
//! experts of Nemotron 3 Super and Ultra compute rows of a latent.
//!
//! A network or experts that follow Mamba2 or attention are the second half of the same layer here;
//! a layer without them has no second half.

use serde_json::{Value, json};

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::sigmoid_router::{RENORMALISED, SHARED};
use super::tensors::{Layouts, TensorSlice, stacked};
use super::{experts, llama, mamba_fields, mamba_tensors};
use crate::config::{Activation, Family, Features, ModelConfig, Scales};
use crate::config_bounds::check_layers;
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{ExpertScoring, ExpertSelection, Experts, ScoreSum};
use crate::layers::{FeedForward, LayerKind, Layers, TokenMixer};
use crate::mamba::Mamba;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

const NORM_EPS: f64 = 1e-5;
/// Default lower limit of the time step.
pub(crate) const MIN_STEP: f64 = 1e-3;
const LAYER_TYPES: &str = "a mixer for each layer: mamba, attention, mlp or moe";
const PATTERN: &str = "a mixer for each layer: M, *, - or E";

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "NemotronHForCausalLM", model_type: "nemotron_h", config }],
    layouts,
    GgufFamily {
        activation: Activation::ReluSquared,
        // No layer rotates its heads, whatever part of them a file names.
        can_rotate_part: true,
        has_mamba: true,
        has_single_mixers: true,
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(RENORMALISED) }),
        experts_are_optional: true,
        keys: &[
            "expert_group_count",
            "expert_group_used_count",
            "expert_shared_count",
            "expert_shared_feed_forward_length",
            "expert_weights_norm",
            "expert_weights_scale",
            "moe_latent_size",
            "nextn_predict_layers",
        ],
        stem: |op, _| (op == Op::Norm1).then_some("attn_norm"),
        ..GgufFamily::named(&["nemotron_h", "nemotron_h_moe"])
    },
);

/// A layer of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mixer {
    Mamba,
    Attention,
    Network,
    Experts,
}

/// Parses `NemotronHForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    refuse_variants(fields)?;
    without_effect(fields);
    let activation = fields.activation(
        "mlp_hidden_act",
        Activation::ReluSquared,
        &[("relu2", Activation::ReluSquared)],
        " in this family (supported: relu2)",
    )?;
    let mixers = mixers(fields)?;
    let (has_experts, has_networks) =
        (mixers.contains(&Mixer::Experts), mixers.contains(&Mixer::Network));
    if has_experts && has_networks {
        return Err(ConfigError::Unsupported {
            what: "a model of which some layers are experts and others a network".to_owned(),
            hint: "",
        });
    }
    let Some(kinds) = paired(&mixers) else {
        return Err(ConfigError::Unsupported {
            what: "a network or experts that follow neither Mamba2 nor attention".to_owned(),
            hint: "",
        });
    };
    let layers = Layers::from_kinds(kinds);
    let (hidden, heads, head_dim) = llama::heads(fields)?;
    let dense_ffn = fields.optional_size("intermediate_size")?;
    let experts = experts(fields)?;
    let shared_ffn = fields.optional_size("moe_shared_expert_intermediate_size")?;
    let (ffn_field, ffn_size) = match has_experts {
        true => ("moe_shared_expert_intermediate_size", shared_ffn),
        false => ("intermediate_size", dense_ffn),
    };
    let has_mamba = layers.kinds().iter().any(|kind| kind.mixing == TokenMixer::Mamba);
    let mamba = mamba(fields)?;
    Ok(ModelConfig {
        name: name.to_owned(),
        family: Family::NemotronH,
        num_layers: halves(&mixers),
        hidden_size: hidden,
        num_heads: heads,
        num_kv_heads: fields.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn_size: ffn_size.ok_or(ConfigError::Missing { field: ffn_field })?,
        vocab_size: fields.size("vocab_size")?,
        max_positions: fields.size("max_position_embeddings")?,
        norm_eps: norm_eps(fields)?,
        activation,
        learned_positions: None,
        layers,
        experts: experts.filter(|_| has_experts),
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: has_mamba.then_some(mamba),
        output_gate: false,
        sinks: false,
        features: Features::default(),
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    })
}

/// Refuses fields that would require computations that are not supported.
///
/// # Errors
/// A value other than the supported one.
fn refuse_variants(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    // transformers ties no embeddings in this family, whatever its files say.
    let off = ["attention_bias", "mamba_proj_bias", "mlp_bias", "tie_word_embeddings", "use_bias"];
    for field in off {
        fields.only(field, &Value::Bool(false))?;
    }
    fields.only("sliding_window", &Value::Null)?;
    fields.only("mamba_hidden_act", &json!("silu"))?;
    // Its kernels keep states in f32, as this program does.
    fields.only("mamba_ssm_cache_dtype", &json!("float32"))?;
    Ok(())
}

/// Reads the fields that do not affect answers: those of training, of kernels, of layers for
/// multi-token prediction, and those of a rope, which no layer has.
fn without_effect(fields: &ConfigFields<'_>) {
    for field in [
        "chunk_size",
        "expand",
        "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern",
        "mtp_layers_block_type",
        "num_logits_to_keep",
        "num_query_groups",
        "partial_rotary_factor",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "rope_theta",
        "time_step_floor",
        "time_step_limit",
        "time_step_max",
        "use_mamba_kernels",
    ] {
        fields.present(field);
    }
    // Other names, which have the values of the fields that are read.
    for field in ["attention_head_dim", "hidden_act", "ssm_intermediate_size"] {
        fields.present(field);
    }
}

/// Returns the epsilon of norms, which some files contain under two names.
fn norm_eps(fields: &ConfigFields<'_>) -> Result<f32, ConfigError> {
    let found = fields.positive("layer_norm_epsilon")?;
    for field in ["norm_eps", "rms_norm_eps"] {
        let other = fields.positive(field)?;
        if let (Some(found), Some(other)) = (found, other)
            && found != other
        {
            return Err(wrong(field, &Value::from(other), "the same as layer_norm_epsilon"));
        }
    }
    Ok(found.unwrap_or(NORM_EPS) as f32)
}

/// Returns the layers of the files, by a list of types or else a pattern.
fn mixers(fields: &ConfigFields<'_>) -> Result<Vec<Mixer>, ConfigError> {
    let pattern = fields.present("hybrid_override_pattern");
    let types = fields.present("layers_block_type").or_else(|| fields.present("layer_types"));
    // The number follows from the list.
    fields.optional_size("num_hidden_layers")?;
    let mixers: Option<Vec<Mixer>> = match (types, pattern) {
        (Some(types), _) => {
            let types =
                types.as_array().ok_or_else(|| wrong("layers_block_type", types, LAYER_TYPES))?;
            check_layers(types.len())?;
            types.iter().map(mixer_of_type).collect()
        }
        (None, Some(pattern)) => {
            let text = pattern.as_str().unwrap_or_default();
            check_layers(text.len())?;
            text.bytes().map(mixer_of_letter).collect()
        }
        (None, None) => return Err(ConfigError::Missing { field: "hybrid_override_pattern" }),
    };
    let mixers = mixers.filter(|mixers| !mixers.is_empty());
    mixers.ok_or_else(|| match (types, pattern) {
        (Some(types), _) => wrong("layers_block_type", types, LAYER_TYPES),
        (None, pattern) => {
            wrong("hybrid_override_pattern", pattern.unwrap_or(&Value::Null), PATTERN)
        }
    })
}

fn mixer_of_type(kind: &Value) -> Option<Mixer> {
    match kind.as_str()? {
        "mamba" | "linear_attention" => Some(Mixer::Mamba),
        "attention" | "full_attention" => Some(Mixer::Attention),
        "mlp" => Some(Mixer::Network),
        "moe" => Some(Mixer::Experts),
        _ => None,
    }
}

fn mixer_of_letter(letter: u8) -> Option<Mixer> {
    match letter {
        b'M' => Some(Mixer::Mamba),
        b'*' => Some(Mixer::Attention),
        b'-' => Some(Mixer::Network),
        b'E' => Some(Mixer::Experts),
        _ => None,
    }
}

/// Returns the number of layers in which networks and experts are second halves.
fn halves(mixers: &[Mixer]) -> usize {
    let is_first = |mixer: &&Mixer| matches!(mixer, Mixer::Mamba | Mixer::Attention);
    mixers.iter().filter(is_first).count()
}

/// Returns the layers, of which networks and experts are the second halves; `None` if some follow
/// neither Mamba2 nor attention.
pub(crate) fn paired(mixers: &[Mixer]) -> Option<Vec<LayerKind>> {
    let mut layers: Vec<LayerKind> = Vec::new();
    for mixer in mixers {
        let second = match mixer {
            Mixer::Mamba => {
                layers.push(LayerKind::mamba(FeedForward::None));
                continue;
            }
            Mixer::Attention => {
                layers
                    .push(LayerKind { feed_forward: FeedForward::None, ..LayerKind::dense(None) });
                continue;
            }
            Mixer::Network => FeedForward::Dense,
            Mixer::Experts => FeedForward::UngatedSharedExpert,
        };
        match layers.last_mut() {
            Some(layer) if layer.feed_forward == FeedForward::None => layer.feed_forward = second,
            _ => return None,
        }
    }
    Some(layers)
}

fn mamba(fields: &ConfigFields<'_>) -> Result<Mamba, ConfigError> {
    mamba_fields::checked(
        "n_groups",
        Mamba {
            heads: fields.size("mamba_num_heads")?,
            head_dim: fields.size("mamba_head_dim")?,
            groups: fields.size("n_groups")?,
            state_dim: fields.size("ssm_state_size")?,
            taps: fields.size("conv_kernel")?,
            conv_bias: fields.flag("use_conv_bias", true)?,
            min_step: fields.positive("time_step_min")?.unwrap_or(MIN_STEP) as f32,
            max_step: None,
        },
    )
}

/// Returns the experts that the fields describe, which models without such layers may also contain.
fn experts(fields: &ConfigFields<'_>) -> Result<Option<Experts>, ConfigError> {
    let renormalise = fields.flag("norm_topk_prob", true)?;
    let selection = ExpertSelection {
        bias: true,
        groups: experts::groups(fields)?,
        scale: fields.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        is_f32: true,
    };
    // The width of the shared experts, which are one network, is given.
    fields.present("n_shared_experts");
    let ffn_size = fields.optional_size("moe_intermediate_size")?;
    let per_token = fields.optional_size("num_experts_per_tok")?;
    let latent_size = fields.optional_size("moe_latent_size")?;
    let (Some(count), Some(per_token), Some(ffn_size)) =
        (fields.optional_size("n_routed_experts")?, per_token, ffn_size)
    else {
        return Ok(None);
    };
    let sum = if renormalise { ScoreSum::Plus(1e-20) } else { ScoreSum::Unused };
    let scoring = ExpertScoring::SigmoidTopK { sum };
    let experts = Experts::new(count, per_token, ffn_size, scoring);
    Ok(Some(Experts { selection, latent_size, ..experts }))
}

/// Returns the index of the layer of the files that is the first half of a layer. The second half
/// follows it.
fn file_layer(config: &ModelConfig, layer: usize) -> usize {
    let size = |layer: usize| match config.layers.kind(layer).feed_forward {
        FeedForward::None => 1,
        _ => 2,
    };
    (0..layer).map(size).sum()
}

/// Returns the index of the layer of the files that has an operation of a layer.
pub(crate) fn block(config: &ModelConfig, layer: usize, op: Op) -> usize {
    let is_second = matches!(
        op,
        Op::Norm1
            | Op::Fc0
            | Op::Fc1
            | Op::Router
            | Op::ExpertUp
            | Op::ExpertDown
            | Op::ExpertLatentDown
            | Op::ExpertLatentUp
    );
    file_layer(config, layer) + usize::from(is_second)
}

/// Returns the possible layouts of a tensor.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let (layer, op, part) = match id {
        TensorId::Layer { layer, op, part } => (layer, op, part),
        TensorId::Embedding => return named(config, id, "embeddings.weight"),
        TensorId::FinalNorm { .. } => return named(config, id, "norm_f.weight"),
        _ => return vec![llama::pieces(config, id)],
    };
    let first = file_layer(config, layer);
    let at = |tensor: &str| format!("backbone.layers.{first}.mixer.{tensor}");
    if let Some(mut layouts) = mamba_tensors::layouts(config, op, part, &at) {
        layouts.iter_mut().flatten().for_each(add_transformers_name);
        return layouts;
    }
    let second = format!("layers.{}.mixer", first + 1);
    let of_shared = if config.experts.is_some() { "shared_experts." } else { "" };
    let tensor = match (op, part) {
        (Op::Norm0, _) => format!("layers.{first}.norm.weight"),
        (Op::Norm1, _) => format!("layers.{}.norm.weight", first + 1),
        (Op::Q, _) => format!("layers.{first}.mixer.q_proj.weight"),
        (Op::K, _) => format!("layers.{first}.mixer.k_proj.weight"),
        (Op::V, _) => format!("layers.{first}.mixer.v_proj.weight"),
        (Op::Out, _) => format!("layers.{first}.mixer.o_proj.weight"),
        (Op::Router, TensorPart::Gain) => format!("{second}.gate.e_score_correction_bias"),
        (Op::Router, _) => format!("{second}.gate.weight"),
        (Op::Fc0, _) => format!("{second}.{of_shared}up_proj.weight"),
        (Op::Fc1, _) => format!("{second}.{of_shared}down_proj.weight"),
        (Op::ExpertLatentDown, _) => format!("{second}.fc1_latent_proj.weight"),
        (Op::ExpertLatentUp, _) => format!("{second}.fc2_latent_proj.weight"),
        (Op::ExpertUp | Op::ExpertDown, _) => return of_experts(config, op, &second),
        _ => return Vec::new(),
    };
    named(config, id, &tensor)
}

/// Returns the layout of a whole tensor.
fn named(config: &ModelConfig, id: TensorId, tensor: &str) -> Layouts {
    let mut pieces = llama::whole(config, id, format!("backbone.{tensor}"));
    pieces.iter_mut().for_each(add_transformers_name);
    vec![pieces]
}

/// Adds the name that transformers has for a tensor.
fn add_transformers_name(piece: &mut TensorSlice) {
    let names: Vec<String> =
        piece.names.iter().map(|name| name.replacen("backbone.", "model.", 1)).collect();
    piece.names.extend(names);
}

/// Returns the layouts of the experts' matrices: one tensor per expert, or one for all experts.
fn of_experts(config: &ModelConfig, op: Op, module: &str) -> Layouts {
    let Some(Experts { count, ffn_size, .. }) = config.experts else { return Vec::new() };
    let (name, rows, columns) = match op {
        Op::ExpertUp => ("up_proj", ffn_size, config.expert_row_size()),
        _ => ("down_proj", config.expert_row_size(), ffn_size),
    };
    let one = |expert: usize| {
        let name = format!("backbone.{module}.experts.{expert}.{name}.weight");
        TensorSlice::whole(name, &[rows, columns])
    };
    let all = format!("backbone.{module}.experts.{name}");
    let mut layouts =
        vec![(0..count).map(one).collect(), stacked(&all, count, rows, columns, 0, rows)];
    layouts.iter_mut().flatten().for_each(add_transformers_name);
    layouts
}
