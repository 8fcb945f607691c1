//! An engine without a model: its tokens follow from the prompt, the seed and the id of a
//! submission.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use engine_api::event::{FinishCause, Logprob};
use engine_api::request::Pooling;
use engine_api::serving::{
    DraftCounts, Engine, EngineEvent, EngineLimits, EngineState, EngineStatus, EventSink,
    GenerationId, GenerationRequest, PreparedGrammar, SubmitError,
};
use grammar::Grammar;
use testkit::byte_codec::EOS;

/// Behaviour of the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct FakeEngineOptions {
    pub(super) slots: u32,
    pub(super) context: u32,
    /// Duration of a step.
    pub(super) step: Duration,
    /// Token at which a sequence fails.
    pub(super) fails_at: Option<u32>,
    /// Drafts that are counted with each token.
    pub(super) drafts: DraftCounts,
}

impl Default for FakeEngineOptions {
    fn default() -> FakeEngineOptions {
        FakeEngineOptions {
            slots: 4,
            context: 256,
            step: Duration::ZERO,
            fails_at: None,
            drafts: DraftCounts::default(),
        }
    }
}

struct FakeSequence {
    id: GenerationId,
    submission: GenerationRequest,
    sink: Box<dyn EventSink>,
    made: u32,
}

#[derive(Default)]
struct FakeEngineState {
    state: Option<EngineState>,
    waiting: VecDeque<FakeSequence>,
    running: Vec<FakeSequence>,
    next: u64,
    steps: u64,
    generated: u64,
    prompt_tokens: u64,
    /// No steps are taken while this is true.
    is_held: bool,
    /// The preparation of grammars does not complete while this is true.
    holds_prepare: bool,
    /// Number of grammars whose preparation has begun.
    prepared: usize,
    cancelled: Vec<GenerationId>,
    submissions: Vec<GenerationRequest>,
}

/// Engine that repeats its prompts; an `EOS` in a prompt ends the answer there.
pub(super) struct FakeEngine {
    options: FakeEngineOptions,
    inner: Mutex<FakeEngineState>,
    changed: Condvar,
}

impl std::fmt::Debug for FakeEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeEngine").field("manner", &self.options).finish_non_exhaustive()
    }
}

/// Returns the token that follows `made` generated ones.
pub(super) fn token(submission: &GenerationRequest, made: u32) -> u32 {
    let prompt = &submission.prompt;
    let token = prompt[made as usize % prompt.len()];
    if submission.sampling.temperature <= 0.0 {
        return token;
    }
    let key = submission.seed.wrapping_mul(31).wrapping_add(submission.id_hash);
    (u64::from(token) + (key >> (made % 8)) % 7) as u32
}

fn logprobs(token: u32, width: u16) -> Vec<Logprob> {
    let candidate = |i: u16| Logprob {
        token: token.saturating_sub(u32::from(i)),
        logprob: -0.5 * f32::from(i) - 0.25,
    };
    (0..width).map(candidate).collect()
}

/// Returns the event with a hidden state of four elements: the first and the last token, the number
/// of tokens, and 1 or 2 by the pooling.
fn hidden(prompt: &[u32], pooling: Pooling) -> EngineEvent {
    let kind = if pooling == Pooling::LastToken { 1 } else { 2 };
    let elements = [prompt[0], prompt[prompt.len() - 1], prompt.len() as u32, kind];
    EngineEvent::Pooled(elements.map(|element| element as f32).to_vec())
}

impl FakeEngine {
    pub(super) fn start(options: FakeEngineOptions) -> (Arc<FakeEngine>, JoinHandle<()>) {
        let inner = Mutex::new(FakeEngineState {
            state: Some(EngineState::Ready),
            ..FakeEngineState::default()
        });
        let fake = Arc::new(FakeEngine { options, inner, changed: Condvar::new() });
        let engine = Arc::clone(&fake);
        let thread = std::thread::spawn(move || engine.work());
        (fake, thread)
    }

