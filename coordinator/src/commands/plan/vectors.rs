//! LIA's vectors, shown with a LIA map: those of the map, and the best vector for each batch size
//! according to LIA's equations alone.

use std::fmt::Write;

use planner::lia::{BatchRange, LiaStage, LiaWorkload, OffloadVector, batch_ranges};
use planner::machine::Machine;
use planner::policy::Policy;
use planner::search::SearchResult;
use program::plan::Plan;
use serde::Serialize;

/// Meaning of a vector's entries, in order.
const ENTRY_NAMES: &str = "(qkv, scores, wv, out, up, down)";

/// Vectors of a chosen map and of LIA's equations; an entry of 1 is the CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LiaVectors {
    /// Vector of streamed layers in prefill.
    prefill: OffloadVector,
    decode: OffloadVector,
    /// Number of positions used in the equations: the middle of the output, as in the search.
    positions: u32,
    /// Best vector of decode for each range of batch sizes.
    decode_by_batch: Vec<BatchRange>,
    /// At least one layer does not stay in device memory.
    #[serde(skip)]
    streams: bool,
}

impl LiaVectors {
    /// Returns the vectors of the chosen map; `None` for other policies.
    ///
    /// # Errors
    /// A number format that the description leaves out.
    pub(super) fn for_plan(
        chosen: &SearchResult,
        machine: &Machine,
    ) -> anyhow::Result<Option<LiaVectors>> {
        let Policy::Lia { prefill, decode, .. } = chosen.placement.policy else { return Ok(None) };
        let Plan { config, shape, .. } = &chosen.plan;
        let positions = shape.max_prompt + shape.max_new / 2;
        let case = LiaWorkload { batch: 1, length: positions, dtype: shape.dtype, resident: false };
        Ok(Some(LiaVectors {
            prefill,
            decode,
            positions,
            decode_by_batch: batch_ranges(
                machine,
                config,
                LiaStage::Decode,
                &case,
                u32::from(u16::MAX),
            )?,
            streams: chosen.placement.residency.layers.len() < config.num_layers,
        }))
    }

    /// Returns the vectors as two lines of text.
    pub(super) fn format_lines(&self) -> String {
        let LiaVectors { prefill, decode, positions, .. } = self;
        let map_vectors = match self.streams {
            true => format!("{prefill} in prefill, {decode} in decode"),
            false => "none, as every layer stays in device memory".to_owned(),
        };
        format!(
            "LIA's vector {ENTRY_NAMES} of streamed layers (1: CPU): {map_vectors}\n\
             by LIA's equations alone, without overlap, for {positions} positions in decode: \
             {}\n",
            format_ranges(&self.decode_by_batch)
        )
    }
}

/// Formats ranges like `(1,1,1,1,1,1) up to batches of 597, (0,1,1,0,1,1) from 598`.
fn format_ranges(ranges: &[BatchRange]) -> String {
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
        BatchRange { first: 1, last: 597, vector: OffloadVector::FULL_CPU },
        BatchRange { first: 598, last: 4769, vector: OffloadVector::EXPERTS_ON_CPU },
        BatchRange { first: 4770, last: 65535, vector: OffloadVector::PARTIAL_CPU },
    ];

    #[test]
    fn ranges_are_said_by_their_ends() {
        assert_eq!(
            format_ranges(&THREE),
            "(1,1,1,1,1,1) up to batches of 597, (0,1,1,0,1,1) from 598 to 4769, \
             (0,1,1,0,0,0) from 4770"
        );
        assert_eq!(format_ranges(&THREE[..1]), "(1,1,1,1,1,1) for every batch");
    }

    #[test]
    fn vectors_are_of_streamed_layers_alone() {
        let lines = |streams| {
            let vectors = LiaVectors {
                prefill: OffloadVector::FULL_GPU,
                decode: OffloadVector::EXPERTS_ON_CPU,
                positions: 528,
                decode_by_batch: THREE.to_vec(),
                streams,
            };
            vectors.format_lines()
        };
        let ends = |text: &str, end: &str| {
            let first = text.lines().next().expect("two lines");
            assert!(first.ends_with(end), "{first}");
        };
        ends(&lines(true), ": (0,0,0,0,0,0) in prefill, (0,1,1,0,1,1) in decode");
        ends(&lines(false), ": none, as every layer stays in device memory");
    }
}
