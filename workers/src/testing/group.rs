//! What the sequences of a group came to.

use program::step_table::Field;

use crate::shared::table::StepTable;

pub use crate::shared::group::{
    BATCH, Placed, Request, carry_on, fill, fill_even, list_work, place,
};

/// What a sequence came to; a final EOS is part of the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    /// Those of each token in turn, as the tokens they are of and their f32's bits.
    pub logprobs: Vec<(u32, u32)>,
    /// A [`Finish`] code.
    pub finish: u32,
}

impl Outcome {
    /// What the table says of a sequence.
    pub fn read(table: &StepTable, placed: &Placed) -> Outcome {
        let (batch, slot) = (placed.batch, placed.slot);
        let generated = table.field(batch, slot, Field::Generated) as usize;
        let tokens = (0..generated).map(|i| table.output(batch, slot, i)).collect();
        let logprobs = (0..generated).flat_map(|i| table.logprobs(batch, slot, i));
        let logprobs = logprobs.map(|found| (found.token, found.logprob.to_bits())).collect();
        Outcome { tokens, logprobs, finish: table.field(batch, slot, Field::Finish) }
    }
}
