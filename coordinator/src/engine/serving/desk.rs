//! Sequences that are not answered yet: those that wait, those in slots, and the events reported
//! for them.

mod fetch;
mod going;
mod prompts_going;
mod put_back;
mod seated;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use program::plan::Plan;
use program::step_table::{Field, SlotState};
use workers::shared::group::{Placed, Request};
use workers::shared::protocol::{StoredPage, ToWorker};
use workers::shared::serving::{Offer, PromptLogprobs, free, offer, state};
use workers::shared::table::StepTable;

use super::caches::{Caches, Part, Seat, kind};
use super::forms::{FormState, Forms};
use super::request::request;
use super::shelf::Shelf;
use crate::boundary::serving::{
    self, Event, Listener, PreparedGrammar, Status, Submission, SubmissionId,
};

/// A sequence that is not answered yet.
struct Going {
    id: SubmissionId,
    request: Request,
    /// Log-probabilities of its prompt's tokens that are still to be reported.
    said: PromptLogprobs,
    listener: Box<dyn Listener>,
    /// New tokens, all of which were reported, except for a final end-of-sequence token.
    answered: Vec<u32>,
    came: Instant,
    /// Time until the sequence got the slot in which its prompt was computed.
    waited: Duration,
    /// True once its prompt was computed and this was reported.
    is_begun: bool,
    /// Number of prompt tokens whose keys and values were found in caches.
    cached_tokens: u32,
    /// True once the listener is gone or the sequence was cancelled.
    is_left: bool,
    losses: u8,
    arrival: u32,
}

/// A sequence in a slot.
struct Seated {
    going: Going,
    batch: usize,
    slot: usize,
    caches: Seat,
    /// True if the sequence is to leave its slot and wait again.
    is_preempted: bool,
}

/// A sequence that has a slot and caches, into which its prefix is being fetched.
struct Fetching {
    /// Number of the request that was made for it.
    number: u32,
    stage: Stage,
    seated: Seated,
}

/// Operation that is in progress before a sequence is offered.
enum Stage {
    /// A lookup of which of these pages are stored.
    Looking { pages: Vec<StoredPage>, since: Instant },
    /// Stored pages are being read.
    Reading,
    /// A part of a page is being copied.
    Copying(Part),
}

/// Scheduler of a server: all sequences that are not answered yet. First come, first served, except
/// for sequences that wait for a grammar or for another sequence's pages.
pub(super) struct Desk {
    caches: Caches,
    /// True if new tokens select the positions that they attend to, so that their keys and values
    /// cannot be shared.
    selects: bool,
    forms: Forms,
    /// Messages to be sent to the workers.
    messages: Vec<ToWorker>,
    waiting: VecDeque<Going>,
    /// Sequences that have a slot and whose prefix is being fetched.
    fetching: Vec<Fetching>,
    /// Number of the last request for a fetch.
    numbers: u32,
    seated: Vec<Seated>,
    /// Store of prompt prefixes, if there is one.
    shelf: Option<Shelf>,
    arrivals: u32,
}

impl Desk {
    pub(super) fn new(plan: &Plan, shelf: Option<Shelf>) -> Desk {
        Desk {
            caches: Caches::new(plan),
            selects: plan.map.kv_select.is_some(),
            forms: Forms::default(),
            messages: Vec::new(),
            waiting: VecDeque::new(),
            fetching: Vec::new(),
            numbers: 0,
            seated: Vec::new(),
            shelf,
            arrivals: 0,
        }
    }

