//! Grammars of sequences that are not answered yet: their way to the worker that samples, and its
//! replies.

use std::sync::Arc;

use engine_api::serving::PreparedGrammar;
use protocol::messages::ToWorker;

/// A grammar that unanswered sequences follow.
#[derive(Debug)]
struct GrammarEntry {
    number: u32,
    prepared: Arc<PreparedGrammar>,
    /// Number of sequences that follow the grammar.
    users: u32,
    state: CompileState,
}

/// Progress of a grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CompileState {
    /// Not sent: no sequence that follows the grammar is close to getting a slot.
    NotSent,
    Sent,
    Ready,
    /// The grammar cannot be followed, for this reason.
    Failed(String),
}

/// Readiness of a grammar, without which a sequence cannot begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GrammarStatus {
    /// To be sent to the worker.
    NotSent,
    Compiling,
    Ready,
    /// Sequences can never follow the grammar, for this reason.
    Failed(String),
}

/// All grammars that unanswered sequences follow.
#[derive(Debug, Default)]
pub(super) struct GrammarTracker {
    entries: Vec<GrammarEntry>,
    last_number: u32,
}

impl GrammarTracker {
    /// Adds a sequence that follows a grammar. Returns the number of the grammar, counted from 1.
    pub(super) fn acquire(&mut self, prepared: Arc<PreparedGrammar>) -> u32 {
        let is_it = |known: &&mut GrammarEntry| known.prepared.grammar == prepared.grammar;
        if let Some(known) = self.entries.iter_mut().find(is_it) {
            known.users += 1;
            return known.number;
        }
        self.last_number += 1;
        let (number, users, state) = (self.last_number, 1, CompileState::NotSent);
        self.entries.push(GrammarEntry { number, prepared, users, state });
        number
    }

    /// Removes a sequence that follows a grammar. If it was the last one, returns the message by
    /// which the worker drops the grammar.
    pub(super) fn release(&mut self, number: u32) -> Option<ToWorker> {
        let place = self.entries.iter().position(|known| known.number == number)?;
        self.entries[place].users -= 1;
        if self.entries[place].users > 0 {
            return None;
        }
        let known = self.entries.swap_remove(place);
        (known.state != CompileState::NotSent).then_some(ToWorker::ForgetGrammar { number })
    }

    /// Returns the readiness of a grammar. Number 0 stands for no grammar, which is always ready.
    pub(super) fn status(&self, number: u32) -> GrammarStatus {
        match self.entries.iter().find(|known| known.number == number).map(|known| &known.state) {
            None | Some(CompileState::Ready) => GrammarStatus::Ready,
            Some(CompileState::NotSent) => GrammarStatus::NotSent,
            Some(CompileState::Sent) => GrammarStatus::Compiling,
            Some(CompileState::Failed(reason)) => GrammarStatus::Failed(reason.clone()),
        }
    }

    /// Returns the message by which the worker compiles the grammar.
    pub(super) fn send(&mut self, number: u32) -> Option<ToWorker> {
        let known = self.entries.iter_mut().find(|known| known.number == number)?;
        let compiled = known.prepared.compiled.clone()?;
        known.state = CompileState::Sent;
        Some(ToWorker::CompileGrammar { number, grammar: compiled })
    }

    /// Records the worker's reply about a grammar.
    pub(super) fn set_result(&mut self, number: u32, failure: Option<String>) {
        if let Some(known) = self.entries.iter_mut().find(|known| known.number == number) {
            known.state = failure.map_or(CompileState::Ready, CompileState::Failed);
        }
    }

    /// Returns true if the worker has yet to reply.
    pub(super) fn is_waiting(&self) -> bool {
        self.entries.iter().any(|known| known.state == CompileState::Sent)
    }

    /// Marks all grammars as not sent, since the worker is lost.
    pub(super) fn reset(&mut self) {
        for known in self.entries.iter_mut().filter(|known| known.state != CompileState::NotSent) {
            known.state = CompileState::NotSent;
        }
    }
}
