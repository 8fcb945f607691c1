//! Stages of a group: its programs, and the number of steps of each.

use crate::sync::Ordering;

use super::{Control, STAGES_MAX};
use crate::packed::ProgramStage;

impl Control {
    /// Releases a group with its stages and its last step, counted from 0 over all stages; the
    /// sampling lane may announce an earlier one. A group without stages is the last: all lanes
    /// leave.
    ///
    /// # Panics
    /// Panics if there are more than [`STAGES_MAX`] stages, or if one has no steps.
    pub fn release(&self, stages: &[ProgramStage], last_step: u32) {
        assert!(stages.len() <= STAGES_MAX, "{} stages in a group", stages.len());
        assert!(stages.iter().all(|stage| stage.steps > 0), "a stage without steps");
        for (place, word) in self.header().stages.iter().enumerate() {
            word.store(stages.get(place).map_or(0, |stage| stage.pack()), Ordering::Relaxed);
        }
        self.set_last_step(Some(last_step));
        self.groups().signal();
        if stages.is_empty() {
            // Workers that stand by for the lanes of others leave too.
            self.takeovers().signal();
        }
    }

    /// Sets the stages that follow the one at `index`, counted from 0, of an open-ended group; with
    /// none, the group ends after that stage. Called by the sampling lane during that stage: lanes
    /// look at the next stage when they leave it.
    ///
    /// # Panics
    /// Panics if the stages would overwrite one that lanes may still look at.
    pub fn follow(&self, index: usize, stages: &[ProgramStage]) {
        assert!(stages.len() + 2 < STAGES_MAX, "{} stages follow", stages.len());
        let words = stages.iter().map(|stage| stage.pack()).chain([0]);
        for (place, word) in (index + 1..).zip(words) {
            // SYNC POINT: ordered by the barrier that ends the stage.
            self.header().stages[place % STAGES_MAX].store(word, Ordering::Relaxed);
        }
    }

    /// Returns the stage at `index`, counted from 0, of an open-ended group; `None` if there is
    /// none.
    pub fn stage(&self, index: usize) -> Option<ProgramStage> {
        ProgramStage::unpack(self.header().stages[index % STAGES_MAX].load(Ordering::Relaxed))
    }

    /// Returns the stages of the group that was released last.
    pub fn stages(&self) -> impl Iterator<Item = ProgramStage> {
        let words = self.header().stages.iter();
        words.map_while(|word| ProgramStage::unpack(word.load(Ordering::Relaxed)))
    }
}
