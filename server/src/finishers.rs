//! Threads that complete answers: they decode the whole text again from its beginning, split it
//! into its parts, and check that it follows its grammar. This takes long for long answers, so it
//! is done neither by the threads that turn tokens into text, nor at the expense of other requests:
//! requests take turns.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use engine_api::codec::TextCodec;
use engine_api::serving::DraftCounts;
use openai::answer_accumulator::{FinishedAnswer, FinishedTokens};
use openai::output_validator::OutputValidator;

use super::answer_events::{AnswerEvent, AnswerEventKind, CompletedAnswer, TrackedAnswer};
use super::config::SharedCodec;

/// Number of threads.
const FINISHER_THREADS: usize = 2;

/// An answer that receives no more tokens.
#[derive(Debug)]
pub struct FinishTask {
    pub tracked: TrackedAnswer,
    pub tokens: FinishedTokens,
    /// The answer ended at a stop string, so the engine may still be computing it.
    pub by_stop_string: bool,
    pub drafts: DraftCounts,
}

/// Pool of threads, which end when this is dropped.
#[derive(Debug)]
pub struct FinisherPool(Arc<FinishQueue>);

#[derive(Debug, Default)]
struct FinishQueue {
    queue: Mutex<FairQueue>,
    changed: Condvar,
}

/// Queued tasks. Requests take turns.
#[derive(Debug, Default)]
struct FairQueue {
    /// Requests with tasks in the order of their turns, identified by their addresses in memory.
    order: VecDeque<usize>,
    tasks: HashMap<usize, VecDeque<FinishTask>>,
    is_closed: bool,
}

impl FinisherPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start more threads.
    pub fn start(codec: Option<&SharedCodec>) -> io::Result<FinisherPool> {
        let pool = FinisherPool(Arc::default());
        for index in 0..FINISHER_THREADS {
            let (codec, queue) = (codec.cloned(), Arc::clone(&pool.0));
            let thread = std::thread::Builder::new().name(format!("finish {index}"));
            thread.spawn(move || run_finisher(codec.as_ref(), &queue))?;
        }
        Ok(pool)
    }

    /// Adds a task after those of the same request.
    pub fn add(&self, task: FinishTask) {
        self.0.lock().add(task);
        self.0.changed.notify_one();
    }
}

impl Drop for FinisherPool {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl FinishQueue {
    fn lock(&self) -> MutexGuard<'_, FairQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a task; returns `None` once the pool is dropped and no tasks are left.
    fn next(&self) -> Option<FinishTask> {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.take() {
                return Some(task);
            }
            if queue.is_closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl FairQueue {
    fn add(&mut self, task: FinishTask) {
        let request = Arc::as_ptr(&task.tracked.request).addr();
        let tasks = self.tasks.entry(request).or_default();
        if tasks.is_empty() {
            self.order.push_back(request);
        }
        tasks.push_back(task);
    }

    /// Takes the next task of the request whose turn it is, and moves that request to the end of
    /// the order.
    fn take(&mut self) -> Option<FinishTask> {
        let request = self.order.pop_front()?;
        let tasks = self.tasks.get_mut(&request)?;
        let task = tasks.pop_front();
        if tasks.is_empty() {
            self.tasks.remove(&request);
        } else {
            self.order.push_back(request);
        }
        task
    }
}

fn run_finisher(codec: Option<&SharedCodec>, queue: &FinishQueue) {
    let codec = codec.map(|codec| &**codec as &dyn TextCodec);
    let mut forms = OutputValidator::default();
    while let Some(task) = queue.next() {
        // After a panic the request notices that its events have ended; others are not affected.
        let _ = catch_unwind(AssertUnwindSafe(|| finish(task, &mut forms, codec)));
    }
}

fn finish(task: FinishTask, forms: &mut OutputValidator, codec: Option<&dyn TextCodec>) {
    let FinishTask { tracked, tokens, by_stop_string: is_stop_string, drafts } = task;
    if tracked.events.is_closed() {
        return;
    }
    let FinishedAnswer { rest: final_delta, mut answer, logprobs } = tokens.finish(codec);
    if let Some(sentence) = answer.error.take_if(|_| answer.is_retryable) {
        let TrackedAnswer { events, choice, answer_slot, .. } = tracked;
        drop(answer_slot);
        let _ = events
            .send(AnswerEvent { choice, kind: AnswerEventKind::DetokenizationFailed(sentence) });
        return;
    }
    if answer.error.is_none()
        && let Some(grammar) = &tracked.request.grammar
    {
        answer.error = forms.find_violation(grammar, &answer, codec);
    }
    let ended = Box::new(CompletedAnswer { final_delta, answer, logprobs, is_stop_string, drafts });
    let TrackedAnswer { events, choice, answer_slot, .. } = tracked;
    // Released before the answer is sent, so that a client that has its answer finds the place
    // free.
    drop(answer_slot);
    let _ = events.send(AnswerEvent { choice, kind: AnswerEventKind::Completed(ended) });
}
