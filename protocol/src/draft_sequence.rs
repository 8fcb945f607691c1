//! Copies of a run's sequences in the step table of a draft model, which continues them.

use program::step_table::{Field, PoolingMode, SlotState};

use super::serving::{free_slot, set_state, slot_state};
use super::table::StepTable;

/// Fields that determine how tokens are drawn, and which a copy shares with its sequence. Equal
/// random numbers make it likely that both draw the same token.
const SAMPLING_FIELDS: [Field; 12] = [
    Field::Temperature,
    Field::TopP,
    Field::TopK,
    Field::MinP,
    Field::TopNSigma,
    Field::Repetition,
    Field::Presence,
    Field::Frequency,
    Field::SeedLow,
    Field::SeedHigh,
    Field::IdHashLow,
    Field::IdHashHigh,
];

/// Place of a sequence in a step table.
#[derive(Debug, Clone, Copy)]
pub struct SequenceRef<'a> {
    pub table: &'a StepTable,
    pub batch: usize,
    pub slot: usize,
}

impl SequenceRef<'_> {
    /// Returns a field of the sequence.
    pub fn field(self, field: Field) -> u32 {
        self.table.field(self.batch, self.slot, field)
    }

    fn set_field(self, field: Field, value: u32) {
        self.table.set_field(self.batch, self.slot, field, value);
    }
}

/// Part of a sequence that a copy contains, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedTokens {
    /// Number of leading tokens of the sequence that the copy leaves out. Those are not counted by
    /// the other fields.
    pub skipped: usize,
    /// Number of leading tokens that the copy contains already.
    pub copied: usize,
    /// Number of leading tokens whose keys and values are in the draft model's caches.
    pub computed: usize,
    /// Number of all tokens of the copy, greater than `computed`.
    pub tokens: usize,
    /// Number of tokens that are drafted after them. If it is 0, the copy ends once all tokens
    /// but the last are computed or, if it contains new tokens, after drawing one that is unused.
    pub drafts: usize,
}

/// Makes `copy` a copy of a sequence and lets the draft model's sampler take it. Returns false, and
/// offers nothing, if a token is not below `vocab_size`.
///
/// # Panics
/// Panics if the slot of the copy is not free.
pub fn offer_copy(
    sequence: SequenceRef<'_>,
    copy: SequenceRef<'_>,
    part: CopiedTokens,
    vocab_size: usize,
) -> bool {
    let (table, batch, slot) = (copy.table, copy.batch, copy.slot);
    assert_eq!(slot_state(table, batch, slot), SlotState::Free, "slot {slot} of a draft model");
    let prompt_len = sequence.field(Field::PromptLen) as usize;
    // A slot without a prompt counts as empty, so a copy that leaves the prompt out has its first
    // token there.
    let prompt_len = prompt_len.saturating_sub(part.skipped).min(part.tokens).max(1);
    copy.set_field(Field::PromptLen, prompt_len as u32);
    let tokens = sequence.table.tokens(sequence.batch, sequence.slot);
    for position in part.copied..part.tokens {
        let token = tokens.get(part.skipped + position);
        if token as usize >= vocab_size {
            copy.set_field(Field::PromptLen, 0);
            return false;
        }
        table.set_token(batch, slot, position, token);
    }
    for field in SAMPLING_FIELDS {
        copy.set_field(field, sequence.field(field));
    }
    for (field, value) in [
        (Field::Generated, (part.tokens - prompt_len) as u32),
        (Field::Remaining, part.drafts as u32),
        (Field::Computed, part.computed as u32),
        (Field::Capacity, u32::MAX),
        (Field::Arrival, sequence.field(Field::Arrival)),
        (Field::Pooling, PoolingMode::NoRows as u32),
        (Field::LogitsFrom, u32::MAX),
        // An end-of-sequence token ends the run's sequence, if it is accepted.
        (Field::IgnoreEos, 1),
        (Field::AnyLogits, 1),
        (Field::PredictionLen, 0),
        (Field::Finish, 0),
    ] {
        copy.set_field(field, value);
    }
    // SYNC POINT: slot state, released here once the copy is written.
    set_state(table, batch, slot, SlotState::Offered);
    true
}

/// Writes the drafts of a copy that has ended to the output of its sequence, up to the first that
/// is not below `vocab_size`, and frees the slot of the copy. Returns the number of drafts, and the
/// number of positions that are computed.
///
/// # Panics
/// Panics if the copy has not ended.
pub fn take_drafts(
    sequence: SequenceRef<'_>,
    copy: SequenceRef<'_>,
    drafts: usize,
    vocab_size: usize,
) -> (usize, usize) {
    let generated = sequence.field(Field::Generated) as usize;
    // The copy may count some new tokens less, if it leaves out the prompt.
    let first = (copy.field(Field::Generated) as usize).saturating_sub(drafts);
    let drafted = (0..drafts)
        .map(|draft| (generated + draft, copy.table.output(copy.batch, copy.slot, first + draft)));
    let valid = drafted.take_while(|(_, token)| (*token as usize) < vocab_size);
    let mut count = 0;
    for (place, token) in valid {
        sequence.table.set_output(sequence.batch, sequence.slot, place, token);
        count += 1;
    }
    let computed = copy.field(Field::Computed) as usize;
    free_slot(copy.table, copy.batch, copy.slot);
    (count, computed)
}

/// Returns the number of leading tokens that a sequence and its copy have in common, of which there
/// are at least `equal` and at most `max`.
pub fn common_prefix_len(
    sequence: SequenceRef<'_>,
    copy: SequenceRef<'_>,
    equal: usize,
    max: usize,
) -> usize {
    let prompt_len = sequence.field(Field::PromptLen) as usize;
    let tokens = sequence.table.tokens(sequence.batch, sequence.slot);
    // Positions that differ are drafts, which follow the prompt.
    let is_equal = |position: &usize| {
        let drafted = copy.table.output(copy.batch, copy.slot, position - prompt_len);
        tokens.get(*position) == drafted
    };
    let end = max.max(equal);
    (equal..end).find(|position| !is_equal(position)).unwrap_or(end)
}
