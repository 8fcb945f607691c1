//! The boundary between the job and whatever computes: sequences in, tokens out.
//!
//! The job never sees a worker or a device, the engine never sees a request or a file.

use std::fmt::Debug;
use std::ops::ControlFlow;

pub use kernels::{Logprob, Penalties, Sampling};

/// One prompt to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence<'p> {
    /// Token ids, at least one.
    pub prompt: &'p [u32],
    /// Most new tokens, at least one, and none where only the prompt is looked at;
    /// `prompt.len() + max_new` never exceeds the model's context.
    pub max_new: u32,
    pub sampling: Sampling,
    pub seed: u64,
    /// With `seed` and the position it keys sampling, so that an answer does not depend on the
    /// group in which it was computed.
    pub id_hash: u64,
    /// Benchmarks: an end-of-sequence token is a token like another.
    pub ignore_eos: bool,
    /// Log-probabilities to tell of each new token: its own, then those of the most likely tokens;
    /// 0: none.
    pub logprobs: u16,
    /// The same of each token of the prompt but its first. Only a server's engine tells them.
    pub prompt_logprobs: u16,
    /// The grammar that the answer follows, of those the engine was started with, counted from 1;
    /// 0: none.
    pub grammar: u32,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token, or the observer's [`Verdict::Stop`].
    Stop,
    /// `max_new` tokens.
    Length,
    /// The logits of its next token were infinite or no numbers.
    NotFinite,
}

/// What became of a [`Sequence`].
#[derive(Debug, Clone, PartialEq)]
pub struct Generated {
    /// New tokens, a final end-of-sequence token omitted. After a [`Verdict::Stop`] surplus tokens
    /// may follow the one it was said of.
    pub tokens: Vec<u32>,
    /// `sequence.logprobs` of each token.
    pub logprobs: Vec<Logprob>,
    /// `sequence.prompt_logprobs` of each token of the prompt but its first.
    pub prompt_logprobs: Vec<Logprob>,
    pub finish: Finish,
}

/// Whether a sequence goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    /// The sequence should end; it may take a step longer.
    Stop,
}

/// Follows sequences from behind the steps.
pub trait Observer {
    /// Reports that `computed` of the `tokens` prompt tokens of the starting batch are computed.
    fn prefilled(&mut self, _computed: u64, _tokens: u64) {}

    /// A new token of `sequence` (its index); a final end-of-sequence token is not
    /// shown. Tokens of one sequence come in order.
    fn token(&mut self, sequence: usize, token: u32) -> Verdict;

    /// What became of `sequence`: once for each, after its last token and while others may go on.
    /// With `Break` the run ends as if interrupted.
    fn finished(&mut self, sequence: usize, generated: Generated) -> ControlFlow<()>;
}

/// Why a sequence has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error("interrupted")]
    Interrupted,
    /// A whole sentence, naming the worker.
    #[error("{0}")]
    Failed(String),
    /// The same, of a device that has too little memory.
    #[error("{0}")]
    DeviceMemory(String),
}

/// Something that continues prompts.
pub trait Engine {
    /// Runs all sequences to their ends, as many at a time as there is room for and about in this
    /// order; the observer is told the result of each.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] when the run was asked to end; [`EngineError::Failed`] when it
    /// cannot go on. What was not told as finished then has no result, and the engine is not used
    /// again.
    fn run(
        &mut self,
        sequences: &[Sequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError>;
}
