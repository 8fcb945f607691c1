//! Thread pools for long-running work: parsing JSON, calls to a tokenizer, checking grammars, and
//! writing long answers. Each kind of work has its own number of threads, so that no kind can
//! starve another. Long bodies, grammars and long answers, which can take seconds, yield the
//! processor to all else.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::error::ApiError;

/// Maximum number of requests that are parsed at a time, and thus of concurrent calls to
/// tokenizers, on a machine with as many cores. Fewer cores parse fewer, so that threads of steps
/// and sockets get their turn soon.
pub const READING_THREADS_MAX: usize = 4;
/// Size of a body above which it is parsed at low priority.
const LONG_BODY_BYTES: usize = 512 << 10;
/// Maximum number of long bodies that are parsed at a time, in addition to others.
const LONG_BODY_THREADS: usize = 2;
/// Maximum number of operations on stored files at a time.
pub const FILE_THREADS: usize = 2;
/// Maximum number of requests whose grammars are checked and prepared at a time.
const GRAMMAR_THREADS: usize = 2;
/// Maximum number of long answers that are written at a time.
const WRITING_THREADS: usize = 2;

/// Nice value of the threads for long bodies, grammars and long answers, from 0, as for all other
/// threads, to 19: each gets a third of the processor time of a thread of steps if there are too
/// few cores.
const LOW_PRIORITY_NICE: i32 = 5;

/// Pools of threads, one for each kind of work.
#[derive(Debug)]
pub struct BlockingPools {
    pub reading: BlockingPool,
    long_bodies: LowPriorityPool,
    /// Operations on stored files, which may wait for a drive.
    pub files: BlockingPool,
    pub grammars: LowPriorityPool,
    pub writing: LowPriorityPool,
}

impl Default for BlockingPools {
    fn default() -> BlockingPools {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        BlockingPools {
            reading: BlockingPool::new(cores.clamp(2, READING_THREADS_MAX)),
            long_bodies: LowPriorityPool::new(LONG_BODY_THREADS),
            files: BlockingPool::new(FILE_THREADS),
            grammars: LowPriorityPool::new(GRAMMAR_THREADS),
            writing: LowPriorityPool::new(WRITING_THREADS),
        }
    }
}

impl BlockingPools {
    /// Parses a body of `size_bytes` on one of the threads.
    ///
    /// # Errors
    /// Returns the error of `parse`, or an internal error if it panicked or no thread could start.
    pub async fn parse_body<T: Send + 'static>(
        &self,
        size_bytes: usize,
        parse: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if size_bytes > LONG_BODY_BYTES {
            self.long_bodies.run(parse).await
        } else {
            self.reading.run(parse).await
        }
    }
}

/// Threads for one kind of work, which is done in order of arrival.
#[derive(Debug)]
pub struct BlockingPool(Arc<Semaphore>);

/// Handle of blocking work that cancels the work if it has not begun when its caller stops waiting.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl BlockingPool {
    fn new(threads: usize) -> BlockingPool {
        BlockingPool(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` on one of the threads.
    ///
    /// # Errors
    /// Returns the error of `work`, or an internal error if it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = acquire(&self.0).await?;
        let mut handle = AbortOnDrop(tokio::task::spawn_blocking(move || {
            // Held until the work has ended, even if its caller stops waiting.
            let _permit = permit;
            work()
        }));
        match (&mut handle.0).await {
            Ok(done) => done,
            Err(_) => Err(failed()),
        }
    }
}

/// Threads of low priority. It cannot be raised again without privileges, so each piece of work has
/// a new thread.
#[derive(Debug)]
pub struct LowPriorityPool(Arc<Semaphore>);

impl LowPriorityPool {
    fn new(threads: usize) -> LowPriorityPool {
        LowPriorityPool(Arc::new(Semaphore::new(threads)))
    }

    /// Runs `work` on a thread of low priority.
    ///
    /// # Errors
    /// Returns the error of `work`, or an internal error if it panicked or no thread could start.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = acquire(&self.0).await?;
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            let _permit = permit;
            // A system that refuses this schedules all threads equally.
            let _ = rustix::process::setpriority_process(None, LOW_PRIORITY_NICE);
            // Nobody receives the result if the request has ended.
            let _ = sender.send(work());
        };
        let builder = std::thread::Builder::new().name("blocking".to_owned());
        builder.spawn(run).map_err(|_| failed())?;
        receiver.await.map_err(|_| failed())?
    }
}

/// Waits until one of a pool's threads is free.
async fn acquire(threads: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ApiError> {
    Arc::clone(threads).acquire_owned().await.map_err(|_| failed())
}

/// Returns the error of work that did not finish.
fn failed() -> ApiError {
    ApiError::internal("The server had an error while processing your request.")
}
