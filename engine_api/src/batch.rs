//! The boundary between the job and the engine that computes: sequences in, tokens out.
//!
//! The job never accesses a worker or a device; the engine never accesses a request or a file.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::token_rules::TokenRules;

pub use kernels::{Logprob, Penalties, Sampling};

/// A prompt to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchSequence<'p> {
    /// Token ids, at least one.
    pub prompt: &'p [u32],
    /// Maximum number of new tokens: at least 1, or 0 if only the prompt is evaluated.
    /// `prompt.len() + max_new` never exceeds the model's context.
    pub max_new: u32,
    pub sampling: Sampling,
    /// Rules about single tokens; `None` if there are none.
    pub token_rules: Option<&'p Arc<TokenRules>>,
    pub seed: u64,
    /// Key of sampling, together with `seed` and the position, so that an answer does not depend on
    /// the group in which it is computed.
    pub id_hash: u64,
    /// Used by benchmarks: end-of-sequence tokens are treated like any other token.
    pub ignore_eos: bool,
    /// Number of log-probabilities reported for each new token: its own, followed by those of the
    /// most likely tokens; 0 for none.
    pub logprobs: u16,
    /// Number of log-probabilities reported for each token of the prompt except the first. Only a
    /// server's engine reports them.
    pub prompt_logprobs: u16,
    /// Grammar that the answer follows: its number among those with which the engine was started,
    /// counted from 1; 0 for none.
    pub grammar: u32,
}

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

/// Result of a [`BatchSequence`].
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationOutput {
    /// New tokens without a final end-of-sequence token. If [`Observer::on_token`] returned
    /// `Break`, surplus tokens may follow the one for which it was returned.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the tokens, `sequence.logprobs` for each.
    pub logprobs: Vec<Logprob>,
    /// Log-probabilities of the prompt's tokens except the first, `sequence.prompt_logprobs` for
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
        sequences: &[BatchSequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError>;
}
