//! The boundary between the server and whatever computes: prompts come at any time, tokens go back
//! as they are drawn.
//!
//! The server never sees a worker or a device, the engine never sees a connection.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use grammar::{Form, Grammar};

pub use super::engine::{Finish, Logprob, Sampling};

/// One prompt to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// Most new tokens; with the prompt never more than [`Limits::context`]. 0: the prompt alone
    /// is looked at, of which the last token is not computed; it then has two at least.
    pub max_new: u32,
    pub sampling: Sampling,
    pub seed: u64,
    /// With `seed` and the position it keys sampling, so that an answer does not depend on what
    /// else is answered.
    pub id_hash: u64,
    /// An end-of-sequence token is a token like another.
    pub ignore_eos: bool,
    /// Log-probabilities to tell of each new token: its own, then those of the most likely tokens;
    /// at most [`Limits::logprobs`].
    pub logprobs: u16,
    /// The same of each token of the prompt from `prompt_logprobs_from` on; 0: none.
    pub prompt_logprobs: u16,
    /// At least 1, since nothing is said of the first token. What is before it may come from
    /// caches.
    pub prompt_logprobs_from: u32,
    /// The grammar that the answer follows, from [`Serving::prepare`].
    pub grammar: Option<Arc<PreparedGrammar>>,
}

/// A grammar with what an engine makes of it, shared by all submissions of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedGrammar {
    pub grammar: Arc<Grammar>,
    /// The grammar in the model's tokens; `None` where an engine needs nothing of the kind.
    pub form: Option<Form>,
}

/// What is told of a submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt is computed: before the first token, or the end where there is none; once.
    Prompt {
        /// Of its tokens, those whose keys and values were there already.
        cached_tokens: u32,
        /// From its submission until it had the slot in which that was done.
        waited: Duration,
        /// `prompt_logprobs` of each token that they were asked of.
        logprobs: Vec<Logprob>,
    },
    /// A new token, in order; a final end-of-sequence token is not told. `logprobs` of it.
    Token { token: u32, logprobs: Vec<Logprob> },
    /// The last event of a sequence that ended.
    Finished(Finish),
    /// The last event of one that cannot be answered: a whole sentence.
    Failed(String),
}

/// Whether anybody still listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    Yes,
    /// The sequence should end; nothing more is told.
    No,
}

/// Hears what becomes of a submission, on the engine's thread, which it must not hold up.
pub trait Listener: Send {
    fn tell(&mut self, event: Event) -> Listening;
}

/// A submission that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubmissionId(pub u64);

/// What an engine can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that are computed at a time.
    pub slots: u32,
    /// Positions of a sequence, prompt and answer.
    pub context: u32,
    /// Log-probabilities of a token, its own included.
    pub logprobs: u16,
}

/// What an engine does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The model is being loaded, at first or again after a worker was lost.
    Loading,
    /// Sequences are computed as they come.
    Ready,
    /// What was taken is answered, nothing more is taken.
    Draining,
    /// Nothing will be computed any more.
    Ended,
}

/// What a server does whose sequences belong to the device or to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerCounts {
    /// Iterations in which the device attended for all.
    pub gpu: u64,
    /// Those in which both did, for two batches.
    pub pipelined: u64,
    /// Those in which rows of the host lagged.
    pub lagging: u64,
    /// Sequences whose caches went to the host.
    pub to_host: u64,
    pub to_device: u64,
}

/// Numbers of an engine, for whoever watches it. Counts only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    /// Sequences in slots.
    pub running: u32,
    /// Sequences that wait for a slot.
    pub waiting: u32,
    /// Positions that caches have room for, and those in use.
    pub kv_positions: u64,
    pub kv_positions_used: u64,
    pub steps: u64,
    /// Tokens of prompts that were computed, and those that were found in caches.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// Sequences that gave their caches to others and were computed again.
    pub preemptions: u64,
    pub store: StoreCounts,
    /// At the moment.
    pub prompts_going: PromptsGoing,
    /// Of a server whose sequences belong to the device or to the host.
    pub owners: OwnerCounts,
    /// Times that workers were started again.
    pub restarts: u64,
    /// Heap allocations of the workers that run now, since they were ready.
    pub worker_allocations: u64,
}

/// Prompts that are being computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptsGoing {
    /// Their tokens, and those of which keys and values are there.
    pub tokens: u64,
    pub computed: u64,
    /// When all will be, by what steps cost.
    pub left_ms: u64,
}

/// What came from the prompt store and went to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreCounts {
    /// Sequences of which something was found there, and how many tokens that were.
    pub hits: u64,
    pub tokens: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Pages that were there and could not be used.
    pub refused: u64,
}

impl Status {
    /// Nothing was done yet.
    pub fn new(state: State) -> Status {
        Status {
            state,
            running: 0,
            waiting: 0,
            kv_positions: 0,
            kv_positions_used: 0,
            steps: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            generated_tokens: 0,
            preemptions: 0,
            store: StoreCounts::default(),
            prompts_going: PromptsGoing::default(),
            owners: OwnerCounts::default(),
            restarts: 0,
            worker_allocations: 0,
        }
    }
}

/// Why a submission was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the server is shutting down")]
    Draining,
    #[error("the server has ended")]
    Ended,
}

/// Something that continues prompts as they come. All calls but [`Serving::prepare`] return at
/// once.
pub trait Serving: Debug + Send + Sync {
    fn limits(&self) -> Limits;

    fn status(&self) -> Status;

    /// Prepares a grammar for submissions. Waits for the model's tokenizer, which is asked for each
    /// text of a choice.
    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar;

    /// Takes a prompt, which waits until there is a slot for it.
    ///
    /// # Errors
    /// Why it was not taken; nothing is told then.
    fn submit(
        &self,
        submission: Submission,
        listener: Box<dyn Listener>,
    ) -> Result<SubmissionId, Refused>;

    /// Ends a sequence within a step, wherever it is; its listener hears nothing more.
    fn cancel(&self, id: SubmissionId);

    /// Takes nothing more, and answers what was taken.
    fn drain(&self);
}
