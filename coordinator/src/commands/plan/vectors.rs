//! What `--policy lia` says beside its map: its vectors, and by LIA's equations alone which one is
//! the best for which batch.

use std::fmt::Write;

use model::config::{Dtype, ModelConfig};
use planner::lia::{BatchRange, Case, Stage, batch_ranges};
use planner::machine::Machine;
use planner::policy::Policy;
use planner::priced::Chosen;

/// Sentences about the chosen map; none of another policy.
///
/// # Errors
/// A number format that the description leaves out.
pub(super) fn notes(
    chosen: &Chosen,
    machine: &Machine,
    config: &ModelConfig,
    dtype: Dtype,
    prompt_len: u32,
) -> anyhow::Result<Vec<String>> {
    let Policy::Lia { prefill, decode } = chosen.placement.policy else { return Ok(Vec::new()) };
    let case = Case { batch: 1, length: prompt_len, dtype, resident: false };
    let ranges = batch_ranges(machine, config, Stage::Decode, &case, u16::MAX.into())?;
    Ok(vec![
        format!("LIA's vector in prefill {prefill}, in decode {decode}; 1 is the CPU"),
        format!("by LIA's equations alone decode has {}", by_batch(&ranges)),
    ])
}

/// `(1,1,1,1,1,1) up to batches of 597, (0,1,1,0,1,1) from 598`.
fn by_batch(ranges: &[BatchRange]) -> String {
    let mut text = String::new();
    for (index, range) in ranges.iter().enumerate() {
        let BatchRange { first, last, vector } = range;
        let _ = match (index, index + 1 == ranges.len()) {
            (0, true) => write!(text, "{vector} for every batch"),
            (0, false) => write!(text, "{vector} up to batches of {last}"),
            (_, true) => write!(text, ", {vector} from {first}"),
            (_, false) => write!(text, ", {vector} from {first} to {last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use planner::lia::Vector;

    use super::*;

    #[test]
    fn ranges_are_said_by_their_ends() {
        let range = |first, last, vector| BatchRange { first, last, vector };
        let three = [
            range(1, 597, Vector::FULL_CPU),
            range(598, 4769, Vector::EXPERTS_ON_CPU),
            range(4770, 65535, Vector::PARTIAL_CPU),
        ];
        assert_eq!(
            by_batch(&three),
            "(1,1,1,1,1,1) up to batches of 597, (0,1,1,0,1,1) from 598 to 4769, \
             (0,1,1,0,0,0) from 4770"
        );
        assert_eq!(by_batch(&three[..1]), "(1,1,1,1,1,1) for every batch");
    }
}
