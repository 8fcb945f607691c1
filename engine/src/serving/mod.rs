//! The engine of a server: sequences arrive at any time and take the slots that others leave.
//!
//! One thread follows the steps of the workers: it offers sequences to free slots, reports the
//! sampled tokens and takes slots back. Workers never wait for it. If a worker is lost, the thread
//! starts new ones, and sequences continue from the tokens that they have, with bit-identical
//! results.

mod checkpoints;
mod engine_loop;
mod grammar_tracker;
mod hybrid_costs;
mod kv_cache;
mod lane_activity;
mod options;
mod prefix_cache_index;
mod restart_backoff;
mod scheduler;
mod step_costs;
mod step_recorder;
mod store_lookups;
mod worker_group;

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use grammar::Grammar;
use program::plan::Plan;
use protocol::table::HybridPolicy;

use super::RunStats;
use super::launch::LaunchError;
use engine_api::serving::{
    Engine, EngineLimits, EngineState, EngineStatus, EventSink, GenerationId, GenerationRequest,
    LaneActivity, PreparedGrammar, SubmitError,
};
use engine_loop::{Command, EngineLoop};
use lane_activity::SharedLaneActivity;
pub use options::{CompileGrammarFn, ServingOptions, StepTime, draft_obstacle};

/// Measurements of a run; `None` if they are not recorded, or if the engine could not end properly.
type RecordedStats = Option<std::io::Result<RunStats>>;

/// Workers that hold a model and continue prompts as they arrive. Dropping it ends them.
pub struct ServingEngine {
    compile_grammar: Option<Arc<CompileGrammarFn>>,
    limits: EngineLimits,
    hybrid_policy: Option<HybridPolicy>,
    status: Arc<Mutex<EngineStatus>>,
    lanes: SharedLaneActivity,
    commands: Sender<Command>,
    next_id: Mutex<u64>,
    plan: Arc<Plan>,
    thread: Option<JoinHandle<RecordedStats>>,
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
        let (shape, plan) = (options.plan.shape, Arc::new(options.plan.clone()));
        assert!(shape.serves, "a plan of a run that serves");
        let slots = u32::from(shape.batches) * u32::from(shape.batch_size);
        let limits = EngineLimits { slots, context: shape.max_context, logprobs: shape.logprobs };
        let status = Arc::new(Mutex::new(EngineStatus::new(EngineState::Loading)));
        let (commands, received) = channel();
        let (started, ready) = channel();
        let lanes = SharedLaneActivity::default();
        let loop_lanes = Arc::clone(&lanes);
        let (loop_status, panic_status) = (Arc::clone(&status), Arc::clone(&status));
        let compile_grammar = options.compile_grammar.clone();
        // Workers end with the thread that started them.
        let thread = std::thread::Builder::new().name("serving".to_owned()).spawn(move || {
            match EngineLoop::start(options, received, loop_status, loop_lanes) {
                Ok(mut engine_loop) => {
                    // If the engine was dropped meanwhile, no thread waits for this.
                    let _ = started.send(Ok(engine_loop.hybrid_policy()));
                    // A panic ends the server, which then must not appear to be working.
                    let run = std::panic::AssertUnwindSafe(|| engine_loop.run());
                    std::panic::catch_unwind(run).unwrap_or_else(|_| {
                        let abandon = std::panic::AssertUnwindSafe(|| engine_loop.abort());
                        // If this panics too, the remaining listeners are dropped, which reports a
                        // failure to their requests.
                        let _ = std::panic::catch_unwind(abandon);
                        drop(engine_loop);
                        EngineLoop::mark_ended(&panic_status);
                        None
                    })
                }
                Err(error) => {
                    drop(started.send(Err(error)));
                    None
                }
            }
        });
        let thread = thread
            .map_err(|source| LaunchError::Spawn { worker: "serving thread".to_owned(), source })?;
        // A thread that ends without a message has panicked.
        let hybrid_policy = ready.recv().unwrap_or(Err(LaunchError::Panicked))?;
        Ok(ServingEngine {
            compile_grammar,
            limits,
            hybrid_policy,
            status,
            lanes,
            commands,
            next_id: Mutex::new(0),
            plan,
            thread: Some(thread),
        })
    }

    /// Returns the parameters that decide iterations, including measured costs; `None` if sequences
    /// have no owners.
    pub const fn hybrid_policy(&self) -> Option<&HybridPolicy> {
        self.hybrid_policy.as_ref()
    }

    /// Returns the plan that the workers execute.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Ends the workers, completes the trace file and returns the measurements; `None` if they were
    /// not to be recorded, or if the workers were lost for good.
    ///
    /// # Errors
    /// A trace file that could not be written.
    pub fn finish(mut self) -> std::io::Result<Option<RunStats>> {
        self.end().transpose()
    }

    fn end(&mut self) -> RecordedStats {
        let _ = self.send(Command::Stop);
        // The message of a panic was printed already.
        self.thread.take().and_then(|thread| thread.join().ok()).flatten()
    }

    fn send(&self, command: Command) -> Result<(), SubmitError> {
        self.commands.send(command).map_err(|_| SubmitError::Ended)
    }
}

impl Engine for ServingEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn status(&self) -> EngineStatus {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lanes(&self) -> Vec<LaneActivity> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        let compiled = self.compile_grammar.as_ref().map(|form_of| form_of(&grammar));
        PreparedGrammar { grammar, compiled }
    }

    fn submit(
        &self,
        submission: GenerationRequest,
        sink: Box<dyn EventSink>,
    ) -> Result<GenerationId, SubmitError> {
        match self.status().state {
            EngineState::Draining => return Err(SubmitError::Draining),
            EngineState::Ended => return Err(SubmitError::Ended),
            EngineState::Loading | EngineState::Ready => {}
        }
        let mut submissions = self.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        let id = GenerationId(*submissions);
        *submissions += 1;
        // Sent under the lock, so that submissions arrive in the order of their numbers.
        self.send(Command::Submit { id, submission: Box::new(submission), sink })?;
        Ok(id)
    }

    fn cancel(&self, id: GenerationId) {
        // If no thread receives this, there is no sequence to end.
        let _ = self.send(Command::Cancel(id));
    }

    fn drain(&self) {
        let _ = self.send(Command::Drain);
    }
}

impl Drop for ServingEngine {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
