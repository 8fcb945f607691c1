//! LIA's vectors, shown with a LIA map: those of the map, and the best vector for each batch size
//! according to LIA's equations alone.

use std::fmt::Write;

use planner::lia::{BatchRange, Case, Stage, Vector, batch_ranges};
use planner::machine::Machine;
use planner::policy::Policy;
use planner::priced::Chosen;
use program::plan::Plan;
use serde::Serialize;

/// Meaning of a vector's entries, in order.
const ORDER: &str = "(qkv, scores, wv, out, up, down)";

/// Vectors of a chosen map and of LIA's equations; an entry of 1 is the CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Vectors {
    /// Vector of streamed layers in prefill.
    prefill: Vector,
    decode: Vector,
    /// Number of positions used in the equations: the middle of the output, as in the search.
    positions: u32,
    /// Best vector of decode for each range of batch sizes.
    decode_by_batch: Vec<BatchRange>,
    /// At least one layer does not stay in device memory.
    #[serde(skip)]
    streams: bool,
}

impl Vectors {
    /// Returns the vectors of the chosen map; `None` for other policies.
    ///
    /// # Errors
    /// A number format that the description leaves out.
    pub(super) fn of(chosen: &Chosen, machine: &Machine) -> anyhow::Result<Option<Vectors>> {
        let Policy::Lia { prefill, decode, .. } = chosen.placement.policy else { return Ok(None) };
        let Plan { config, shape, .. } = &chosen.plan;
        let positions = shape.max_prompt + shape.max_new / 2;
        let case = Case { batch: 1, length: positions, dtype: shape.dtype, resident: false };
        Ok(Some(Vectors {
            prefill,
            decode,
            positions,
            decode_by_batch: batch_ranges(
                machine,
                config,
                Stage::Decode,
                &case,
                u32::from(u16::MAX),
            )?,
            streams: chosen.placement.residency.layers.len() < config.num_layers,
        }))
    }

    /// Returns the vectors as two lines of text.
    pub(super) fn lines(&self) -> String {
        let Vectors { prefill, decode, positions, .. } = self;
        let of_map = match self.streams {
            true => format!("{prefill} in prefill, {decode} in decode"),
            false => "none, as every layer stays in device memory".to_owned(),
        };
        format!(
            "LIA's vector {ORDER} of streamed layers, 1 is the CPU: {of_map}\n\
             by LIA's equations alone, without overlap and over {positions} positions, in decode: \
             {}\n",
            by_batch(&self.decode_by_batch)
        )
    }
}

/// Formats ranges like `(1,1,1,1,1,1) up to batches of 597, (0,1,1,0,1,1) from 598`.
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
    use super::*;

    const THREE: [BatchRange; 3] = [
        BatchRange { first: 1, last: 597, vector: Vector::FULL_CPU },
        BatchRange { first: 598, last: 4769, vector: Vector::EXPERTS_ON_CPU },
        BatchRange { first: 4770, last: 65535, vector: Vector::PARTIAL_CPU },
    ];

    #[test]
    fn ranges_are_said_by_their_ends() {
        assert_eq!(
            by_batch(&THREE),
            "(1,1,1,1,1,1) up to batches of 597, (0,1,1,0,1,1) from 598 to 4769, \
             (0,1,1,0,0,0) from 4770"
        );
        assert_eq!(by_batch(&THREE[..1]), "(1,1,1,1,1,1) for every batch");
    }

    #[test]
    fn vectors_are_of_streamed_layers_alone() {
        let of = |streams| {
            let vectors = Vectors {
                prefill: Vector::FULL_GPU,
                decode: Vector::EXPERTS_ON_CPU,
                positions: 528,
                decode_by_batch: THREE.to_vec(),
                streams,
            };
            vectors.lines()
        };
        let ends = |text: &str, end: &str| {
            let first = text.lines().next().expect("two lines");
            assert!(first.ends_with(end), "{first}");
        };
        ends(&of(true), ": (0,0,0,0,0,0) in prefill, (0,1,1,0,1,1) in decode");
        ends(&of(false), ": none, as every layer stays in device memory");
    }
}
