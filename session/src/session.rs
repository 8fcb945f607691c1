//! A model and how it is computed: what the set-up of every command needs.

use crate::model::ModelHandle;
use crate::request::{SessionOptions, TunedThreads};
use crate::values::BatchesChoice;

/// A model, the hardware and the limits with which it is computed, and what was found out about
/// them. Each command fills the part that it needs.
#[derive(Debug, Clone)]
pub struct Session<'m> {
    pub model: &'m ModelHandle,
    pub options: SessionOptions,
    /// Number and size of batches; `None`: 1xB with the largest B up to 32 that fits memory.
    pub batches: Option<BatchesChoice>,
    /// Best numbers of threads according to profiles, which apply if `options.cpu_threads` is
    /// `None`.
    pub tuned_threads: TunedThreads,
}

impl<'m> Session<'m> {
    /// Creates a session without profiles, whose batches are as large as fits memory.
    pub fn new(model: &'m ModelHandle, options: &SessionOptions) -> Session<'m> {
        let tuned_threads = TunedThreads::default();
        Session { model, options: options.clone(), batches: None, tuned_threads }
    }
}
