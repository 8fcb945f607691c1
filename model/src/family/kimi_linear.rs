//! Kimi Linear: most layers keep a state that decays by channel (Kimi delta attention), the others
//! have latent attention without rope; experts as in DeepSeek V3, with a shared expert and dense
//! first layers.

use serde_json::Value;

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::latent_attention;
use super::layer_types::LayerType;
use super::sigmoid_router::{self, RENORMALISED, SHARED, SigmoidRouter};
use super::tensors::{Layouts, TensorSlice};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_unknown;
use crate::delta::DeltaNet;
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Object with the sizes and the layers of states in published files.
const STATES: &str = "linear_attn_config";
const LAYER_NUMBERS: &str = "numbers of layers from 1 on, each in one of two lists";

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "KimiLinearForCausalLM", model_type: "kimi_linear", config }],
    layouts,
    GgufFamily {
        rotates_neighbours: true,
        can_rotate_part: true,
        has_latent_attention: true,
        has_channel_decay: true,
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(RENORMALISED) }),
        keys: sigmoid_router::GGUF_KEYS,
        ..GgufFamily::named(&["kimi-linear"])
    },
);

/// Parses `KimiLinearForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    refuse_variants(fields)?;
    // Group selection is decided by the number of groups.
    fields.present("use_grouped_topk");
    let model = latent_attention::base_without_rope(Family::KimiLinear, name, fields)?;
    let states = fields.block(STATES);
    let attending = model.layers.kind(0).clone();
    let has_state = layers_with_states(fields, states.as_ref(), model.num_layers)?;
    let layers = has_state.into_iter().map(|has_state| match has_state {
        true => LayerKind::delta(attending.feed_forward),
        false => attending.clone(),
    });
    let layers = Layers::from_kinds(layers);
    let delta = Some(delta(fields, states.as_ref())?);
    if let Some(states) = states {
        fields.add_unknown(config_unknown::check(&states)?);
    }
    let router = SigmoidRouter { dense_layers: 1, renormalise: true };
    router.add_to(ModelConfig { layers, delta, ..model }, fields)
}

/// Refuses fields that would require computations that are not supported, such as those of Kimi K3.
fn refuse_variants(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    fields.only("mla_use_nope", &Value::Bool(true))?;
    fields.only("mla_use_output_gate", &Value::Bool(false))?;
    fields.only("moe_layer_freq", &Value::from(1))?;
    for field in ["attn_res_block_size", "routed_expert_hidden_size"] {
        fields.only(field, &Value::Null)?;
    }
    Ok(())
}

/// Returns a flag per layer that is true if it keeps a state: according to `layer_types` if
/// present, else to the numbers of layers in `states`.
fn layers_with_states(
    fields: &ConfigFields<'_>,
    states: Option<&ConfigFields<'_>>,
    layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    let numbers = states.map(|states| {
        ["kda_layers", "full_attn_layers"].map(|field| (field, states.present(field)))
    });
    if let Some(types) = fields.present("layer_types") {
        return LayerType::STATE.layers(types, layers);
    }
    let numbers = numbers.ok_or(ConfigError::Missing { field: STATES })?;
    let mut found: Vec<Option<bool>> = vec![None; layers];
    for (field, list) in numbers {
        let list = list.ok_or(ConfigError::Missing { field })?;
        let refused = || wrong(field, list, LAYER_NUMBERS);
        for number in list.as_array().ok_or_else(refused)? {
            let layer =
                number.as_u64().and_then(|number| usize::try_from(number).ok()?.checked_sub(1));
            let place = layer.and_then(|layer| found.get_mut(layer)).ok_or_else(refused)?;
            if place.replace(field == "kda_layers").is_some() {
                return Err(refused());
            }
        }
    }
    let complete: Option<Vec<bool>> = found.into_iter().collect();
    complete.ok_or_else(|| wrong(STATES, &Value::Null, LAYER_NUMBERS))
}

