//! Jobs on an engine that serves: how much is submitted at a time, and what is left behind.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine_api::batch::{BatchEngine, EngineError};
use engine_api::event::BatchSink;
use engine_api::serving::{
    Engine, EngineEvent, EngineLimits, EngineState, EngineStatus, EventSink, FinishCause,
    GenerationId, GenerationRequest, PreparedGrammar, Priority, SubmitError,
};
use grammar::Grammar;

use crate::serving_adapter::ServingAdapter;

/// Requests of an engine.
#[derive(Debug, Default)]
struct Requests {
    open: usize,
    max_open: usize,
    submitted: Vec<GenerationRequest>,
    cancelled: Vec<GenerationId>,
}

/// Engine that ends each sequence after a while, or never.
#[derive(Debug, Default)]
struct SlowEngine {
    requests: Arc<Mutex<Requests>>,
    is_stuck: bool,
    /// Sinks of sequences that never end.
    sinks: Mutex<Vec<StuckSink>>,
}

struct StuckSink(#[expect(dead_code, reason = "kept")] Box<dyn EventSink>);

impl std::fmt::Debug for StuckSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StuckSink")
    }
}

impl Engine for SlowEngine {
    fn limits(&self) -> EngineLimits {
        EngineLimits { slots: 2, context: 64, logprobs: 0 }
    }

    fn status(&self) -> EngineStatus {
        EngineStatus::new(EngineState::Ready)
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        PreparedGrammar { grammar, compiled: None }
    }

    fn submit(
        &self,
        submission: GenerationRequest,
        mut listener: Box<dyn EventSink>,
    ) -> Result<GenerationId, SubmitError> {
        let mut requests = self.requests.lock().expect("no panic");
        let id = GenerationId(requests.submitted.len() as u64);
        requests.submitted.push(submission);
        requests.open += 1;
        requests.max_open = requests.max_open.max(requests.open);
        if self.is_stuck {
            self.sinks.lock().expect("no panic").push(StuckSink(listener));
            return Ok(id);
        }
        let shared = Arc::clone(&self.requests);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(3));
            shared.lock().expect("no panic").open -= 1;
            let _ = listener.on_event(EngineEvent::Finished(FinishCause::Length));
        });
        Ok(id)
    }

    fn cancel(&self, id: GenerationId) {
        self.requests.lock().expect("no panic").cancelled.push(id);
    }

    fn drain(&self) {}
}

/// Counts the sequences that end.
#[derive(Debug, Default)]
struct EndedCounter(usize);

impl BatchSink for EndedCounter {
    fn on_event(&mut self, _request: usize, event: EngineEvent) -> ControlFlow<()> {
        self.0 += usize::from(matches!(event, EngineEvent::Finished(_)));
        ControlFlow::Continue(())
    }
}

fn requests(count: usize) -> Vec<GenerationRequest> {
    (0..count).map(|_| GenerationRequest::greedy(vec![5, 6], 8)).collect()
}

#[test]
fn as_many_sequences_are_submitted_as_slots_and_memory_permit() {
    // A sequence of 10 tokens takes 640 bytes.
    for (max_bytes, max_open) in [(u64::MAX, 8), (3 * 640, 3), (1, 1)] {
        let (engine, mut ended) = (SlowEngine::default(), EndedCounter::default());
        let adapter = ServingAdapter::new(&engine, Vec::new(), &|| false);
        let mut adapter = adapter.with_answer_memory(max_bytes).with_priority(Priority::Background);
        adapter.run(&requests(30), &mut ended).expect("it ends");
        assert_eq!(ended.0, 30);
        let requests = engine.requests.lock().expect("no panic");
        assert!(requests.max_open <= max_open, "{} of {max_open}", requests.max_open);
        assert!(requests.submitted.iter().all(|one| one.priority == Priority::Background));
        assert!(requests.cancelled.is_empty());
    }
}

#[test]
fn an_interrupted_job_leaves_no_sequence_running() {
    for (max_bytes, submitted) in [(u64::MAX, 8), (3 * 640, 3), (1, 1)] {
        let engine = SlowEngine { is_stuck: true, ..SlowEngine::default() };
        let is_submitted = || !engine.requests.lock().expect("no panic").submitted.is_empty();
        let adapter = ServingAdapter::new(&engine, Vec::new(), &is_submitted);
        let mut adapter = adapter.with_answer_memory(max_bytes);
        let result = adapter.run(&requests(30), &mut EndedCounter::default());
        assert_eq!(result, Err(EngineError::Interrupted));
        let requests = engine.requests.lock().expect("no panic");
        assert_eq!((requests.submitted.len(), requests.cancelled.len()), (submitted, submitted));
    }
}
