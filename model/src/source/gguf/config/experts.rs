//! Configuration of experts.

use super::super::facts::TensorFacts;
use super::gemma4;
use super::keys::{ConfigError, Keys, wrong};
use crate::experts::{
    DenseLayers, ExpertGroups, ExpertScoring, ExpertSelection, Experts, ScoreSum,
};
use crate::family::{GgufExperts, GgufFamily};
use crate::layers::FeedForward;

/// Values of `expert_gating_func`: not specified, softmax of all logits, sigmoid, softmax of the
/// selected ones, square root of the softplus.
const UNSAID: u32 = 0;
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;
const SOFTMAX_OF_PICKED: u32 = 3;
const SQRT_SOFTPLUS: u32 = 4;

/// Returns the experts of a model of `layers` layers; `None` for a dense family.
///
/// # Errors
/// Experts in a dense family, no experts in a family that has them, or a router of another kind.
pub(super) fn experts(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    layers: usize,
) -> Result<Option<Experts>, ConfigError> {
    let Some(GgufExperts { scoring, bias, selection_bias, is_f32, feed_forward, .. }) =
        &gguf.experts
    else {
        return match keys.size_or_none("expert_count")? {
            None => Ok(None),
            Some(count) => Err(wrong(keys.key("expert_count"), count, "a model without experts")),
        };
    };
    if gguf.experts_are_optional && keys.size_or_none("expert_count")?.is_none() {
        return Ok(None);
    }
    let count = keys.required_size("expert_count")?;
    let per_token = keys.required_size("expert_used_count")?;
    if per_token > count {
        return Err(wrong(keys.key("expert_used_count"), per_token, "at most expert_count"));
    }
    let scoring = checked_scoring(keys, gguf, *scoring)?;
    let ffn_size = match keys.size_or_none("expert_feed_forward_length")? {
        Some(size) => size,
        None => keys.required_size("feed_forward_length")?,
    };
    let dense = dense_layers(keys, gguf, layers)?;
    let dense_ffn = || keys.required_size("feed_forward_length");
    let dense = dense.map(|_| dense_ffn()).transpose()?;
    let scale = gguf.reads(SCALE).then(|| keys.positive_or_none(SCALE)).transpose()?.flatten();
    let latent_size = gguf.reads(LATENT).then(|| keys.size_or_none(LATENT)).transpose()?.flatten();
    Ok(Some(Experts {
        bias: *bias,
        latent_size,
        selection: ExpertSelection {
            bias: *selection_bias,
            groups: groups(keys, gguf, count, per_token)?,
            scale: scale.unwrap_or(1.0) as f32,
            is_f32: *is_f32,
        },
        dense: dense.map(|ffn_size| DenseLayers { ffn_size, others: *feed_forward }),
        ..Experts::new(count, per_token, ffn_size, scoring)
    }))
}

const SCALE: &str = "expert_weights_scale";
const LATENT: &str = "moe_latent_size";
const GATING: &str = "expert_gating_func";

/// Returns true if scores of experts are sigmoids of their logits: according to the file or, in
/// files from before the key existed, if there are biases for the selection, which no model with a
/// softmax has.
///
/// # Errors
/// A value that is not an integer.
pub(super) fn has_sigmoid_router(
    keys: &Keys<'_>,
    facts: &TensorFacts,
) -> Result<bool, ConfigError> {
    Ok(match keys.metadata.integer(&keys.key(GATING))? {
        None | Some(UNSAID) => facts.has_selection_bias,
        Some(function) => function == SIGMOID,
    })
}

/// Returns the width of the network that computes every row of a layer, and the second half of each
/// layer.
///
/// # Errors
/// A missing or invalid size.
pub(super) fn feed_forward(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    experts: Option<Experts>,
) -> Result<(usize, impl Fn(usize) -> FeedForward + use<>), ConfigError> {
    let of_experts = gguf.experts.as_ref().map(|experts| experts.feed_forward);
    let size = match (experts, of_experts) {
        _ if gguf.has_layer_sizes => gemma4::ffn_size(keys)?,
        (Some(experts), Some(FeedForward::SharedExpert | FeedForward::UngatedSharedExpert)) => {
            match keys.size_or_none("expert_shared_feed_forward_length")? {
                Some(size) => size,
                None => experts.ffn_size * keys.required_size("expert_shared_count")?,
            }
        }
        (Some(experts), _) => keys.size_or_none("feed_forward_length")?.unwrap_or(experts.ffn_size),
        // Of a family whose dense network is the shared expert of models with experts.
        (None, Some(FeedForward::UngatedSharedExpert)) => {
            match keys.size_or_none("expert_shared_feed_forward_length")? {
                Some(size) => size,
                None => keys.required_size("feed_forward_length")?,
            }
        }
        (None, _) => keys.required_size("feed_forward_length")?,
    };
    let dense = match experts.and_then(|experts| experts.dense) {
        Some(_) => keys.size_or_none(DENSE)?.unwrap_or(0),
        None => 0,
    };
    let others = of_experts.filter(|_| experts.is_some()).unwrap_or(FeedForward::Dense);
    Ok((size, move |layer| if layer < dense { FeedForward::Dense } else { others }))
}

