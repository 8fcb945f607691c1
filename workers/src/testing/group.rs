//! Results of the sequences of a group.

use program::step_table::Field;
use protocol::table::StepTable;

pub use protocol::group::{
    BATCH_STAGES, GenerationRequest, PlacedRequest, Pooling, continue_group, fill, fill_even,
    list_work, place_request,
};

/// Result of a sequence; a final EOS is included in the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    /// Log-probabilities of each token in turn, as tokens and the bits of their f32.
    pub logprobs: Vec<(u32, u32)>,
    /// A [`Finish`] code.
    pub finish: u32,
}

impl Outcome {
    /// Reads the result of a sequence from the table.
    pub fn read(table: &StepTable, placed: &PlacedRequest) -> Outcome {
        let (batch, slot) = (placed.batch, placed.slot);
        let generated = table.field(batch, slot, Field::Generated) as usize;
        let tokens = (0..generated).map(|i| table.output(batch, slot, i)).collect();
        let logprobs = (0..generated).flat_map(|i| table.logprobs(batch, slot, i));
        let logprobs = logprobs.map(|found| (found.token, found.logprob.to_bits())).collect();
        Outcome { tokens, logprobs, finish: table.field(batch, slot, Field::Finish) }
    }
}
