//! The boundary between the server and the engine that computes: prompts arrive at any time, and
//! tokens are returned as they are sampled.
//!
//! The server never accesses a worker or a device; the engine never accesses a connection.

use std::fmt::Debug;
use std::sync::Arc;

use grammar::Grammar;

pub use super::event::{DraftCounts, EngineEvent, EventSink, FinishCause, Logprob};
pub use super::request::{AnswerGrammar, GenerationRequest, PreparedGrammar, Priority, Sampling};

/// Number of an accepted submission, ascending in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GenerationId(pub u64);

/// Limits of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Maximum number of sequences computed at a time.
    pub slots: u32,
    /// Maximum number of positions of a sequence, including prompt and answer.
    pub context: u32,
    /// Maximum number of log-probabilities of a token, including its own.
    pub logprobs: u16,
}

/// State of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineState {
    /// The model is being loaded, initially or after a worker was lost.
    Loading,
    /// Sequences are computed as they arrive.
    Ready,
    /// Accepted submissions are answered; new ones are rejected.
    Draining,
    /// Nothing is computed any more.
    Ended,
}

/// Counters of a server whose sequences are owned by the device or the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HybridStepCounts {
    /// Iterations in which the device computed all attention.
    pub gpu: u64,
    /// Iterations of two batches, in which both owners computed attention.
    pub pipelined: u64,
    /// Iterations with deferred rows of the host.
    pub deferred: u64,
    /// Migrations of a sequence's caches to the host.
    pub moves_to_host: u64,
    /// Migrations of a sequence's caches to the device.
    pub moves_to_device: u64,
}

/// Statistics of an engine, for monitoring. Counters only increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStatus {
    pub state: EngineState,
    /// Number of sequences in slots.
    pub running: u32,
    /// Number of sequences that wait for a slot.
    pub waiting: u32,
    /// Number of the running sequences that have background priority.
    pub background_running: u32,
    /// Number of the waiting sequences that have background priority.
    pub background_waiting: u32,
    /// Number of positions for which there are caches.
    pub kv_positions: u64,
    /// Number of these positions that are in use.
    pub kv_positions_used: u64,
    pub steps: u64,
    /// Prompt tokens that were computed.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in caches.
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub drafts: DraftCounts,
    /// Number of times that a sequence was preempted: it released its caches for others and was
    /// computed again.
    pub preemptions: u64,
    pub prompt_cache: PromptCacheCounts,
    /// Prompts that are being computed at the moment.
    pub prompt_progress: PromptProgress,
    /// Counters of a server whose sequences are owned by the device or the host.
    pub hybrid_steps: HybridStepCounts,
    /// Number of times that the workers were restarted.
    pub restarts: u64,
    /// Heap allocations of the current workers since they were ready.
    pub worker_allocations: u64,
}

/// Activity of a lane of the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneActivity {
    pub name: String,
    /// Time that the lane spent executing instructions since the engine started, in nanoseconds.
    pub busy_ns: u64,
}

/// Progress of the prompts that are being computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptProgress {
    /// Number of tokens of these prompts.
    pub tokens: u64,
    /// Number of tokens whose keys and values are computed.
    pub computed_tokens: u64,
    /// Estimated time until all are computed, from the costs of steps.
    pub remaining_ms: u64,
}

/// Counters of the prompt store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptCacheCounts {
    /// Sequences for which pages were found in the store.
    pub hits: u64,
    /// Tokens of these pages.
    pub tokens: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Pages that existed but could not be used.
    pub unusable_pages: u64,
}

impl EngineStatus {
    /// Creates the status of an engine that has done nothing yet.
    pub fn new(state: EngineState) -> EngineStatus {
        EngineStatus {
            state,
            running: 0,
            waiting: 0,
            background_running: 0,
            background_waiting: 0,
            kv_positions: 0,
            kv_positions_used: 0,
            steps: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            drafts: DraftCounts::default(),
            preemptions: 0,
            prompt_cache: PromptCacheCounts::default(),
            prompt_progress: PromptProgress::default(),
            hybrid_steps: HybridStepCounts::default(),
            restarts: 0,
            worker_allocations: 0,
        }
    }
}

/// Reason why a submission was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("the server is shutting down")]
    Draining,
    #[error("the server has ended")]
    Ended,
}

/// An engine that continues prompts as they arrive. All calls except [`Engine::prepare`] return at
/// once.
pub trait Engine: Debug + Send + Sync {
    fn limits(&self) -> EngineLimits;

    /// Returns a status that counts every token that a sink has received.
    fn status(&self) -> EngineStatus;

    /// Returns the activity of all lanes; none if it is not measured.
    fn lanes(&self) -> Vec<LaneActivity> {
        Vec::new()
    }

    /// Prepares a grammar for submissions. Blocks while the model's tokenizer encodes each text of
    /// a choice.
    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar;

    /// Accepts a prompt, which waits until there is a slot for it.
    ///
    /// # Errors
    /// The reason why it was rejected; its sink then receives no events.
    fn submit(
        &self,
        submission: GenerationRequest,
        listener: Box<dyn EventSink>,
    ) -> Result<GenerationId, SubmitError>;

    /// Ends a sequence within a step, regardless of its state; its sink receives no further
    /// events.
    fn cancel(&self, id: GenerationId);

    /// Rejects new submissions, and answers the accepted ones.
    fn drain(&self);
}