const DENSE: &str = "leading_dense_block_count";

/// Returns the number of layers without experts, which precede the others; `None` for none.
fn dense_layers(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    layers: usize,
) -> Result<Option<usize>, ConfigError> {
    let dense = if gguf.reads(DENSE) { keys.size_or_none(DENSE)? } else { None };
    match dense {
        Some(dense) if dense >= layers => {
            Err(wrong(keys.key(DENSE), dense, "fewer layers than the model has"))
        }
        dense => Ok(dense),
    }
}

/// Returns the groups that a row's experts are selected from; `None` if there is one group only.
fn groups(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    count: usize,
    per_token: usize,
) -> Result<Option<ExpertGroups>, ConfigError> {
    let suffix = "expert_group_count";
    let rules = gguf.experts.as_ref();
    if !gguf.reads(suffix) {
        return Ok(None);
    }
    let Some(groups) = keys.size_or_none(suffix)?.filter(|groups| *groups > 1) else {
        return Ok(None);
    };
    let used = keys.required_size("expert_group_used_count")?;
    let (score, excluded) =
        rules.map_or_else(Default::default, |experts| (experts.group_score, experts.excluded));
    let groups = ExpertGroups { score, excluded, ..ExpertGroups::new(groups, used) };
    match groups.error(count, per_token) {
        None => Ok(Some(groups)),
        Some(expected) => Err(wrong(keys.key(suffix), groups.count, expected)),
    }
}

/// Checks that the router described in the file, if any, is the family's, and returns it. A
/// renormalised softmax of all logits equals the softmax of the selected ones.
fn checked_scoring(
    keys: &Keys<'_>,
    gguf: &GgufFamily,
    scoring: ExpertScoring,
) -> Result<ExpertScoring, ConfigError> {
    let suffix = "expert_weights_norm";
    let key = keys.key(suffix);
    let flag = keys.metadata.boolean(&key)?;
    let scoring = match (scoring, flag) {
        (ExpertScoring::SoftmaxTopK { .. }, Some(renormalise)) if gguf.reads(suffix) => {
            ExpertScoring::SoftmaxTopK { renormalise }
        }
        (ExpertScoring::SigmoidTopK { .. }, Some(false)) if gguf.reads(suffix) => {
            ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused }
        }
        (ExpertScoring::SqrtSoftplusTopK { .. }, Some(false)) if gguf.reads(suffix) => {
            ExpertScoring::SqrtSoftplusTopK { sum: ScoreSum::Unused }
        }
        (scoring, _) => scoring,
    };
    let unscaled = [
        ExpertScoring::SoftmaxTopK { renormalise: false },
        ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused },
        ExpertScoring::SqrtSoftplusTopK { sum: ScoreSum::Unused },
    ];
    let sums_to_one = !unscaled.contains(&scoring);
    if let Some(flag) = flag.filter(|flag| *flag != sums_to_one) {
        let expected = if sums_to_one {
            "weights of experts that are divided by their sum, as in this architecture"
        } else {
            "weights of experts as their scores give them, as in this architecture"
        };
        return Err(wrong(key, flag, expected));
    }
    let (code, expected) = match scoring {
        ExpertScoring::SoftmaxTopK { .. } | ExpertScoring::TopKSoftmax => {
            (SOFTMAX, "the softmax that this architecture has")
        }
        ExpertScoring::SigmoidTopK { .. } => (SIGMOID, "the sigmoid that this architecture has"),
        ExpertScoring::SqrtSoftplusTopK { .. } => {
            (SQRT_SOFTPLUS, "the square root of a softplus that this architecture has")
        }
    };
    let key = keys.key(GATING);
    match keys.metadata.integer(&key)? {
        None | Some(UNSAID) => Ok(scoring),
        Some(said) if said == code => Ok(scoring),
        Some(SOFTMAX_OF_PICKED) if sums_to_one && code == SOFTMAX => Ok(scoring),
        Some(other) => Err(wrong(key, other, expected)),
    }
}
