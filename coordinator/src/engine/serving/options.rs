//! What a server is started with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use grammar::{Form, Grammar};
use program::plan::Plan;
use schedule::hybrid::{Policy, StepCosts};

use crate::engine::launch::LaunchOptions;

/// Tells how loading gets on; its answer `false` interrupts.
pub type Loading = Box<dyn FnMut(u64, u64) -> bool + Send>;

/// What a sampler follows of what was asked for.
pub type FormOf = dyn Fn(&Grammar) -> Form + Send + Sync;

/// What a server is started with.
pub struct ServingOptions {
    /// A plan of a run that serves.
    pub plan: Plan,
    /// Its grammars are the vocabulary of forms.
    pub launch: LaunchOptions,
    /// Makes what a sampler follows of what was asked for; `None` where answers cannot have a form,
    /// which nobody asks for then.
    pub forms: Option<Arc<FormOf>>,
    /// Who decides about iterations, in a plan whose sequences have owners.
    pub policy: Policy,
    /// What iterations take there; `None`: it is measured before the first.
    pub costs: Option<StepCosts>,
    /// How long a step should take where sequences wait for their next token.
    pub step: Duration,
    pub loading: Loading,
    /// Hears sentences for whoever runs the server.
    pub tell: Box<dyn Fn(&str) + Send>,
}

impl fmt::Debug for ServingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingOptions").field("step", &self.step).finish_non_exhaustive()
    }
}
