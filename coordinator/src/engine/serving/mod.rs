//! The engine of a server: sequences arrive at any time and take the slots that others leave.
//!
//! One thread follows the steps of the workers: it offers sequences to free slots, reports the
//! sampled tokens and takes slots back. Workers never wait for it. If a worker is lost, the thread
//! starts new ones, and sequences continue from the tokens that they have, with bit-identical
//! results.

mod caches;
mod crew;
mod desk;
mod drive;
mod forms;
mod lookups;
mod measured_costs;
mod measured_owners;
mod options;
mod request;
mod restarts;
mod shelf;

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use grammar::Grammar;
use workers::shared::table::Deciding;

use super::launch::LaunchError;
use crate::boundary::serving::{
    Limits, Listener, PreparedGrammar, Refused, Serving, State, Status, Submission, SubmissionId,
};
use drive::{Command, Drive};
pub use options::{FormOf, ServingOptions, StepTime};

/// Workers that hold a model and continue prompts as they arrive. Dropping it ends them.
pub struct ServingEngine {
    forms: Option<Arc<FormOf>>,
    limits: Limits,
    deciding: Option<Deciding>,
    status: Arc<Mutex<Status>>,
    commands: Sender<Command>,
    submissions: Mutex<u64>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for ServingEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingEngine").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl ServingEngine {
    /// Starts the workers, loads the model and measures the costs of steps.
    ///
    /// # Errors
    /// The failure that kept a worker from becoming ready.
    ///
    /// # Panics
    /// If the plan is that of a batch job.
    pub fn start(options: ServingOptions) -> Result<ServingEngine, LaunchError> {
        let shape = options.plan.shape;
        assert!(shape.serves, "a plan of a run that serves");
        let slots = u32::from(shape.batches) * u32::from(shape.batch_size);
        let limits = Limits { slots, context: shape.max_context, logprobs: shape.logprobs };
        let status = Arc::new(Mutex::new(Status::new(State::Loading)));
        let (commands, received) = channel();
        let (started, ready) = channel();
        let (of_thread, shown) = (Arc::clone(&status), Arc::clone(&status));
        let forms = options.forms.clone();
        // Workers end with the thread that started them.
        let thread = std::thread::Builder::new().name("serving".to_owned()).spawn(move || {
            match Drive::start(options, received, of_thread) {
                Ok(mut drive) => {
                    // If the engine was dropped meanwhile, no thread waits for this.
                    let _ = started.send(Ok(drive.deciding()));
                    // A panic ends the server, which then must not appear to be working.
                    let run = std::panic::AssertUnwindSafe(|| drive.run());
                    if std::panic::catch_unwind(run).is_err() {
                        let abandon = std::panic::AssertUnwindSafe(|| drive.abandon());
                        // If this panics too, the remaining listeners are dropped, which reports a
                        // failure to their requests.
                        let _ = std::panic::catch_unwind(abandon);
                        drop(drive);
                        Drive::has_ended(&shown);
                    }
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
        let thread = thread
            .map_err(|source| LaunchError::Spawn { worker: "serving thread".to_owned(), source })?;
        // A thread that ends without a message has panicked.
        let deciding = ready.recv().unwrap_or(Err(LaunchError::Panicked))?;
        Ok(ServingEngine {
            forms,
            limits,
            deciding,
            status,
            commands,
            submissions: Mutex::new(0),
            thread: Some(thread),
        })
    }

    /// Returns the parameters that decide iterations, including measured costs; `None` if sequences
    /// have no owners.
    pub const fn deciding(&self) -> Option<&Deciding> {
        self.deciding.as_ref()
    }

    fn send(&self, command: Command) -> Result<(), Refused> {
        self.commands.send(command).map_err(|_| Refused::Ended)
    }
}

impl Serving for ServingEngine {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn status(&self) -> Status {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        let form = self.forms.as_ref().map(|form_of| form_of(&grammar));
        PreparedGrammar { grammar, form }
    }

    fn submit(
        &self,
        submission: Submission,
        listener: Box<dyn Listener>,
    ) -> Result<SubmissionId, Refused> {
        match self.status().state {
            State::Draining => return Err(Refused::Draining),
            State::Ended => return Err(Refused::Ended),
            State::Loading | State::Ready => {}
        }
        let mut submissions = self.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        let id = SubmissionId(*submissions);
        *submissions += 1;
        // Sent under the lock, so that submissions arrive in the order of their numbers.
        self.send(Command::Submit { id, submission: Box::new(submission), listener })?;
        Ok(id)
    }

    fn cancel(&self, id: SubmissionId) {
        // If no thread receives this, there is no sequence to end.
        let _ = self.send(Command::Cancel(id));
    }

    fn drain(&self) {
        let _ = self.send(Command::Drain);
    }
}

impl Drop for ServingEngine {
    fn drop(&mut self) {
        let _ = self.send(Command::End);
        if let Some(thread) = self.thread.take() {
            // The message of a panic was printed already.
            let _ = thread.join();
        }
    }
}
