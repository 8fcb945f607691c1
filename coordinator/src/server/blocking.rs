//! Work that takes long, on threads of its own: reading JSON, asking a tokenizer.

use tokio::task::JoinHandle;

use super::error::ApiError;

/// Threads for it, and so tokenizers that are asked at a time.
pub const THREADS: usize = 4;

/// Work that is not begun any more once nobody waits for it.
struct Abandoned<T>(JoinHandle<T>);

impl<T> Drop for Abandoned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` on one of the threads.
///
/// # Errors
/// What it says; an error of the server where it panicked.
pub async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let mut handle = Abandoned(tokio::task::spawn_blocking(work));
    match (&mut handle.0).await {
        Ok(done) => done,
        Err(_) => Err(ApiError::internal("The request could not be read.")),
    }
}