/// Parses the sizes of states, which transformers writes outside the object too.
fn delta(
    fields: &ConfigFields<'_>,
    states: Option<&ConfigFields<'_>>,
) -> Result<DeltaNet, ConfigError> {
    let size = |inner: &'static str, outer: &'static str| {
        let found = states.map_or(Ok(None), |states| states.optional_size(inner))?;
        let other = fields.optional_size(outer)?;
        match (found, other) {
            (Some(size), Some(other)) if size != other => {
                let (value, other_value) = (size.to_string(), other.to_string());
                Err(ConfigError::Contradiction { field: inner, value, other: outer, other_value })
            }
            (found, other) => found.or(other).ok_or(ConfigError::Missing { field: inner }),
        }
    };
    let heads = size("num_heads", "linear_num_heads")?;
    let head_dim = size("head_dim", "linear_head_dim")?;
    let taps = size("short_conv_kernel_size", "linear_conv_kernel_dim")?;
    Ok(DeltaNet::by_channel(heads, head_dim, taps))
}

/// Returns the possible layouts of a tensor.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    if let (TensorId::Layer { layer, op, part }, Some(delta)) = (id, config.delta)
        && let Some(pieces) = of_delta(config, &delta, layer, op, part)
    {
        return vec![pieces];
    }
    latent_attention::layouts(config, id)
}

/// Returns the pieces of a tensor of a layer with a state; `None` for other tensors.
fn of_delta(
    config: &ModelConfig,
    delta: &DeltaNet,
    layer: usize,
    op: Op,
    part: TensorPart,
) -> Option<Vec<TensorSlice>> {
    let at = |tensor: &str| format!("model.layers.{layer}.self_attn.{tensor}");
    let matrix = |module: &str, shape: [usize; 2]| {
        TensorSlice::whole(at(&format!("{module}.weight")), &shape)
    };
    let (hidden, values, rank) = (config.hidden_size, delta.value_size(), delta.decay_rank()?);
    let parts = [("q", delta.key_size()), ("k", delta.key_size()), ("v", values)];
    Some(match (op, part) {
        (Op::DeltaQkv, _) => {
            parts.map(|(part, rows)| matrix(&format!("{part}_proj"), [rows, hidden])).into()
        }
        (Op::DeltaBa, _) => vec![matrix("b_proj", [delta.value_heads, hidden])],
        (Op::DeltaDecayDown, _) => vec![matrix("f_a_proj", [rank, hidden])],
        (Op::DeltaDecay, _) => vec![matrix("f_b_proj", [delta.decays_len(), rank])],
        (Op::DeltaGateDown, _) => vec![matrix("g_a_proj", [rank, hidden])],
        (Op::DeltaGate, _) => vec![matrix("g_b_proj", [values, rank])],
        (Op::DeltaOut, _) => vec![matrix("o_proj", [hidden, values])],
        // Stored by channel in three tensors.
        (Op::DeltaConv, _) => {
            let tap = |tap: usize| parts.map(|(part, channels)| (part, channels, tap));
            let piece = |(part, channels, tap): (&str, usize, usize)| TensorSlice {
                names: vec![at(&format!("{part}_conv1d.weight"))],
                shape: vec![channels, 1, delta.taps],
                first: tap,
                rows: 1,
                columns: channels,
                strides: (1, delta.taps),
                is_transposed: false,
            };
            (0..delta.taps).flat_map(tap).map(piece).collect()
        }
        (Op::Delta, TensorPart::Gain) => {
            vec![TensorSlice::whole(at("o_norm.weight"), &[delta.value_dim])]
        }
        (Op::Delta, _) => {
            let rates = TensorSlice::whole(at("A_log"), &[delta.value_heads]);
            let biases = TensorSlice::whole(at("dt_bias"), &[delta.decays_len()]);
            vec![TensorSlice { shape: vec![1, 1, delta.value_heads, 1], ..rates }, biases]
        }
        _ => return None,
    })
}
