//! A sequence in a slot, and its progress as read from the step table.

use engine_api::request::Pooling;
use engine_api::serving::{self, DraftCounts, EngineEvent, EngineStatus};
use program::step_table::{EndReason, Field};
use protocol::table::StepTable;

use super::RunningSequence;
use crate::serving::kv_cache::InFlightPrefill;

impl RunningSequence {
    /// Returns the caches, and the prompt while it is being computed.
    pub(super) fn in_flight_prefill(&self) -> InFlightPrefill<'_> {
        let is_leaving =
            self.sequence.has_started || self.sequence.is_cancelled || self.is_preempted;
        let tokens = if is_leaving { &[][..] } else { &self.sequence.request.prompt[..] };
        InFlightPrefill { allocation: &self.allocation, tokens }
    }

    pub(super) fn send_new_tokens(
        &mut self,
        table: &StepTable,
        eos: &[u32],
        has_ended: bool,
        status: &mut EngineStatus,
    ) {
        let (batch, slot) = (self.batch, self.slot);
        let generated =
            table.field(batch, slot, Field::Generated).min(self.sequence.request.max_new);
        let generated = generated as usize;
        let is_alone = has_ended && self.sequence.request.max_new == 0;
        if generated > 0 || is_alone && self.finish_cause(table, eos).is_some() {
            self.send_prompt(table, status);
        }
        let count = |field| u64::from(table.field(batch, slot, field));
        let (verified, accepted) = (count(Field::Verified), count(Field::Accepted));
        let before = std::mem::replace(&mut self.drafts, DraftCounts { verified, accepted });
        let drafts = DraftCounts {
            verified: verified.saturating_sub(before.verified),
            accepted: accepted.saturating_sub(before.accepted),
        };
        status.drafts += drafts;
        let sequence = &mut self.sequence;
        if drafts != DraftCounts::default() {
            sequence.send(EngineEvent::Drafts(drafts));
        }
        for position in sequence.generated.len()..generated {
            let token = table.output(batch, slot, position);
            sequence.generated.push(token);
            status.generated_tokens += 1;
            if !sequence.is_end(token, eos) {
                let logprobs = table.logprobs(batch, slot, position).collect();
                sequence.send(EngineEvent::Token { token, logprobs });
            }
        }
        if sequence.is_cancelled {
            table.set_field(batch, slot, Field::Cancel, 1);
        }
    }

    /// Reports that the prompt is computed, with its log-probabilities, once.
    fn send_prompt(&mut self, table: &StepTable, status: &mut EngineStatus) {
        let (batch, slot, going) = (self.batch, self.slot, &mut self.sequence);
        if std::mem::replace(&mut going.has_started, true) {
            return;
        }
        going.request.prompt_logprobs = 0;
        let first = going.request.prompt_logprobs_from.max(1) as usize;
        let logprobs_at = |position| table.prompt_logprobs(batch, slot, position);
        let logprobs = (first..going.request.prompt.len()).flat_map(logprobs_at).collect();
        let cached_tokens = going.cached_tokens;
        let computed = going.request.prompt.len() - usize::from(going.request.max_new == 0);
        status.prompt_tokens += computed as u64 - u64::from(cached_tokens);
        status.cached_tokens += u64::from(cached_tokens);
        let queue_time = going.queue_time;
        going.send(EngineEvent::Prompt { cached_tokens, queue_time, logprobs });
        if let Some(pooling) = going.request.pooling.take() {
            let tokens = going.request.prompt.len();
            let row = table.pooled_row(batch, slot);
            going.send(EngineEvent::Pooled(match pooling {
                Pooling::LastToken => row.collect(),
                Pooling::Mean => row.map(|sum| sum / tokens as f32).collect(),
            }));
        }
    }

    /// Returns the reason why a sequence in an [`Ended`] slot has ended by itself; `None` if it was
    /// cancelled.
    ///
    /// [`Ended`]: program::step_table::SlotState::Ended
    pub(super) fn finish_cause(
        &self,
        table: &StepTable,
        eos: &[u32],
    ) -> Option<serving::FinishCause> {
        let is_length = || self.finish_field(table) == EndReason::Length as u32;
        let by_length = || is_length().then_some(serving::FinishCause::Length);
        self.finish_cause_of_lost(table, eos).or_else(by_length)
    }

    /// Returns the reason why a sequence has ended, regardless of the state of its slot: its worker
    /// may have been killed between any two stores (see `protocol::serving`). The reported
    /// tokens decide, except that the table indicates if the logits were not finite, which no token
    /// follows.
    pub(super) fn finish_cause_of_lost(
        &self,
        table: &StepTable,
        eos: &[u32],
    ) -> Option<serving::FinishCause> {
        if self.finish_field(table) == EndReason::NotFinite as u32 {
            return Some(serving::FinishCause::NotFinite);
        }
        self.sequence.finish_cause(eos)
    }

    fn finish_field(&self, table: &StepTable) -> u32 {
        table.field(self.batch, self.slot, Field::Finish)
    }
}
