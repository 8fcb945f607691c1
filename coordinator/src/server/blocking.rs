//! Work that takes long, on threads of its own: reading JSON, asking a tokenizer, checking
//! grammars, writing long answers. Each kind has threads that the others cannot take.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::error::ApiError;

/// Requests that are read at a time, and so tokenizers that are asked at a time.
const READING_THREADS: usize = 4;
/// Requests whose grammars are checked and prepared at a time.
const GRAMMAR_THREADS: usize = 2;
/// Long answers that are written at a time.
const WRITING_THREADS: usize = 2;

/// All threads for such work.
pub const THREADS: usize = READING_THREADS + GRAMMAR_THREADS + WRITING_THREADS;

/// Threads for each kind of work.
#[derive(Debug)]
pub struct BlockingThreads {
    pub reading: BlockingPool,
    pub grammars: BlockingPool,
    pub writing: BlockingPool,
}

impl Default for BlockingThreads {
    fn default() -> BlockingThreads {
        BlockingThreads {
            reading: BlockingPool::new(READING_THREADS),
            grammars: BlockingPool::new(GRAMMAR_THREADS),
            writing: BlockingPool::new(WRITING_THREADS),
        }
    }
}

/// Threads for one kind of work, first come, first served.
#[derive(Debug)]
pub struct BlockingPool(Arc<Semaphore>);

/// Work that is not begun any more once nobody waits for it.
struct Abandoned<T>(JoinHandle<T>);

impl<T> Drop for Abandoned<T> {
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
    /// What it says; an error of the server where it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let failed = || ApiError::internal("The request could not be processed.");
        let permit = Arc::clone(&self.0).acquire_owned().await.map_err(|_| failed())?;
        let mut handle = Abandoned(tokio::task::spawn_blocking(move || {
            // Until the work has ended, whoever waits for it.
            let _permit = permit;
            work()
        }));
        match (&mut handle.0).await {
            Ok(done) => done,
            Err(_) => Err(failed()),
        }
    }
}
