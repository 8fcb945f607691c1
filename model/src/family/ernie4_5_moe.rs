//! ERNIE 4.5 MoE: experts that are selected by a softmax and a bias, a shared expert, dense layers
//! between them, and a rope that rotates neighbours.

use serde_json::{Value, json};

use super::description::{Architecture, FamilyDescription, GgufExperts, GgufFamily};
use super::sigmoid_router::SHARED;
use super::tensors::{Layouts, TensorSlice};
use super::{expert_tensors, experts, llama};
use crate::config::{Family, ModelConfig};
use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::experts::{ExpertScoring, ExpertSelection, Experts};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

/// Default rope base.
const THETA: f64 = 500_000.0;
/// Default number of shared experts, and the first layer with experts.
const SHARED_COUNT: usize = 2;
const FIRST: usize = 1;
const SCORING: ExpertScoring = ExpertScoring::SoftmaxTopK { renormalise: true };

pub(super) const FAMILY: FamilyDescription = FamilyDescription::new(
    &[Architecture { name: "Ernie4_5_MoeForCausalLM", model_type: "ernie4_5_moe", config }],
    layouts,
    GgufFamily {
        rotates_neighbours: true,
        experts: Some(GgufExperts { feed_forward: SHARED, ..GgufExperts::biased(SCORING) }),
        keys: &[
            "expert_shared_count",
            "expert_shared_feed_forward_length",
            "leading_dense_block_count",
        ],
        ..GgufFamily::named(&["ernie4_5-moe"])
    },
);

/// Parses `Ernie4_5_MoeForCausalLM`.
fn config(name: &str, fields: &ConfigFields<'_>) -> Result<ModelConfig, ConfigError> {
    fields.only("use_bias", &Value::Bool(false))?;
    fields.only("moe_norm_min", &json!(1e-12))?;
    // Fields of training, and of other models in the same file format.
    for field in ["moe_capacity", "moe_gate", "moe_use_aux_free"] {
        fields.present(field);
    }
    let model = llama::base_with(Family::Ernie45Moe, name, fields, llama::Defaults::of(THETA))?;
    let tied_embeddings = fields.flag("tie_word_embeddings", true)?;
    let model = ModelConfig { tied_embeddings, ..model };
    let ffn_size = fields.size("moe_intermediate_size")?;
    let (count, per_token) = (experts::count(fields)?, experts::per_token(fields)?);
    let experts = Experts {
        selection: ExpertSelection { bias: true, is_f32: true, ..ExpertSelection::default() },
        ..Experts::new(count, per_token, ffn_size, SCORING)
    };
    let shared_count = experts::count_or(fields, "moe_num_shared_experts", SHARED_COUNT)?;
    let shared = (shared_count > 0).then_some((shared_count * ffn_size, SHARED));
    let is_dense = dense_layers(fields, model.num_layers)?;
    Ok(experts::with_experts(model, experts, shared, &is_dense))
}

/// Returns a flag per layer that is true if it has no experts: all but every
/// `moe_layer_interval`-th layer from the start index to the end index.
fn dense_layers(fields: &ConfigFields<'_>, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let interval = fields.optional_size("moe_layer_interval")?.unwrap_or(1);
    let first = experts::count_or(fields, "moe_layer_start_index", FIRST)?;
    const LAST: &str = "moe_layer_end_index";
    let last = match fields.present(LAST).map(|value| (value, value.as_i64())) {
        // Minus one is the last layer.
        None | Some((_, Some(-1))) => layers,
        Some((value, last)) => {
            let last = last.and_then(|last| usize::try_from(last).ok());
            last.ok_or_else(|| wrong(LAST, value, "a layer or -1"))?
        }
    };
    let has_experts =
        |layer: usize| (layer + 1).is_multiple_of(interval) && (first..=last).contains(&layer);
    Ok((0..layers).map(|layer| !has_experts(layer)).collect())
}

/// Returns the possible layouts of a tensor. Rows of q and k are in the order of a rope that
/// rotates neighbours, and the bias of the selection is a matrix of one row.
fn layouts(config: &ModelConfig, id: TensorId) -> Layouts {
    let mut layouts = expert_tensors::layouts(config, id);
    match id {
        TensorId::Layer { op: Op::Q | Op::K, part: TensorPart::Matrix, .. } => {
            let halves = |piece: TensorSlice| piece.halves_of_neighbours(config.head_dim);
            layouts
                .into_iter()
                .map(|pieces| pieces.into_iter().flat_map(halves).collect())
                .collect()
        }
        TensorId::Layer { layer, op: Op::Router, part: TensorPart::Gain } => {
            let names = ["mlp.moe_statics", "mlp.gate.moe_statics"];
            for piece in layouts.iter_mut().flatten() {
                piece.names = names
                    .map(|name| format!("model.layers.{layer}.{name}.e_score_correction_bias"))
                    .into();
                piece.shape.insert(0, 1);
            }
            layouts
        }
        _ => layouts,
    }
}
