//! The boundary between a job and the engine that computes: all requests are known at the start.
//!
//! The job never accesses a worker or a device; the engine never accesses a file.

use super::event::BatchSink;
use super::request::GenerationRequest;

/// Reason why requests have no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("interrupted")]
    Interrupted,
    /// A complete sentence that names the worker.
    #[error("{0}")]
    Failed(String),
    /// The device has too little memory: a complete sentence that names the worker.
    #[error("{0}")]
    OutOfDeviceMemory(String),
}

/// Requests of a batch, which an engine may create one at a time: those with long prompts in common
/// take far more memory together than what they are created from.
pub trait BatchRequests {
    /// Returns the number of requests.
    fn count(&self) -> usize;

    /// Creates a request; `index` is below [`BatchRequests::count`].
    fn request(&self, index: usize) -> GenerationRequest;
}

impl BatchRequests for Vec<GenerationRequest> {
    fn count(&self) -> usize {
        self.len()
    }

    fn request(&self, index: usize) -> GenerationRequest {
        self[index].clone()
    }
}

/// An engine that continues prompts.
pub trait BatchEngine {
    /// Runs all requests to their ends, as many at a time as fit and roughly in this order.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] if the run was interrupted, [`EngineError::Failed`] if it
    /// cannot continue. Requests whose end was not reported then have no answer, and the engine
    /// must not be used again.
    fn run(
        &mut self,
        requests: &dyn BatchRequests,
        sink: &mut dyn BatchSink,
    ) -> Result<(), EngineError>;
}
