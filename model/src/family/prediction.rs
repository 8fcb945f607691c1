//! Layers for multi-token prediction in checkpoints: their kind, and the location of their tensors,
//! whose names are those of a layer after the model's last one. The embedding and the head are the
//! model's, which files may repeat.

use super::tensors::{Layouts, TensorSlice};
use super::{FamilyDescription, experts};
use crate::config::ModelConfig;
use crate::config_fields::{ConfigError, ConfigFields};
use crate::layers::{FeedForward, LayerKind};
use crate::source::{TensorId, TensorPart};

/// Names of the number of layers for multi-token prediction.
const COUNT: [&str; 2] = ["num_nextn_predict_layers", "num_mtp_layers"];

/// Adds the first layer for multi-token prediction to a model, if its files have one: a layer like
/// the last one, with experts unless the model's first `first_k_dense_replace` layers, by default
/// `dense_layers`, include it.
///
/// # Errors
/// An invalid number.
pub(super) fn with_layer(
    mut model: ModelConfig,
    fields: &ConfigFields<'_>,
    dense_layers: usize,
) -> Result<ModelConfig, ConfigError> {
    let mut count = 0;
    for name in COUNT {
        count = experts::count_or(fields, name, count)?;
    }
    let dense_layers = experts::count_or(fields, "first_k_dense_replace", dense_layers)?;
    if count > 0 {
        let last = model.layers.kind(model.num_layers - 1).clone();
        let with_experts = model.experts.and_then(|experts| experts.dense);
        let with_experts = with_experts.map_or(last.feed_forward, |dense| dense.others);
        let is_dense = dense_layers > model.num_layers;
        let feed_forward = if is_dense { FeedForward::Dense } else { with_experts };
        model.features.prediction_layer = Some(LayerKind { feed_forward, ..last });
    }
    Ok(model)
}

/// Returns the possible layouts of a tensor of the model that is layer `layer` of the files.
pub(super) fn layouts(
    family: &FamilyDescription,
    config: &ModelConfig,
    id: TensorId,
    layer: usize,
) -> Layouts {
    let hidden = config.hidden_size;
    let whole = |name: &str, shape: &[usize]| {
        TensorSlice::whole(format!("model.layers.{layer}.{name}.weight"), shape)
    };
    match id {
        TensorId::FinalNorm { part: TensorPart::Gain } => {
            vec![vec![whole("shared_head.norm", &[hidden])]]
        }
        TensorId::JoinHidden { part: TensorPart::Matrix } => {
            vec![vec![whole("eh_proj", &[hidden, 2 * hidden])]]
        }
        TensorId::JoinHidden { .. } => {
            vec![vec![whole("enorm", &[hidden]), whole("hnorm", &[hidden])]]
        }
        TensorId::Layer { .. } => {
            let mut layouts = (family.layouts)(config, id);
            let names = layouts.iter_mut().flatten().flat_map(|piece| &mut piece.names);
            for name in names {
                *name = name.replacen(".layers.0.", &format!(".layers.{layer}."), 1);
            }
            layouts
        }
        TensorId::Embedding
        | TensorId::Head
        | TensorId::Positions
        | TensorId::FinalNorm { .. }
        | TensorId::PerLayerTable
        | TensorId::PerLayerProjection { .. } => (family.layouts)(config, id),
    }
}
