//! Grammars that arrive while a run serves. They are compiled by a thread that runs concurrently
//! with the lanes, so that no step waits for one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grammar::{Grammars, Ready, Walk};

/// The compiled grammars, by number.
#[derive(Debug, Default)]
pub struct ReadyForms(Mutex<BTreeMap<u32, Ready>>);

impl ReadyForms {
    /// Returns a matcher at the beginning of a grammar, or `None` if the grammar is unknown.
    pub fn begin(&self, number: u32) -> Option<Walk> {
        self.forms().get(&number).map(Ready::begin)
    }

    /// Stores a compiled grammar until it is forgotten.
    pub fn keep(&self, number: u32, form: Ready) {
        self.forms().insert(number, form);
    }

    /// Drops a grammar that no further answer will use.
    pub fn forget(&self, number: u32) {
        self.forms().remove(&number);
    }

    fn forms(&self) -> MutexGuard<'_, BTreeMap<u32, Ready>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Source from which a sampler takes the grammars that answers follow.
#[derive(Debug, Clone)]
pub enum Forms {
    /// All grammars are known when the run begins.
    Given(Arc<Grammars>),
    /// Grammars arrive during the run.
    Coming(Arc<ReadyForms>),
}
