//! Forms of answers on their way to the worker that samples, and back as ready.

use std::sync::Arc;

use workers::shared::protocol::ToWorker;

use crate::boundary::serving::PreparedGrammar;

/// A form that answers under way follow.
#[derive(Debug)]
struct Known {
    number: u32,
    prepared: Arc<PreparedGrammar>,
    /// Sequences that follow it.
    users: u32,
    state: State,
}

/// How far a form is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// No sequence that follows it is near a slot.
    Here,
    Sent,
    Ready,
    /// It cannot be followed: why.
    Failed(String),
}

/// Whether a sequence can begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FormState {
    /// It is to be sent.
    Here,
    Compiling,
    Ready,
    /// Why it never can.
    Failed(String),
}

/// All forms that answers under way follow.
#[derive(Debug, Default)]
pub(super) struct Forms {
    known: Vec<Known>,
    numbers: u32,
}

impl Forms {
    /// One more sequence follows a form; the form's number, from 1.
    pub(super) fn begin(&mut self, prepared: Arc<PreparedGrammar>) -> u32 {
        let is_it = |known: &&mut Known| known.prepared.grammar == prepared.grammar;
        if let Some(known) = self.known.iter_mut().find(is_it) {
            known.users += 1;
            return known.number;
        }
        self.numbers += 1;
        let (number, users, state) = (self.numbers, 1, State::Here);
        self.known.push(Known { number, prepared, users, state });
        number
    }

    /// A sequence follows it no more; what to say to the worker.
    pub(super) fn end(&mut self, number: u32) -> Option<ToWorker> {
        let place = self.known.iter().position(|known| known.number == number)?;
        self.known[place].users -= 1;
        if self.known[place].users > 0 {
            return None;
        }
        let known = self.known.swap_remove(place);
        (known.state != State::Here).then_some(ToWorker::Forget { number })
    }

    /// How far a form is; 0 is none, which is always ready.
    pub(super) fn state(&self, number: u32) -> FormState {
        match self.known.iter().find(|known| known.number == number).map(|known| &known.state) {
            None | Some(State::Ready) => FormState::Ready,
            Some(State::Here) => FormState::Here,
            Some(State::Sent) => FormState::Compiling,
            Some(State::Failed(reason)) => FormState::Failed(reason.clone()),
        }
    }

    /// The message that lets the worker compile it.
    pub(super) fn send(&mut self, number: u32) -> Option<ToWorker> {
        let known = self.known.iter_mut().find(|known| known.number == number)?;
        let form = known.prepared.form.clone()?;
        known.state = State::Sent;
        Some(ToWorker::Form { number, form })
    }

    /// What the worker says of one.
    pub(super) fn settle(&mut self, number: u32, failure: Option<String>) {
        if let Some(known) = self.known.iter_mut().find(|known| known.number == number) {
            known.state = failure.map_or(State::Ready, State::Failed);
        }
    }

    /// Whether the worker has yet to answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.known.iter().any(|known| known.state == State::Sent)
    }

    /// The worker is gone.
    pub(super) fn lose(&mut self) {
        for known in self.known.iter_mut().filter(|known| known.state != State::Here) {
            known.state = State::Here;
        }
    }
}
