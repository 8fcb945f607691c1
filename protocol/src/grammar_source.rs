//! Grammars that arrive while a run serves. They are compiled by a thread that runs concurrently
//! with the lanes, so that no step waits for one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grammar::{CompiledGrammar, GrammarMatcher, GrammarSet};

/// The compiled grammars, by number.
#[derive(Debug, Default)]
pub struct ReadyGrammars(Mutex<BTreeMap<u32, CompiledGrammar>>);

impl ReadyGrammars {
    /// Returns a matcher at the beginning of a grammar, or `None` if the grammar is unknown.
    pub fn begin(&self, number: u32) -> Option<GrammarMatcher> {
        self.lock().get(&number).map(CompiledGrammar::start_matcher)
    }

    /// Stores a compiled grammar until it is forgotten.
    pub fn insert(&self, number: u32, form: CompiledGrammar) {
        self.lock().insert(number, form);
    }

    /// Drops a grammar that no further answer will use.
    pub fn remove(&self, number: u32) {
        self.lock().remove(&number);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, CompiledGrammar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Source from which a sampler takes the grammars that answers follow.
#[derive(Debug, Clone)]
pub enum GrammarSource {
    /// All grammars are known when the run begins.
    Preloaded(Arc<GrammarSet>),
    /// Grammars arrive during the run.
    Dynamic(Arc<ReadyGrammars>),
}
