//! The boundary between the job and the engine that computes: sequences in, tokens out.
//!
//! The job never accesses a worker or a device; the engine never accesses a request or a file.

pub use kernels::Logprob;
use std::fmt::Debug;
use std::ops::ControlFlow;

use super::request::GenerationRequest;

/// Reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishCause {
    /// An end-of-sequence token was sampled, or [`Observer::on_token`] returned `Break`.
    Stop,
    /// The sequence has `max_new` new tokens.
    Length,
    /// The logits of the next token contained infinities or NaN.
    NotFinite,
}

/// Result of a [`GenerationRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationOutput {
    /// New tokens without a final end-of-sequence token. If [`Observer::on_token`] returned
    /// `Break`, surplus tokens may follow the one for which it was returned.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the tokens, `request.logprobs` for each.
    pub logprobs: Vec<Logprob>,
    /// Log-probabilities of the prompt's tokens except the first, `request.prompt_logprobs` for
    /// each.
    pub prompt_logprobs: Vec<Logprob>,
    pub finish: FinishCause,
}

/// Receives the progress and the results of sequences while the steps run.
pub trait Observer {
    /// Reports that `computed` of the `tokens` prompt tokens of the starting batch are computed.
    fn on_prefill_progress(&mut self, _computed: u64, _tokens: u64) {}

    /// Reports a new token of `sequence`, an index. Tokens of a sequence are reported in order; a
    /// final end-of-sequence token is not reported. `Break` ends the sequence, which may run for
    /// one more step.
    fn on_token(&mut self, sequence: usize, token: u32) -> ControlFlow<()>;

    /// Reports the result of `sequence`, an index: once for each sequence, after its last token,
    /// possibly while others continue. `Break` ends the run as an interruption does.
    fn on_finished(&mut self, sequence: usize, generated: GenerationOutput) -> ControlFlow<()>;
}

/// Reason why a sequence has no result.
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

/// An engine that continues prompts.
pub trait BatchEngine {
    /// Runs all sequences to their ends, as many at a time as fit and roughly in this order. The
    /// observer receives the result of each.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] if the run was interrupted, [`EngineError::Failed`] if it
    /// cannot continue. Sequences that were not reported as finished then have no result, and the
    /// engine must not be used again.
    fn run(
        &mut self,
        requests: &[GenerationRequest],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError>;
}