    fn inner(&self) -> MutexGuard<'_, FakeEngineState> {
        self.inner.lock().expect("no thread of a test panics")
    }

    fn work(&self) {
        loop {
            let mut inner = self.inner();
            while (inner.is_held || (inner.waiting.is_empty() && inner.running.is_empty()))
                && inner.state != Some(EngineState::Ended)
            {
                inner = self.changed.wait(inner).expect("no thread of a test panics");
            }
            if inner.state == Some(EngineState::Ended) {
                inner.waiting.clear();
                inner.running.clear();
                return;
            }
            self.step(&mut inner);
            drop(inner);
            if self.options.step > Duration::ZERO {
                std::thread::sleep(self.options.step);
            }
        }
    }

    fn step(&self, inner: &mut FakeEngineState) {
        while inner.running.len() < self.options.slots as usize {
            let Some(mut sequence) = inner.waiting.pop_front() else { break };
            let GenerationRequest { prompt, prompt_logprobs, .. } = &sequence.submission;
            let width = *prompt_logprobs;
            let logprobs = prompt[1..].iter().flat_map(|token| logprobs(*token, width)).collect();
            inner.prompt_tokens += prompt.len() as u64;
            let event = EngineEvent::Prompt {
                cached_tokens: 1,
                queue_time: Duration::from_millis(30),
                logprobs,
            };
            let mut is_wanted = sequence.sink.on_event(event).is_continue();
            if let Some(pooling) = sequence.submission.pooling {
                let hidden = hidden(&sequence.submission.prompt, pooling);
                is_wanted = is_wanted && sequence.sink.on_event(hidden).is_continue();
            }
            if is_wanted {
                inner.running.push(sequence);
            }
        }
        inner.steps += 1;
        let mut goes_on = Vec::new();
        for mut sequence in std::mem::take(&mut inner.running) {
            if self.advance(&mut sequence) {
                goes_on.push(sequence);
            }
            inner.generated += 1;
        }
        inner.running = goes_on;
    }

    /// Generates a token; returns true if the sequence continues.
    fn advance(&self, sequence: &mut FakeSequence) -> bool {
        let submission = &sequence.submission;
        let token = token(submission, sequence.made);
        let mut report = |event| sequence.sink.on_event(event).is_continue();
        if submission.max_new == 0 {
            report(EngineEvent::Finished(FinishCause::Length));
            return false;
        }
        if self.options.fails_at == Some(token) {
            report(EngineEvent::Failed("The device is on fire.".to_owned()));
            return false;
        }
        if token == EOS && !submission.ignore_eos {
            report(EngineEvent::Finished(FinishCause::Stop));
            return false;
        }
        sequence.made += 1;
        if self.options.drafts != DraftCounts::default() {
            report(EngineEvent::Drafts(self.options.drafts));
        }
        let logprobs = logprobs(token, submission.logprobs);
        let is_wanted = report(EngineEvent::Token { token, logprobs });
        if is_wanted && sequence.made == submission.max_new {
            report(EngineEvent::Finished(FinishCause::Length));
            return false;
        }
        is_wanted
    }

    /// Suspends or resumes the steps.
    pub(super) fn hold(&self, is_held: bool) {
        self.inner().is_held = is_held;
        self.changed.notify_all();
    }

    /// Suspends or resumes the preparation of grammars.
    pub(super) fn hold_prepare(&self, is_held: bool) {
        self.inner().holds_prepare = is_held;
        self.changed.notify_all();
    }

    /// Returns the number of grammars whose preparation has begun.
    pub(super) fn prepared(&self) -> usize {
        self.inner().prepared
    }

    pub(super) fn set_state(&self, state: EngineState) {
        self.inner().state = Some(state);
        self.changed.notify_all();
    }

    /// Returns the number of running and waiting sequences.
    pub(super) fn open(&self) -> usize {
        let inner = self.inner();
        inner.running.len() + inner.waiting.len()
    }

    pub(super) fn cancelled(&self) -> usize {
        self.inner().cancelled.len()
    }

    pub(super) fn submissions(&self) -> Vec<GenerationRequest> {
        self.inner().submissions.clone()
    }
}

impl Engine for FakeEngine {
    fn limits(&self) -> EngineLimits {
        EngineLimits { slots: self.options.slots, context: self.options.context, logprobs: 21 }
    }

    fn status(&self) -> EngineStatus {
        let inner = self.inner();
        EngineStatus {
            running: inner.running.len() as u32,
            waiting: inner.waiting.len() as u32,
            kv_positions: 1024,
            kv_positions_used: inner.running.len() as u64 * 16,
            steps: inner.steps,
            prompt_tokens: inner.prompt_tokens,
            generated_tokens: inner.generated,
            ..EngineStatus::new(inner.state.expect("set at the start"))
        }
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        let mut inner = self.inner();
        inner.prepared += 1;
        while inner.holds_prepare {
            inner = self.changed.wait(inner).expect("no thread of a test panics");
        }
        drop(inner);
        PreparedGrammar { grammar, compiled: None }
    }

    fn submit(
        &self,
        submission: GenerationRequest,
        sink: Box<dyn EventSink>,
    ) -> Result<GenerationId, SubmitError> {
        let mut inner = self.inner();
        match inner.state {
            Some(EngineState::Draining) => return Err(SubmitError::Draining),
            Some(EngineState::Ended) => return Err(SubmitError::Ended),
            _ => {}
        }
        let id = GenerationId(inner.next);
        inner.next += 1;
        inner.submissions.push(submission.clone());
        inner.waiting.push_back(FakeSequence { id, submission, sink, made: 0 });
        self.changed.notify_all();
        Ok(id)
    }

    fn cancel(&self, id: GenerationId) {
        let mut inner = self.inner();
        inner.cancelled.push(id);
        inner.waiting.retain(|sequence| sequence.id != id);
        inner.running.retain(|sequence| sequence.id != id);
    }

    fn drain(&self) {
        self.set_state(EngineState::Draining);
    }
}
