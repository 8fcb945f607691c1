//! A sequence in a slot, and its progress as read from the step table.

use program::step_table::{Field, Finish};
use workers::shared::table::StepTable;

use super::Seated;
use crate::boundary::serving::{self, Event, Status};
use crate::engine::serving::caches::Computing;

impl Seated {
    /// Returns the caches, and the prompt while it is being computed.
    pub(super) fn in_prompt(&self) -> Computing<'_> {
        let leaves = self.going.is_begun || self.going.is_left || self.is_preempted;
        let tokens = if leaves { &[][..] } else { &self.going.request.prompt[..] };
        Computing { seat: &self.caches, tokens }
    }

    pub(super) fn tell_tokens(
        &mut self,
        table: &StepTable,
        eos: &[u32],
        has_ended: bool,
        status: &mut Status,
    ) {
        let (batch, slot) = (self.batch, self.slot);
        let generated = table.field(batch, slot, Field::Generated).min(self.going.request.max_new);
        let generated = generated as usize;
        let is_alone = has_ended && self.going.request.max_new == 0;
        if generated > 0 || is_alone && self.finish(table, eos).is_some() {
            self.tell_prompt(table, status);
        }
        let going = &mut self.going;
        for position in going.answered.len()..generated {
            let token = table.output(batch, slot, position);
            going.answered.push(token);
            status.generated_tokens += 1;
            if !going.is_end(token, eos) {
                let logprobs = table.logprobs(batch, slot, position).collect();
                going.tell(Event::Token { token, logprobs });
            }
        }
        if going.is_left {
            table.set_field(batch, slot, Field::Cancel, 1);
        }
    }

    /// Reports that the prompt is computed, with its log-probabilities, once.
    fn tell_prompt(&mut self, table: &StepTable, status: &mut Status) {
        let (batch, slot, going) = (self.batch, self.slot, &mut self.going);
        if std::mem::replace(&mut going.is_begun, true) {
            return;
        }
        let said = std::mem::take(&mut going.said);
        let of = |position| table.prompt_logprobs(batch, slot, position);
        let logprobs = (said.first as usize..going.request.prompt.len()).flat_map(of).collect();
        let cached_tokens = going.cached_tokens;
        let computed = going.request.prompt.len() - usize::from(going.request.max_new == 0);
        status.prompt_tokens += computed as u64 - u64::from(cached_tokens);
        status.cached_tokens += u64::from(cached_tokens);
        let waited = going.waited;
        going.tell(Event::Prompt { cached_tokens, waited, logprobs });
    }

    /// Returns the reason why a sequence in an [`Ended`] slot has ended by itself; `None` if it was
    /// cancelled.
    ///
    /// [`Ended`]: program::step_table::SlotState::Ended
    pub(super) fn finish(&self, table: &StepTable, eos: &[u32]) -> Option<serving::Finish> {
        let is_length = || self.finish_field(table) == Finish::Length as u32;
        let by_length = || is_length().then_some(serving::Finish::Length);
        self.finish_of_lost(table, eos).or_else(by_length)
    }

    /// Returns the reason why a sequence has ended, regardless of the state of its slot: its worker
    /// may have been killed between any two stores (see `workers::shared::serving`). The reported
    /// tokens decide, except that the table indicates if the logits were not finite, which no token
    /// follows.
    pub(super) fn finish_of_lost(&self, table: &StepTable, eos: &[u32]) -> Option<serving::Finish> {
        if self.finish_field(table) == Finish::NotFinite as u32 {
            return Some(serving::Finish::NotFinite);
        }
        self.going.finish(eos)
    }

    fn finish_field(&self, table: &StepTable) -> u32 {
        table.field(self.batch, self.slot, Field::Finish)
    }
}
