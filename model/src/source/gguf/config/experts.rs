//! Configuration of experts.

use super::keys::{ConfigError, Keys, wrong};
use crate::config::Family;
use crate::experts::{ExpertScoring, Experts};

/// Values of `expert_gating_func`: not specified, softmax of all logits, softmax of the selected
/// ones.
const UNSAID: u32 = 0;
const SOFTMAX: u32 = 1;
const SOFTMAX_OF_PICKED: u32 = 3;

/// Returns the experts of a layer; `None` for a dense family.
///
/// # Errors
/// Experts in a dense family, no experts in a family that has them, or a router of another kind.
pub(super) fn experts(keys: &Keys<'_>, family: Family) -> Result<Option<Experts>, ConfigError> {
    let Some(scoring) = scoring(family) else {
        return match keys.size_or_none("expert_count")? {
            None => Ok(None),
            Some(count) => Err(wrong(keys.key("expert_count"), count, "a model without experts")),
        };
    };
    let count = keys.required_size("expert_count")?;
    let per_token = keys.required_size("expert_used_count")?;
    if per_token > count {
        return Err(wrong(keys.key("expert_used_count"), per_token, "at most expert_count"));
    }
    check_router(keys, scoring)?;
    let ffn_size = match keys.size_or_none("expert_feed_forward_length")? {
        Some(size) => size,
        None => keys.required_size("feed_forward_length")?,
    };
    Ok(Some(Experts { count, per_token, ffn_size, scoring, bias: family == Family::GptOss }))
}

fn scoring(family: Family) -> Option<ExpertScoring> {
    Some(match family {
        Family::GptOss | Family::GraniteMoe => ExpertScoring::TopKSoftmax,
        Family::Mixtral | Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35Moe => {
            ExpertScoring::SoftmaxTopK { renormalise: true }
        }
        Family::Olmoe => ExpertScoring::SoftmaxTopK { renormalise: false },
        _ => return None,
    })
}

/// Checks that the router described in the file, if any, is the family's. A renormalised softmax of
/// all logits equals the softmax of the selected ones.
fn check_router(keys: &Keys<'_>, scoring: ExpertScoring) -> Result<(), ConfigError> {
    let sums_to_one = scoring != ExpertScoring::SoftmaxTopK { renormalise: false };
    let key = keys.key("expert_weights_norm");
    match keys.metadata.boolean(&key)? {
        Some(flag) if flag != sums_to_one => {
            let expected = match sums_to_one {
                true => "weights of experts that are divided by their sum, as in this architecture",
                false => "weights of experts as softmax gives them, as in this architecture",
            };
            return Err(wrong(key, flag, expected));
        }
        _ => {}
    }
    let key = keys.key("expert_gating_func");
    match keys.metadata.integer(&key)? {
        None | Some(UNSAID | SOFTMAX) => Ok(()),
        Some(SOFTMAX_OF_PICKED) if sums_to_one => Ok(()),
        Some(other) => Err(wrong(key, other, "the softmax that this architecture has")),
    }
}
