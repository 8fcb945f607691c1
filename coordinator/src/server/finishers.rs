//! Threads that complete answers: they decode the whole text again from its beginning, split it
//! into its parts, and check that it follows its grammar. This takes long for long answers, so it
//! is done neither by the threads that turn tokens into text, nor at the expense of other requests:
//! requests take turns.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::facts::SharedCodec;
use super::sequence::{Begun, Ended, News, What};
use crate::boundary::codec::TextCodec;
use crate::openai::forms::Forms;
use crate::openai::growing::{EndedAnswer, EndedTokens};

/// Number of threads.
const FINISHERS: usize = 2;

/// An answer that receives no more tokens.
#[derive(Debug)]
pub struct FinishTask {
    pub begun: Begun,
    pub tokens: EndedTokens,
    /// The answer ended at a stop string, so the engine may still be computing it.
    pub by_stop_string: bool,
}

/// Pool of threads, which end when this is dropped.
#[derive(Debug)]
pub struct FinisherPool(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    turns: Mutex<Turns>,
    changed: Condvar,
}

/// Queued tasks. Requests take turns.
#[derive(Debug, Default)]
struct Turns {
    /// Requests with tasks in the order of their turns, identified by their addresses in memory.
    order: VecDeque<usize>,
    tasks: HashMap<usize, VecDeque<FinishTask>>,
    is_over: bool,
}

impl FinisherPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start more threads.
    pub fn start(codec: Option<&SharedCodec>) -> io::Result<FinisherPool> {
        let pool = FinisherPool(Arc::default());
        for index in 0..FINISHERS {
            let (codec, queue) = (codec.cloned(), Arc::clone(&pool.0));
            let thread = std::thread::Builder::new().name(format!("finish {index}"));
            thread.spawn(move || work(codec.as_ref(), &queue))?;
        }
        Ok(pool)
    }

    /// Adds a task after those of the same request.
    pub fn add(&self, task: FinishTask) {
        self.0.turns().add(task);
        self.0.changed.notify_one();
    }
}

impl Drop for FinisherPool {
    fn drop(&mut self) {
        self.0.turns().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a task; returns `None` once the pool is dropped and no tasks are left.
    fn next(&self) -> Option<FinishTask> {
        let mut turns = self.turns();
        loop {
            if let Some(task) = turns.take() {
                return Some(task);
            }
            if turns.is_over {
                return None;
            }
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Turns {
    fn add(&mut self, task: FinishTask) {
        let request = Arc::as_ptr(&task.begun.request).addr();
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

fn work(codec: Option<&SharedCodec>, queue: &Queue) {
    let codec = codec.map(|codec| &**codec as &dyn TextCodec);
    let mut forms = Forms::default();
    while let Some(task) = queue.next() {
        // After a panic the request notices that its events have ended; others are not affected.
        let _ = catch_unwind(AssertUnwindSafe(|| finish(task, &mut forms, codec)));
    }
}

fn finish(task: FinishTask, forms: &mut Forms, codec: Option<&dyn TextCodec>) {
    let FinishTask { begun, tokens, by_stop_string } = task;
    if begun.news.is_closed() {
        return;
    }
    let EndedAnswer { rest, mut answer, logprobs } = tokens.finish(codec);
    if let Some(sentence) = answer.error.take_if(|_| answer.is_lost) {
        let Begun { news, choice, place, .. } = begun;
        drop(place);
        let _ = news.send(News { choice, what: What::Lost(sentence) });
        return;
    }
    if answer.error.is_none()
        && let Some(grammar) = &begun.request.grammar
    {
        answer.error = forms.wrong(grammar, &answer, codec);
    }
    let ended = Box::new(Ended { rest, answer, logprobs, by_stop_string });
    let Begun { news, choice, place, .. } = begun;
    // Released before the answer is sent, so that a client that has its answer finds the place
    // free.
    drop(place);
    let _ = news.send(News { choice, what: What::Ended(ended) });
}
