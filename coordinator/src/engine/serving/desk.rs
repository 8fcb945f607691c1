//! Sequences on their way: those that wait, those in slots, and what is told of them.

use std::collections::VecDeque;

use grammar::Form;
use program::plan::Plan;
use program::step_table::{Field, Finish, SlotState};
use workers::shared::group::{Placed, Request};
use workers::shared::protocol::ToWorker;
use workers::shared::serving::{Offer, free, offer, state};
use workers::shared::table::StepTable;

use super::forms::{FormState, Forms};
use crate::boundary::serving::{
    self, Event, Listener, Listening, Status, Submission, SubmissionId,
};

/// Workers that may be lost while a sequence is computed before it is taken for the cause.
const LOSSES_MAX: u8 = 3;

/// A sequence that was not answered yet.
struct Going {
    id: SubmissionId,
    request: Request,
    /// Log-probabilities of each token of its prompt that are still to be told.
    prompt_logprobs: u16,
    listener: Box<dyn Listener>,
    /// New tokens that were told, or are a final end-of-sequence token.
    answered: Vec<u32>,
    /// Whether its first token was drawn, and so much told.
    is_begun: bool,
    /// Nobody listens any more.
    is_left: bool,
    losses: u8,
    arrival: u32,
}

/// A sequence in a slot.
struct Seated {
    going: Going,
    batch: usize,
    slot: usize,
}

/// All sequences of a server.
#[derive(Default)]
pub(super) struct Desk {
    forms: Forms,
    /// For the worker that samples.
    messages: Vec<ToWorker>,
    waiting: VecDeque<Going>,
    seated: Vec<Seated>,
    arrivals: u32,
}

impl Desk {
    /// Whether nothing is to be answered.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.seated.is_empty()
    }

    /// A sequence that waits from now on.
    pub(super) fn submit(
        &mut self,
        id: SubmissionId,
        submission: Submission,
        form: Option<Form>,
        mut listener: Box<dyn Listener>,
    ) {
        if submission.grammar.is_some() && form.is_none() {
            listener.tell(Event::Failed(NO_FORMS.to_owned()));
            return;
        }
        let grammar = submission.grammar.clone().zip(form);
        let grammar = grammar.map_or(0, |(grammar, form)| self.forms.begin(grammar, form));
        let arrival = self.arrivals;
        self.arrivals = self.arrivals.wrapping_add(1);
        self.waiting.push_back(Going {
            id,
            prompt_logprobs: submission.prompt_logprobs,
            request: Request { grammar, ..request(submission) },
            listener,
            answered: Vec::new(),
            is_begun: false,
            is_left: false,
            losses: 0,
            arrival,
        });
    }

    /// Ends a sequence within a step.
    pub(super) fn cancel(&mut self, table: Option<&StepTable>, id: SubmissionId) {
        if let Some(place) = self.waiting.iter().position(|going| going.id == id) {
            let left = self.waiting.remove(place);
            left.into_iter().for_each(|going| self.end(&going));
        }
        for seated in self.seated.iter_mut().filter(|seated| seated.going.id == id) {
            seated.going.is_left = true;
            if let Some(table) = table {
                table.set_field(seated.batch, seated.slot, Field::Cancel, 1);
            }
        }
    }

    /// Offers those that wait to free slots, in the order of their arrival, each to the batch with
    /// the fewest.
    pub(super) fn offer(&mut self, table: &StepTable, plan: &Plan) {
        self.prepare(table.slots().count());
        let mut place = 0;
        while place < self.waiting.len() {
            if self.forms.state(self.waiting[place].request.grammar) != FormState::Ready {
                place += 1;
                continue;
            }
            let Some((batch, slot)) = self.free_slot(table) else { return };
            let Some(going) = self.waiting.remove(place) else { return };
            let placed = Placed { batch, slot, request: going.request.clone() };
            offer(
                table,
                &Offer {
                    placed: &placed,
                    answered: &going.answered,
                    computed: 0,
                    room: plan.shape.max_context,
                    arrival: going.arrival,
                    prompt_logprobs: going.prompt_logprobs,
                },
            );
            self.seated.push(Seated { going, batch, slot });
        }
    }

    /// Lets the forms be compiled that the first sequences wait for, and gives those up that have
    /// none.
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

    /// What is to be said to the worker that samples.
    pub(super) fn messages(&mut self) -> Vec<ToWorker> {
        std::mem::take(&mut self.messages)
    }

    /// Whether that worker has yet to say that a form is ready.
    pub(super) fn waits_for_forms(&self) -> bool {
        self.forms.is_waiting()
    }

    /// What it says of one.
    pub(super) fn settle(&mut self, number: u32, failure: Option<String>) {
        self.forms.settle(number, failure);
    }

    fn end(&mut self, going: &Going) {
        if going.request.grammar > 0 {
            self.messages.extend(self.forms.end(going.request.grammar));
        }
    }

    fn free_slot(&self, table: &StepTable) -> Option<(usize, usize)> {
        let of_batch = |batch| self.seated.iter().filter(move |one| one.batch == batch).count();
        let free = |batch: usize| {
            let is_free = |slot: &usize| state(table, batch, *slot) == SlotState::Free;
            (0..table.batch_size()).find(is_free).map(|slot| (batch, slot))
        };
        let mut batches: Vec<usize> = (0..table.batches()).collect();
        batches.sort_by_key(|batch| of_batch(*batch));
        batches.into_iter().find_map(free)
    }

    /// Tells what was drawn since, and takes back the slots of sequences that have ended.
    pub(super) fn observe(&mut self, table: &StepTable, plan: &Plan, status: &mut Status) {
        let eos = plan.config.eos_token_ids.as_slice();
        for mut seated in std::mem::take(&mut self.seated) {
            // What was drawn is read behind the state: of what has ended nothing is missed.
            let has_ended = state(table, seated.batch, seated.slot) == SlotState::Ended;
            seated.tell_tokens(table, eos, status);
            if has_ended {
                seated.tell_end(table, eos);
                free(table, seated.batch, seated.slot);
                self.end(&seated.going);
            } else {
                self.seated.push(seated);
            }
        }
        status.running = self.seated.len() as u32;
        status.waiting = self.waiting.len() as u32;
        let positions = |one: &Seated| one.going.request.prompt.len() + one.going.answered.len();
        status.kv_positions_used = self.seated.iter().map(positions).sum::<usize>() as u64;
    }

    /// Sequences in slots wait again, since what computed them is gone. Those that may be the cause
    /// are given up.
    pub(super) fn unseat(&mut self, reason: &str) {
        self.messages.clear();
        self.forms.lose();
        let mut unseated: Vec<Going> = self.seated.drain(..).map(|seated| seated.going).collect();
        unseated.sort_by_key(|going| going.id);
        for mut going in unseated.into_iter().rev() {
            going.losses += 1;
            if going.losses >= LOSSES_MAX {
                going.listener.tell(Event::Failed(format!(
                    "The model's workers were lost {LOSSES_MAX} times while this was computed: \
                     {reason}."
                )));
                self.end(&going);
            } else if going.is_left {
                self.end(&going);
            } else {
                self.waiting.push_front(going);
            }
        }
    }

    /// Gives all up.
    pub(super) fn fail_all(&mut self, reason: &str) {
        let seated = self.seated.drain(..).map(|seated| seated.going);
        for mut going in seated.chain(self.waiting.drain(..)) {
            going.listener.tell(Event::Failed(reason.to_owned()));
        }
    }
}

