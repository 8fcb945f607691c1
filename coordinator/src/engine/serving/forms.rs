//! Grammars of sequences that are not answered yet: their way to the worker that samples, and its
//! replies.

use std::sync::Arc;

use workers::shared::protocol::ToWorker;

use crate::boundary::serving::PreparedGrammar;

/// A grammar that unanswered sequences follow.
#[derive(Debug)]
struct Known {
    number: u32,
    prepared: Arc<PreparedGrammar>,
    /// Number of sequences that follow the grammar.
    users: u32,
    state: State,
}

/// Progress of a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Not sent: no sequence that follows the grammar is close to getting a slot.
    Here,
    Sent,
    Ready,
    /// The grammar cannot be followed, for this reason.
    Failed(String),
}

/// Readiness of a grammar, without which a sequence cannot begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FormState {
    /// To be sent to the worker.
    Here,
    Compiling,
    Ready,
    /// Sequences can never follow the grammar, for this reason.
    Failed(String),
}

/// All grammars that unanswered sequences follow.
#[derive(Debug, Default)]
pub(super) struct Forms {
    known: Vec<Known>,
    numbers: u32,
}

impl Forms {
    /// Adds a sequence that follows a grammar. Returns the number of the grammar, counted from 1.
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

    /// Removes a sequence that follows a grammar. If it was the last one, returns the message by
    /// which the worker drops the grammar.
    pub(super) fn end(&mut self, number: u32) -> Option<ToWorker> {
        let place = self.known.iter().position(|known| known.number == number)?;
        self.known[place].users -= 1;
        if self.known[place].users > 0 {
            return None;
        }
        let known = self.known.swap_remove(place);
        (known.state != State::Here).then_some(ToWorker::Forget { number })
    }

    /// Returns the readiness of a grammar. Number 0 stands for no grammar, which is always ready.
    pub(super) fn state(&self, number: u32) -> FormState {
        match self.known.iter().find(|known| known.number == number).map(|known| &known.state) {
            None | Some(State::Ready) => FormState::Ready,
            Some(State::Here) => FormState::Here,
            Some(State::Sent) => FormState::Compiling,
            Some(State::Failed(reason)) => FormState::Failed(reason.clone()),
        }
    }

    /// Returns the message by which the worker compiles the grammar.
    pub(super) fn send(&mut self, number: u32) -> Option<ToWorker> {
        let known = self.known.iter_mut().find(|known| known.number == number)?;
        let form = known.prepared.form.clone()?;
        known.state = State::Sent;
        Some(ToWorker::Form { number, form })
    }

    /// Records the worker's reply about a grammar.
    pub(super) fn settle(&mut self, number: u32, failure: Option<String>) {
        if let Some(known) = self.known.iter_mut().find(|known| known.number == number) {
            known.state = failure.map_or(State::Ready, State::Failed);
        }
    }

    /// Returns true if the worker has yet to reply.
    pub(super) fn is_waiting(&self) -> bool {
        self.known.iter().any(|known| known.state == State::Sent)
    }

    /// Marks all grammars as not sent, since the worker is lost.
    pub(super) fn lose(&mut self) {
        for known in self.known.iter_mut().filter(|known| known.state != State::Here) {
            known.state = State::Here;
        }
    }
}
