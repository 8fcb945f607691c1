//! Checkpoints that the sampler takes of sequences (`program::checkpoints`).
//!
//! The coordinator plans a checkpoint at a position that the sequence has not computed yet; the
//! sampler lists no rows beyond the position until it has taken the checkpoint there. A plan that
//! arrives too late, after the sequence has passed the position, has no effect.

use program::step_table::CHECKPOINT_WORDS;

use super::StepTable;

/// Words of a planned checkpoint, in order.
const POSITION: usize = 0;
const NUMBER: usize = 1;
const TAKEN_AT: usize = 2;
const _: () = assert!(TAKEN_AT + 1 == CHECKPOINT_WORDS);

impl StepTable {
    /// Returns the number of checkpoints of a sequence that can be planned; 0 if none are taken.
    pub fn planned_checkpoints(&self) -> usize {
        self.layout.planned_checkpoints as usize
    }

    /// Removes the checkpoints planned for the sequence that was in a slot before. Precedes the
    /// offer of the next one.
    pub fn clear_checkpoints(&self, batch: usize, sequence: usize) {
        for index in 0..self.planned_checkpoints() {
            let first = self.layout.checkpoint(batch, sequence, index);
            (first..first + CHECKPOINT_WORDS).for_each(|word| self.words.store(word, 0));
        }
    }

    /// Plans checkpoint `number` of the batch at `position` of a sequence, in place of one that was
    /// taken or missed at an earlier position.
    pub fn plan_checkpoint(
        &self,
        batch: usize,
        sequence: usize,
        index: usize,
        position: u32,
        number: u32,
    ) {
        let first = self.layout.checkpoint(batch, sequence, index);
        self.words.store(first + NUMBER, number);
        // SYNC POINT: a planned checkpoint, released here once its number is written.
        self.words.publish(first + POSITION, position);
    }

    /// Returns true if the checkpoint planned at `position` was taken. If it was not, and the
    /// sequence is known to have computed more than `position` positions, it never will be.
    pub fn is_checkpoint_taken(
        &self,
        batch: usize,
        sequence: usize,
        index: usize,
        position: u32,
    ) -> bool {
        let first = self.layout.checkpoint(batch, sequence, index);
        // SYNC POINT: a taken checkpoint, acquired here: its bytes are written.
        self.words.acquire(first + TAKEN_AT) == position
    }

    /// Returns the position of the next checkpoint of a sequence with `computed` positions; no rows
    /// beyond it are listed.
    pub(crate) fn next_checkpoint(
        &self,
        batch: usize,
        sequence: usize,
        computed: u32,
    ) -> Option<u32> {
        let position =
            |index| self.words.acquire(self.layout.checkpoint(batch, sequence, index) + POSITION);
        (0..self.planned_checkpoints()).map(position).filter(|at| *at > computed).min()
    }

    /// Calls `take` with the number of each checkpoint that is due for a sequence with `computed`
    /// positions, and marks it as taken. Called by the sampler alone.
    pub fn take_checkpoints(
        &self,
        batch: usize,
        sequence: usize,
        computed: u32,
        mut take: impl FnMut(u32),
    ) {
        for index in 0..self.planned_checkpoints() {
            let first = self.layout.checkpoint(batch, sequence, index);
            // SYNC POINT: a planned checkpoint, acquired here: its number is written.
            let position = self.words.acquire(first + POSITION);
            let is_due = position == computed && position > 0;
            if is_due && self.words.load(first + TAKEN_AT) != position {
                take(self.words.load(first + NUMBER));
                // SYNC POINT: a taken checkpoint, released here once its bytes are written.
                self.words.publish(first + TAKEN_AT, position);
            }
        }
    }
}