impl Seated {
    fn tell_tokens(&mut self, table: &StepTable, eos: &[u32], status: &mut Status) {
        let (batch, slot, going) = (self.batch, self.slot, &mut self.going);
        let generated = table.field(batch, slot, Field::Generated) as usize;
        for position in going.answered.len()..generated {
            let token = table.output(batch, slot, position);
            going.answered.push(token);
            status.generated_tokens += 1;
            if !going.is_begun {
                going.is_begun = true;
                status.prompt_tokens += going.request.prompt.len() as u64;
                let positions = 1..going.request.prompt.len();
                let of = |position| table.prompt_logprobs(batch, slot, position);
                let logprobs = positions.flat_map(of).collect();
                going.prompt_logprobs = 0;
                going.tell(Event::Prompt { cached_tokens: 0, logprobs });
            }
            if !going.is_end(token, eos) {
                let logprobs = table.logprobs(batch, slot, position).collect();
                going.tell(Event::Token { token, logprobs });
            }
        }
        if going.is_left {
            table.set_field(batch, slot, Field::Cancel, 1);
        }
    }

    fn tell_end(&mut self, table: &StepTable, eos: &[u32]) {
        let finish = table.field(self.batch, self.slot, Field::Finish);
        let going = &mut self.going;
        let at_end = going.answered.last().is_some_and(|token| going.is_end(*token, eos));
        going.tell(Event::Finished(if finish == Finish::NotFinite as u32 {
            serving::Finish::NotFinite
        } else if at_end || finish == Finish::Stop as u32 {
            serving::Finish::Stop
        } else {
            serving::Finish::Length
        }));
    }
}

impl Going {
    fn is_end(&self, token: u32, eos: &[u32]) -> bool {
        eos.contains(&token) && !self.request.ignore_eos
    }

    fn tell(&mut self, event: Event) {
        if !self.is_left {
            self.is_left = self.listener.tell(event) == Listening::No;
        }
    }
}

/// Why an answer has no form.
const NO_FORMS: &str = "This model's answers cannot have a form.";

fn request(submission: Submission) -> Request {
    let Submission { prompt, max_new, sampling, seed, id_hash, ignore_eos, logprobs, .. } =
        submission;
    Request {
        prompt,
        max_new,
        sampling,
        seed,
        id_hash,
        ignore_eos,
        any_logits: false,
        logprobs,
        grammar: 0,
    }
}