    /// Returns true if there is no sequence to be answered.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.fetching.is_empty() && self.seated.is_empty()
    }

    /// Adds a sequence, which waits from now on. Fails it if its grammar is not supported.
    pub(super) fn submit(
        &mut self,
        id: SubmissionId,
        submission: Submission,
        mut listener: Box<dyn Listener>,
    ) {
        let has_no_form = |prepared: &Arc<PreparedGrammar>| prepared.form.is_none();
        if submission.grammar.as_ref().is_some_and(has_no_form) {
            listener.tell(Event::Failed(NO_FORMS.to_owned()));
            return;
        }
        let grammar = submission.grammar.clone();
        let grammar = grammar.map_or(0, |prepared| self.forms.begin(prepared));
        let arrival = self.arrivals;
        self.arrivals = self.arrivals.wrapping_add(1);
        self.waiting.push_back(Going {
            id,
            said: PromptLogprobs {
                count: submission.prompt_logprobs,
                first: submission.prompt_logprobs_from.max(1),
            },
            request: Request { grammar, ..request(submission) },
            listener,
            answered: Vec::new(),
            came: Instant::now(),
            waited: Duration::ZERO,
            is_begun: false,
            cached_tokens: 0,
            is_left: false,
            losses: 0,
            arrival,
        });
    }

    /// Cancels a sequence, which ends within a step.
    pub(super) fn cancel(&mut self, table: Option<&StepTable>, id: SubmissionId) {
        if let Some(place) = self.waiting.iter().position(|going| going.id == id) {
            let left = self.waiting.remove(place);
            left.into_iter().for_each(|going| self.end(&going));
        }
        self.cancel_fetch(id);
        for seated in self.seated.iter_mut().filter(|seated| seated.going.id == id) {
            seated.going.is_left = true;
            if let Some(table) = table {
                table.set_field(seated.batch, seated.slot, Field::Cancel, 1);
            }
        }
    }

    /// Offers waiting sequences to free slots in the order of their arrival, each in the batch with
    /// the fewest sequences.
    pub(super) fn offer(&mut self, table: &StepTable, plan: &Plan) {
        let most = table.slots().count();
        self.prepare(most);
        let (mut place, mut held_back) = (0, 0);
        while place < self.waiting.len() && held_back <= most {
            if self.forms.state(self.waiting[place].request.grammar) != FormState::Ready {
                place += 1;
                continue;
            }
            let Some((batch, slot)) = self.free_slot(table) else { return };
            let others = || self.with_slots().filter(|seated| seated.batch == batch);
            let waiting = &self.waiting[place];
            let (kind, tokens) = (kind(plan, &waiting.request), waiting.tokens());
            let known = &tokens[..waiting.findable(self.selects)];
            if others()
                .any(|seated| self.caches.is_computing((batch, kind), known, &seated.in_prompt()))
            {
                (place, held_back) = (place + 1, held_back + 1);
                continue;
            }
            let growing = others().filter(|seated| seated.caches.room < seated.going.longest());
            let growing = growing.count();
            let caches = self.caches.seat((batch, growing), kind, known, tokens.len());
            // First come, first served: a sequence that does not fit blocks those that arrived
            // later.
            let Some(caches) = caches else { return };
            let Some(going) = self.waiting.remove(place) else { return };
            self.bring(table, Seated { going, batch, slot, caches, is_preempted: false });
        }
    }

    /// Returns the sequences that have a slot.
    fn with_slots(&self) -> impl Iterator<Item = &Seated> {
        self.seated.iter().chain(self.fetching.iter().map(|one| &one.seated))
    }

    fn seat(
        &mut self,
        table: &StepTable,
        (batch, slot): (usize, usize),
        mut going: Going,
        caches: Seat,
    ) {
        self.caches.write(table, (batch, slot), &caches);
        if !going.is_begun {
            going.cached_tokens = caches.computed;
            going.waited = going.came.elapsed();
        }
        if let Some(shelf) = &mut self.shelf {
            shelf.begin(going.id, batch, caches.kind(), &going.request.prompt);
        }
        let placed = Placed { batch, slot, request: going.request.clone() };
        offer(
            table,
            &Offer {
                placed: &placed,
                answered: &going.answered,
                computed: caches.computed,
                room: caches.room,
                arrival: going.arrival,
                said: going.said,
            },
        );
        self.seated.push(Seated { going, batch, slot, caches, is_preempted: false });
    }

    /// Requests the compilation of the grammars that the first `most` sequences wait for, and fails
    /// sequences whose grammar cannot be followed.
    fn prepare(&mut self, most: usize) {
        let mut place = 0;
        while place < self.waiting.len().min(most) {
            let number = self.waiting[place].request.grammar;
            match self.forms.state(number) {
                FormState::Here => self.messages.extend(self.forms.send(number)),
                FormState::Compiling | FormState::Ready => {}
                FormState::Failed(reason) => {
                    if let Some(mut going) = self.waiting.remove(place) {
                        let sentence = format!("The answer cannot have this form: {reason}.");
                        going.tell(Event::Failed(sentence));
                        self.end(&going);
                    }
                    continue;
                }
            }
            place += 1;
        }
    }

    /// Takes the messages to be sent to the workers.
    pub(super) fn messages(&mut self) -> Vec<ToWorker> {
        std::mem::take(&mut self.messages)
    }

    /// Returns true if the worker that samples has yet to report that a grammar is ready.
    pub(super) fn waits_for_forms(&self) -> bool {
        self.forms.is_waiting()
    }

    fn end(&mut self, going: &Going) {
        if going.request.grammar > 0 {
            self.messages.extend(self.forms.end(going.request.grammar));
        }
    }

    fn free_slot(&self, table: &StepTable) -> Option<(usize, usize)> {
        let of_batch = |batch| self.with_slots().filter(move |one| one.batch == batch).count();
        let is_fetching = |batch, slot| {
            self.fetching.iter().any(|one| (one.seated.batch, one.seated.slot) == (batch, slot))
        };
        let free = |batch: usize| {
            let is_free = |slot: &usize| {
                state(table, batch, *slot) == SlotState::Free && !is_fetching(batch, *slot)
            };
            (0..table.batch_size()).find(is_free).map(|slot| (batch, slot))
        };
        let mut batches: Vec<usize> = (0..table.batches()).collect();
        batches.sort_by_key(|batch| of_batch(*batch));
        batches.into_iter().find_map(free)
    }

    /// Reports the tokens sampled since the last call, takes back the slots of sequences that have
    /// ended, and extends the caches of the others.
    pub(super) fn observe(&mut self, table: &StepTable, plan: &Plan, status: &mut Status) {
        let eos = plan.config.eos_token_ids.as_slice();
        for mut seated in std::mem::take(&mut self.seated) {
            // Tokens are read after the state, so that none of an ended sequence is missed.
            let has_ended = state(table, seated.batch, seated.slot) == SlotState::Ended;
            seated.tell_tokens(table, eos, has_ended, status);
            let computed = table.field(seated.batch, seated.slot, Field::Computed) as usize;
            let Seated { going, batch, caches, .. } = &mut seated;
            // The sampler may have progressed beyond the reported tokens.
            let computed = computed.min(going.shared_end(self.selects));
            let prompt = (going.request.prompt.len(), has_ended);
            self.caches.fill(*batch, caches, computed, prompt, || going.tokens());
            if has_ended {
                self.unseat_ended(table, eos, seated, status);
            } else {
                self.seated.push(seated);
            }
        }
        self.grow(table);
        status.running = self.with_slots().count() as u32;
        status.waiting = self.waiting.len() as u32;
        let known = self.seated.iter().map(|one| one.going.known() as u64).sum();
        let slots = table.slots().count() as u64;
        (status.kv_positions, status.kv_positions_used) = self.caches.positions(slots, known);
    }

    fn unseat_ended(
        &mut self,
        table: &StepTable,
        eos: &[u32],
        seated: Seated,
        status: &mut Status,
    ) {
        let finish = seated.finish(table, eos);
        let Seated { mut going, batch, slot, caches, is_preempted } = seated;
        free(table, batch, slot);
        self.caches.release(batch, caches);
        if let Some(shelf) = &mut self.shelf {
            shelf.end(going.id);
        }
        match finish {
            // The sequence has ended only because it was preempted.
            None if is_preempted && !going.is_left => {
                status.preemptions += 1;
                self.put_back(going, eos);
            }
            finish => {
                going.tell(Event::Finished(finish.unwrap_or(serving::Finish::Stop)));
                self.end(&going);
            }
        }
    }

    /// Extends the caches of running sequences for the tokens that they sample next. If there is
    /// not enough space, the youngest sequence of the batch is preempted.
    fn grow(&mut self, table: &StepTable) {
        let mut short = Vec::new();
        for seated in self.seated.iter_mut().filter(|seated| !seated.is_preempted) {
            let place = (seated.batch, seated.slot);
            // The next token is computed before the caches are extended again.
            let needed = (seated.going.known() as u32 + 2).min(seated.going.longest());
            if !self.caches.grow(table, place, &mut seated.caches, needed) {
                short.push(seated.batch);
            }
        }
        for batch in short {
            let of_batch = self.seated.iter_mut().filter(|seated| seated.batch == batch);
            let mut of_batch: Vec<&mut Seated> = of_batch.collect();
            // A sequence that is leaving already releases its caches.
            if of_batch.iter().any(|seated| seated.is_preempted || seated.going.is_left) {
                continue;
            }
            if let Some(youngest) = of_batch.iter_mut().max_by_key(|seated| seated.going.id) {
                youngest.is_preempted = true;
                table.set_field(youngest.batch, youngest.slot, Field::Cancel, 1);
            }
        }
    }
}

/// Failure of a sequence with a grammar if the model does not support grammars.
const NO_FORMS: &str = "This model's answers cannot have a form.";
