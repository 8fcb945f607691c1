//! Tasks of responses in the background, by which other requests follow and end them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openai::responses::response::{ResponseError, ResponseStatus};
use serde_json::Value;
use tokio::sync::watch;

/// Responses in the background that are being computed, by their ids. Admission control bounds
/// their number.
#[derive(Debug, Default)]
pub struct BackgroundResponses(Mutex<HashMap<String, Arc<BackgroundTask>>>);

/// Progress of a response in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskPhase {
    Queued,
    /// The prompt is computed.
    Generating,
    /// A client cancelled the response.
    Cancelled,
    /// A client deleted the response.
    Deleted,
    /// The response has ended and is stored.
    Ended,
}

/// A response in the background that is being computed.
#[derive(Debug)]
pub struct BackgroundTask(watch::Sender<TaskPhase>);

impl BackgroundTask {
    /// Creates the task of a response that is queued.
    pub fn new() -> BackgroundTask {
        BackgroundTask(watch::Sender::new(TaskPhase::Queued))
    }

    /// Returns the status of the response.
    pub fn status(&self) -> ResponseStatus {
        match *self.0.borrow() {
            TaskPhase::Queued => ResponseStatus::Queued,
            _ => ResponseStatus::InProgress,
        }
    }

    /// Moves to a later phase.
    pub fn advance(&self, to: TaskPhase) {
        self.0.send_if_modified(|phase| {
            let is_later = *phase < to;
            if is_later {
                *phase = to;
            }
            is_later
        });
    }

    /// Waits until the task has reached a phase.
    pub async fn wait_for(&self, phase: TaskPhase) {
        // The sender is `self`, so that the channel is open.
        let _ = self.0.subscribe().wait_for(|reached| *reached >= phase).await;
    }

    /// Returns true if a client deleted the response.
    pub fn is_deleted(&self) -> bool {
        *self.0.borrow() == TaskPhase::Deleted
    }
}

impl BackgroundResponses {
    /// Returns the task of a response that is being computed. If there is none, the stored response
    /// has ended.
    pub fn find(&self, id: &str) -> Option<Arc<BackgroundTask>> {
        self.lock().get(id).cloned()
    }

    /// Adds the task of a response.
    pub fn insert(&self, id: String, task: Arc<BackgroundTask>) {
        self.lock().insert(id, task);
    }

    /// Removes the task of a response that has ended.
    pub fn remove(&self, id: &str) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<BackgroundTask>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true for a response that was stored before it ended.
pub fn is_queued(response: &Value) -> bool {
    response["status"] == ResponseStatus::Queued.name()
}

/// Changes a stored response to what clients get: one that has not ended has the status of its
/// task, or has failed if the server that computed it has ended.
pub fn update_status(response: &mut Value, task: Option<&BackgroundTask>) {
    if !is_queued(response) {
        return;
    }
    if let Some(task) = task {
        response["status"] = task.status().name().into();
        return;
    }
    let message = "The server was restarted before the response was complete.";
    response["status"] = ResponseStatus::Failed.name().into();
    response["error"] = serde_json::to_value(ResponseError::new(message)).unwrap_or_default();
}
