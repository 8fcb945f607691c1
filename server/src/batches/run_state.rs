//! State of the batch that is being computed, shared by the thread that computes it and by
//! requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shm::sync::{AtomicBool, Ordering};

/// The batch that is being computed.
#[derive(Debug, Clone)]
pub struct ActiveBatch {
    pub id: String,
    is_cancelled: Arc<AtomicBool>,
}

impl ActiveBatch {
    /// Returns true once the batch is to be cancelled.
    pub fn is_cancelled(&self) -> bool {
        // Relaxed: no other memory access depends on the order, and the flag is read again soon.
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// The batch that is being computed, if any.
#[derive(Debug, Default)]
pub struct RunState(Mutex<Option<ActiveBatch>>);

impl RunState {
    /// Begins to compute a batch.
    pub fn begin(&self, id: &str) -> ActiveBatch {
        let active = ActiveBatch { id: id.to_owned(), is_cancelled: Arc::default() };
        *self.lock() = Some(active.clone());
        active
    }

    /// Ends the computation.
    pub fn end(&self) {
        *self.lock() = None;
    }

    /// Cancels a batch if it is being computed; returns false if it is not.
    pub fn cancel(&self, id: &str) -> bool {
        let active = self.lock();
        let active = active.as_ref().filter(|active| active.id == id);
        active.inspect(|active| active.is_cancelled.store(true, Ordering::Relaxed)).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<ActiveBatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
