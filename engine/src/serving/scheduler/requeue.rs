//! Sequences that lose their slots: they wait again unless they have all of their tokens.

use engine_api::serving::{self, EngineEvent};
use program::plan::Plan;
use protocol::table::StepTable;

use super::{KvCacheManager, LiveSequence, PrefixCacheIndex, RunningSequence, Scheduler};

/// Number of losses of workers during the computation of a sequence after which the sequence is
/// considered the cause.
const LOSSES_MAX: u8 = 3;

impl Scheduler {
    /// Returns a sequence to the waiting ones, in their order. A sequence that has all of
    /// its tokens is answered instead: if it were computed further, it would have more tokens than
    /// requested.
    pub(super) fn requeue(&mut self, mut sequence: LiveSequence, eos: &[u32]) {
        if let Some(finish) = sequence.finish_cause(eos) {
            sequence.send(EngineEvent::Finished(finish));
            self.release_grammar(&sequence);
            return;
        }
        self.enqueue(sequence);
    }

    /// Removes all sequences from their slots after their workers were lost and
    /// [`Scheduler::observe`] has read `table` for the last time. Sequences that have ended are
    /// answered, those that may be the cause are failed, and the others wait again.
    pub(in super::super) fn requeue_all(&mut self, table: &StepTable, plan: &Plan, reason: &str) {
        let eos = plan.config.eos_token_ids.as_slice();
        self.kv_cache = KvCacheManager::new(plan);
        self.messages.clear();
        self.grammars.reset();
        self.prefix_cache.iter_mut().for_each(PrefixCacheIndex::reset);
        let running = std::mem::take(&mut self.running).into_iter();
        let mut removed: Vec<(LiveSequence, Option<serving::FinishCause>)> = running
            .map(|running| {
                let finish = running.finish_cause_of_lost(table, eos);
                (running.sequence, finish)
            })
            .collect();
        // The slots of these sequences do not contain anything of theirs yet.
        let prefetching = std::mem::take(&mut self.prefetching).into_iter();
        removed.extend(prefetching.map(|fetched| (fetched.running.sequence, None)));
        for (mut sequence, finish) in removed {
            sequence.losses += 1;
            if sequence.is_cancelled {
                self.release_grammar(&sequence);
            } else if let Some(finish) = finish {
                sequence.send(EngineEvent::Finished(finish));
                self.release_grammar(&sequence);
            } else if sequence.losses >= LOSSES_MAX {
                sequence.send(EngineEvent::Failed(format!(
                    "The model's workers were lost {LOSSES_MAX} times while this was computed: \
                     {reason}."
                )));
                self.release_grammar(&sequence);
            } else {
                self.requeue(sequence, eos);
            }
        }
    }

    /// Fails all sequences.
    pub(in super::super) fn fail_all(&mut self, reason: &str) {
        self.running.extend(self.prefetching.drain(..).map(|fetched| fetched.running));
        let running = self.running.drain(..).map(|running: RunningSequence| running.sequence);
        for mut sequence in running.chain(self.waiting.drain(..)) {
            sequence.send(EngineEvent::Failed(reason.to_owned()));
        }
    }
}
