//! Granite 4: layers with Mamba2 or with attention, each followed by a shared expert and, in most
//! models, experts; Granite's four multipliers.

use serde_json::{Value, json};

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::tensors::{Layouts, TensorSlice};
use super::{expert_tensors, experts, granite, mamba_fields, mamba_tensors};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::{FeedForward, LayerKind, Layers, TokenMixer};
use crate::mamba::Mamba;
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Default number of experts.
const EXPERTS: usize = 8;
/// Default sizes of Mamba2.
const HEADS: usize = 128;
const STATE_DIM: usize = 256;
const TAPS: usize = 4;
const EXPAND: usize = 2;
const LAYER_TYPES: &str = "mamba (or linear_attention) or attention (or full_attention) for each \
                           layer";

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "GraniteMoeHybridForCausalLM", model_type: "granitemoehybrid", config }],
    layouts,
    GgufFamily {
        rotates_neighbours: true,
        experts: Some(GgufExperts {
            feed_forward: FeedForward::UngatedSharedExpert,
            ..GgufExperts::scored(ExpertScoring::TopKSoftmax)
        }),
        experts_are_optional: true,
        has_mamba: true,
        keys: &["expert_shared_feed_forward_length"],
        ..GgufFamily::named(&["granitehybrid"])
    },
);

/// Parses `GraniteMoeHybridForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("normalization_function", &json!("rmsnorm"))?;
    fields.only("mamba_proj_bias", &Value::Bool(false))?;
    // Size of the chunks that other implementations compute prompts in.
    fields.present("mamba_chunk_size");
    let model = granite::base(Family::GraniteHybrid, name, fields)?;
    let expert_ffn_size = model.ffn_size;
    let count = experts::count_or(fields, "num_local_experts", EXPERTS)?;
    let experts = match count {
        0 => {
            fields.present("num_experts_per_tok");
            None
        }
        _ => {
            let per_token = experts::per_token(fields)?;
            Some(Experts::new(count, per_token, expert_ffn_size, ExpertScoring::TopKSoftmax))
        }
    };
    let feed_forward = match experts {
        Some(_) => FeedForward::UngatedSharedExpert,
        None => FeedForward::Dense,
    };
    let rotates = fields.text("position_embedding_type") == granite::ROPE;
    let attending = LayerKind {
        feed_forward,
        rope: model.layers.kind(0).rope.clone().filter(|_| rotates),
        ..model.layers.kind(0).clone()
    };
    let kind = |attends: bool| match attends {
        true => attending.clone(),
        false => LayerKind::mamba(feed_forward),
    };
    let layers = attending_layers(fields, model.num_layers)?.into_iter().map(kind);
    let layers = Layers::from_kinds(layers);
    let mamba = mamba(fields, model.hidden_size)?;
    let has_mamba = layers.kinds().iter().any(|kind| kind.mixing == TokenMixer::Mamba);
    Ok(ModelConfig {
        ffn_size: fields.size("shared_intermediate_size")?,
        layers,
        experts,
        mamba: has_mamba.then_some(mamba),
        ..model
    })
}

/// Returns a flag per layer that is true if it attends. By default no layer does.
fn attending_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    // An older name.
    let older = fields.present("layers_block_type");
    let Some(types) = fields.present("layer_types").or(older) else {
        return Ok(vec![false; layers]);
    };
    let attends = |kind: &Value| match kind.as_str() {
        Some("mamba" | "linear_attention") => Some(false),
        Some("attention" | "full_attention") => Some(true),
        _ => None,
    };
    let list = types.as_array().filter(|list| list.len() >= layers);
    let attending = list.and_then(|list| list.iter().take(layers).map(attends).collect());
    attending.ok_or_else(|| wrong("layer_types", types, LAYER_TYPES))
}

fn mamba(fields: &ConfigFields<'_>, hidden: usize) -> Result<Mamba, ConfigError> {
    let size =
        |field, default| Ok::<_, ConfigError>(fields.optional_size(field)?.unwrap_or(default));
    let heads = size("mamba_n_heads", HEADS)?;
    let inner = size("mamba_expand", EXPAND)?.saturating_mul(hidden);
    let head_dim = match fields.text("mamba_d_head") {
        Some("auto") => inner / heads,
        _ => size("mamba_d_head", inner / heads)?,
    };
    if head_dim.checked_mul(heads) != Some(inner) {
        let expected = "a number of heads that mamba_d_head times gives mamba_expand * hidden_size";
        return Err(wrong("mamba_n_heads", &Value::from(heads), expected));
    }
    let (min_step, max_step) = mamba_fields::step_limits(fields, "time_step_limit")?;
    mamba_fields::checked(
        "mamba_n_groups",
        Mamba {
            heads,
            head_dim,
            groups: size("mamba_n_groups", 1)?,
            state_dim: size("mamba_d_state", STATE_DIM)?,
            taps: size("mamba_d_conv", TAPS)?,
            conv_bias: fields.flag("mamba_conv_bias", true)?,
            min_step,
            max_step,
        },
    )
}

/// Returns the possible layouts of a tensor. The two linears before the product of the shared
/// expert are stored as one.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let TensorId::Layer { layer, op, part } = id else {
        return expert_tensors::layouts(config, id);
    };
    let at = |tensor: &str| format!("model.layers.{layer}.{tensor}");
    let of_mamba = |tensor: &str| at(&format!("mamba.{tensor}"));
    if let Some(layouts) = mamba_tensors::layouts(config, op, part, &of_mamba) {
        return layouts;
    }
    let (hidden, ffn) = (config.hidden_size, config.ffn_size);
    let both = TensorSlice::whole(at("shared_mlp.input_linear.weight"), &[2 * ffn, hidden]);
    vec![vec![match (op, part) {
        (Op::Gate, TensorPart::Matrix) => both.rows_from(0, ffn),
        (Op::Up, TensorPart::Matrix) => both.rows_from(ffn, ffn),
        (Op::Down, TensorPart::Matrix) => {
            TensorSlice::whole(at("shared_mlp.output_linear.weight"), &[hidden, ffn])
        }
        _ => return expert_tensors::layouts(config, id),
    }]]
}
