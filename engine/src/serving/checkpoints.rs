//! Checkpoints of a sequence in a slot: where they are taken.
//!
//! If layers overwrite what they keep of a sequence (the rings of windows, recurrent states), a
//! later sequence with the same beginning can continue only from a position at which that was
//! copied. Such positions are ends of pages: the last one of the prompt, from which the next turn
//! of a chat continues if its template rewrites the answer; the last one of prompt and answer, from
//! which it continues otherwise; the one up to which the prompt begins like an earlier one, since
//! a third one may begin like that too; and a few others in a long prompt.

use std::collections::VecDeque;

/// Maximum number of checkpoints within the computed part of a prompt, not counting those at its
/// end and where it departs from an earlier one.
const INNER_MAX: u32 = 6;
/// Minimum number of pages between them.
const INNER_PAGES_MIN: u32 = 8;

/// A checkpoint that the sampler is to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedCheckpoint {
    pub(super) position: u32,
    /// Number among those of the batch.
    pub(super) number: u32,
}

/// Checkpoints of a sequence in a slot.
#[derive(Debug, Default)]
pub(super) struct SequenceCheckpoints {
    /// Positions of the tokens known so far that are not planned yet, in ascending order.
    wanted: VecDeque<u32>,
    /// Number of these tokens.
    known_tokens: u32,
    /// First position after these tokens at which a checkpoint is wanted.
    next_new: u32,
    /// Planned checkpoints, by their index in the step table.
    pub(super) planned: Vec<Option<PlannedCheckpoint>>,
    /// Page at whose end the last checkpoint among new tokens was taken, which the next one
    /// replaces.
    pub(super) last_new: Option<u32>,
    /// Checkpoint from which the sequence begins, until it is copied to its slot.
    pub(super) restored: Option<u32>,
}

impl SequenceCheckpoints {
    /// Returns the checkpoints of a sequence that has `tokens` tokens, of which `computed` are
    /// computed, and that begins like an earlier one for `known` positions.
    pub(super) fn new(
        page_positions: u32,
        computed: u32,
        known: u32,
        tokens: u32,
    ) -> SequenceCheckpoints {
        let last = tokens.saturating_sub(1) / page_positions * page_positions;
        let pages = last.saturating_sub(computed) / page_positions;
        let stride = pages.div_ceil(INNER_MAX + 1).max(INNER_PAGES_MIN) * page_positions;
        let inner = (computed..last).step_by(stride as usize).chain([known, last]);
        let mut wanted: Vec<u32> = inner.filter(|at| (computed + 1..=last).contains(at)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        SequenceCheckpoints {
            wanted: wanted.into(),
            known_tokens: tokens,
            next_new: last + page_positions,
            ..SequenceCheckpoints::default()
        }
    }

    /// Drops the positions up to `computed`, which are computed already.
    pub(super) fn skip_to(&mut self, computed: u32) {
        self.wanted.retain(|position| *position > computed);
    }

    /// Returns the positions of the prompt at which checkpoints will be taken.
    pub(super) fn positions(&self) -> impl Iterator<Item = u32> + '_ {
        let planned = self.planned.iter().flatten().map(|planned| planned.position);
        planned.chain(self.wanted.iter().copied())
    }

    /// Takes the next position to plan after `computed`, up to `end`: one of a known token, or one
    /// of a new token if none of these is planned, since the next one replaces it.
    pub(super) fn next_position(
        &mut self,
        computed: u32,
        end: u32,
        page_positions: u32,
    ) -> Option<u32> {
        while let Some(position) = self.wanted.pop_front() {
            if position > computed {
                return Some(position);
            }
        }
        if self.planned.iter().flatten().any(|planned| self.is_new(planned.position)) {
            return None;
        }
        let position = self.next_new.max((computed / page_positions + 1) * page_positions);
        (position < end).then(|| {
            self.next_new = position + page_positions;
            position
        })
    }

    /// Returns true if a position is among new tokens, so that later checkpoints replace its own.
    pub(super) fn is_new(&self, position: u32) -> bool {
        position >= self.known_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(page: u32, computed: u32, known: u32, tokens: u32) -> Vec<u32> {
        SequenceCheckpoints::new(page, computed, known, tokens).wanted.into()
    }

    #[test]
    fn a_prompt_has_a_few_checkpoints_up_to_its_last_page_end() {
        assert_eq!(wanted(16, 0, 0, 16), [0; 0], "the last token is computed");
        assert_eq!(wanted(16, 0, 0, 17), [16]);
        assert_eq!(wanted(16, 0, 0, 100), [96]);
        assert_eq!(wanted(16, 32, 64, 100), [64, 96], "where it departs from another");
        assert_eq!(wanted(16, 96, 96, 100), [0; 0]);
        assert_eq!(wanted(16, 0, 0, 300), [128, 256, 288]);
        let long = wanted(16, 160, 0, 16_000);
        assert_eq!(long.len(), INNER_MAX as usize + 1, "{long:?}");
        assert!(long.is_sorted() && long.iter().all(|at| at.is_multiple_of(16)), "{long:?}");
        assert_eq!(long.last(), Some(&15_984));
    }

    #[test]
    fn new_tokens_have_one_checkpoint_at_a_time() {
        let mut checkpoints = SequenceCheckpoints::new(16, 0, 0, 40);
        assert_eq!(checkpoints.next_position(0, 90, 16), Some(32));
        checkpoints.planned = vec![Some(PlannedCheckpoint { position: 32, number: 0 })];
        assert_eq!(checkpoints.next_position(20, 90, 16), Some(48));
        checkpoints.planned = vec![Some(PlannedCheckpoint { position: 48, number: 1 })];
        assert_eq!(checkpoints.next_position(40, 90, 16), None);
        checkpoints.planned = vec![None];
        assert_eq!(checkpoints.next_position(70, 90, 16), Some(80), "it was slow");
        assert_eq!(checkpoints.next_position(80, 90, 16), None, "never computed");
    }
}
