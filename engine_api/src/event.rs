//! Events of requests, from engines to those who follow the requests.

use std::ops::{AddAssign, ControlFlow};
use std::time::Duration;

pub use kernels::Logprob;

/// Reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishCause {
    /// A token that ends the answer was sampled.
    Stop,
    /// The sequence has as many new tokens as requested.
    Length,
    /// The logits of the next token contained infinities or NaN.
    NotFinite,
}

/// Counters of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftCounts {
    /// Drafts from whose position a token was drawn.
    pub verified: u64,
    /// Drafts that are what was drawn.
    pub accepted: u64,
}

impl AddAssign for DraftCounts {
    fn add_assign(&mut self, more: DraftCounts) {
        self.verified += more.verified;
        self.accepted += more.accepted;
    }
}

/// Event of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent {
    /// The prompt is computed. Reported once, before the first token, or before the end if there
    /// are no tokens.
    Prompt {
        /// Number of prompt tokens that were not computed, since their keys and values were known.
        cached_tokens: u32,
        /// Time from the submission until the sequence got the slot in which its prompt was
        /// computed.
        queue_time: Duration,
        /// Log-probabilities of the prompt tokens for which they were requested, `prompt_logprobs`
        /// for each.
        logprobs: Vec<Logprob>,
    },
    /// Pooled hidden states of the prompt, if they were requested; reported once, after `Prompt`.
    Pooled(Vec<f32>),
    /// A new token, in order, with its log-probabilities. A final end-of-sequence token is not
    /// reported.
    Token { token: u32, logprobs: Vec<Logprob> },
    /// Drafted tokens since the last such event, reported before the tokens that were drawn at
    /// their positions.
    Drafts(DraftCounts),
    /// Last event of a sequence that ended.
    Finished(FinishCause),
    /// Last event of a sequence that cannot be answered, with the reason as a complete sentence.
    Failed(String),
}

/// Receives the events of a request, on the engine's thread, which it must not block: it must not
/// call [`Engine::status`](crate::serving::Engine::status), since the engine may hold its lock.
pub trait EventSink: Send {
    /// Reports an event. `Break` ends the sequence, of which no further events are reported.
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()>;
}

/// Receives the events of a batch of requests.
pub trait BatchSink {
    /// Reports an event of the request with the index `request`. `Break` ends its sequence, of
    /// which no further events are reported.
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()>;

    /// Reports that `computed` of the `tokens` prompt tokens that are being computed are done.
    fn on_prefill_progress(&mut self, _computed: u64, _tokens: u64) {}

    /// Returns true if the batch is to end as an interruption ends it. Engines ask after events.
    fn has_failed(&self) -> bool {
        false
    }
}
