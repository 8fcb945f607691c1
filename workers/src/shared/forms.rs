//! Forms of answers that come while a run serves: compiled by a thread beside the lanes, so that no
//! step waits for one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grammar::{Grammars, Ready, Walk};

/// The forms that are compiled, by their numbers.
#[derive(Debug, Default)]
pub struct ReadyForms(Mutex<BTreeMap<u32, Ready>>);

impl ReadyForms {
    /// A walk from the beginning of a form; `None` where it is not there.
    pub fn begin(&self, number: u32) -> Option<Walk> {
        self.forms().get(&number).map(Ready::begin)
    }

    /// Keeps a form until it is forgotten.
    pub fn keep(&self, number: u32, form: Ready) {
        self.forms().insert(number, form);
    }

    /// No answer will begin with it any more.
    pub fn forget(&self, number: u32) {
        self.forms().remove(&number);
    }

    fn forms(&self) -> MutexGuard<'_, BTreeMap<u32, Ready>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a sampler finds the forms that answers follow.
#[derive(Debug, Clone)]
pub enum Forms {
    /// All were there when the run began.
    Given(Arc<Grammars>),
    /// They come while it goes on.
    Coming(Arc<ReadyForms>),
}
