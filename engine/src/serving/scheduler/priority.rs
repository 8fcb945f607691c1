//! Order of sequences by priority, and preemption of background sequences for interactive ones.

use engine_api::serving::{EngineStatus, GenerationId, Priority};
use program::step_table::Field;
use protocol::table::StepTable;

use super::{LiveSequence, RunningSequence, Scheduler};
use crate::serving::grammar_tracker::GrammarStatus;

impl LiveSequence {
    /// Returns true if the sequence has background priority.
    pub(super) fn is_background(&self) -> bool {
        self.request.priority == Priority::Background
    }

    /// Returns the key by which sequences wait: priority, then arrival.
    pub(super) fn order(&self) -> (bool, GenerationId) {
        (self.is_background(), self.id)
    }
}

impl Scheduler {
    /// Inserts a sequence into the waiting ones.
    pub(super) fn enqueue(&mut self, sequence: LiveSequence) {
        let order = sequence.order();
        let place = self.waiting.iter().rposition(|other| other.order() < order);
        self.waiting.insert(place.map_or(0, |before| before + 1), sequence);
    }

    /// Makes background sequences leave their slots if interactive ones wait: one for each that
    /// could start, the youngest first. `batch` is the batch whose caches are exhausted; `None` if
    /// no batch has a free slot.
    pub(super) fn preempt_background(&mut self, table: &StepTable, batch: Option<usize>) {
        let is_ready = |sequence: &&LiveSequence| {
            !sequence.is_background()
                && self.grammars.status(sequence.request.grammar.number()) == GrammarStatus::Ready
        };
        let needed = self.waiting.iter().filter(is_ready).count();
        let concerns =
            |running: &&mut RunningSequence| batch.is_none_or(|batch| running.batch == batch);
        let mut candidates: Vec<&mut RunningSequence> =
            self.running.iter_mut().filter(concerns).collect();
        let is_leaving =
            |running: &RunningSequence| running.is_preempted || running.sequence.is_cancelled;
        let leaving = candidates.iter().filter(|running| is_leaving(running)).count();
        candidates.retain(|running| running.sequence.is_background() && !is_leaving(running));
        candidates.sort_unstable_by_key(|running| std::cmp::Reverse(running.sequence.id));
        for running in candidates.into_iter().take(needed.saturating_sub(leaving)) {
            running.preempt(table);
        }
    }

    /// Counts the sequences that run and wait.
    pub(super) fn count_sequences(&self, status: &mut EngineStatus) {
        let is_background = |running: &&RunningSequence| running.sequence.is_background();
        status.running = self.sequences_in_slots().count() as u32;
        status.background_running = self.sequences_in_slots().filter(is_background).count() as u32;
        status.waiting = self.waiting.len() as u32;
        let interactive = self.waiting.partition_point(|sequence| !sequence.is_background());
        status.background_waiting = status.waiting - interactive as u32;
    }
}

impl RunningSequence {
    /// Makes the sequence leave its slot; it waits again once the sampler has ended it.
    pub(super) fn preempt(&mut self, table: &StepTable) {
        self.is_preempted = true;
        table.set_field(self.batch, self.slot, Field::Cancel, 1);
    }
}
