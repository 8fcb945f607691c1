//! Requests of which only prompts are computed: embeddings and rankings. Their sequences report
//! hidden states or log-probabilities once, and no text.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine_api::event::{FinishCause, Logprob};
use engine_api::serving::{EngineEvent, EventSink, GenerationId, GenerationRequest};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant as TokioInstant, sleep_until};

use super::admission::{AdmissionPermit, AnswerSlot};
use super::error::ApiError;
use super::in_flight::RequestMetadata;
use super::request_log::LogLine;
use super::state::{ServerPhase, ServerState, submit_error};

/// Results of a prompt.
#[derive(Debug, Default)]
pub struct PromptResults {
    /// Pooled hidden states, if they were requested.
    pub hidden: Vec<f32>,
    /// Log-probabilities of the prompt's tokens, if they were requested.
    pub logprobs: Vec<Logprob>,
    /// True if logits contained infinities or NaN.
    pub has_broken_logits: bool,
    cached_tokens: u32,
}

/// Collects the events of a sequence, and sends its results when it has ended.
struct PromptSink {
    index: usize,
    results: PromptResults,
    sender: UnboundedSender<SequenceEnd>,
    has_ended: bool,
    /// Released with this sink.
    _slot: Option<AnswerSlot>,
}

/// End of a sequence: its index, and its results or the sentence for which it failed.
struct SequenceEnd {
    index: usize,
    outcome: Result<PromptResults, String>,
}

impl PromptSink {
    fn end(&mut self, outcome: Result<PromptResults, String>) {
        self.has_ended = true;
        // If the request is gone, nothing waits for its results.
        let _ = self.sender.send(SequenceEnd { index: self.index, outcome });
    }
}

impl EventSink for PromptSink {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        match event {
            EngineEvent::Prompt { cached_tokens, logprobs, .. } => {
                self.results.cached_tokens = cached_tokens;
                self.results.logprobs = logprobs;
            }
            EngineEvent::Pooled(hidden) => self.results.hidden = hidden,
            EngineEvent::Token { .. } | EngineEvent::Drafts(_) => {}
            EngineEvent::Finished(cause) => {
                self.results.has_broken_logits = cause == FinishCause::NotFinite;
                let results = std::mem::take(&mut self.results);
                self.end(Ok(results));
            }
            EngineEvent::Failed(sentence) => self.end(Err(sentence)),
        }
        if self.sender.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Drop for PromptSink {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(Err("The engine dropped the request.".to_owned()));
        }
    }
}

/// Prompts that are being computed. They are cancelled when this is dropped.
pub struct PromptBatch {
    shared: Arc<ServerState>,
    endpoint: &'static str,
    metadata: RequestMetadata,
    permit: AdmissionPermit,
    ends: UnboundedReceiver<SequenceEnd>,
    /// Sequences that have not ended.
    open: Vec<Option<GenerationId>>,
    prompt_tokens: u64,
    cached_tokens: u64,
    error: Option<ApiError>,
}

impl PromptBatch {
    /// Submits prompts to the engine.
    ///
    /// # Errors
    /// The engine does not accept requests any more.
    pub fn submit(
        shared: &Arc<ServerState>,
        endpoint: &'static str,
        requests: Vec<GenerationRequest>,
        mut permit: AdmissionPermit,
        metadata: RequestMetadata,
    ) -> Result<PromptBatch, ApiError> {
        let mut slots = permit.take_answer_slots();
        let (sender, ends) = unbounded_channel();
        let prompt_tokens = requests.iter().map(|request| request.prompt.len() as u64).sum();
        let mut batch = PromptBatch {
            shared: Arc::clone(shared),
            endpoint,
            metadata,
            permit,
            ends,
            open: Vec::with_capacity(requests.len()),
            prompt_tokens,
            cached_tokens: 0,
            error: None,
        };
        for (index, request) in requests.into_iter().enumerate() {
            let sink = PromptSink {
                index,
                results: PromptResults::default(),
                sender: sender.clone(),
                has_ended: false,
                _slot: slots.pop(),
            };
            match shared.engine.submit(request, Box::new(sink)) {
                Ok(id) => batch.open.push(Some(id)),
                Err(reason) => {
                    batch.error = Some(submit_error(reason));
                    return Err(submit_error(reason));
                }
            }
        }
        Ok(batch)
    }

    /// Waits for the results of all prompts, in the order of the requests.
    ///
    /// # Errors
    /// The request failed, timed out or was cut off by a shutdown.
    pub async fn results(mut self) -> Result<Vec<PromptResults>, ApiError> {
        let mut results: Vec<PromptResults> = Vec::new();
        results.resize_with(self.open.len(), PromptResults::default);
        // Each sequence ends once.
        for _ in 0..self.open.len() {
            let end = self.next_end().await;
            let found = end.and_then(|SequenceEnd { index, outcome }| {
                self.open[index] = None;
                Ok((index, outcome.map_err(ApiError::internal)?))
            });
            let (index, found) = found.inspect_err(|error| self.error = Some(error.clone()))?;
            self.cached_tokens += u64::from(found.cached_tokens);
            self.permit.mark_answered();
            results[index] = found;
        }
        Ok(results)
    }

    async fn next_end(&mut self) -> Result<SequenceEnd, ApiError> {
        let timeout = self.shared.options.timeout;
        let deadline = timeout.map(|timeout| self.metadata.arrived_at + timeout);
        let mut phase = self.shared.phase.clone();
        let deadline_passed = async {
            match deadline {
                Some(deadline) => sleep_until(TokioInstant::from_std(deadline)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            end = self.ends.recv() => {
                end.ok_or_else(|| ApiError::internal("The server lost the request internally."))
            }
            _ = phase.wait_for(|phase| *phase == ServerPhase::Ending) => {
                let message = "The server shut down before the answer was complete.";
                Err(ApiError::unavailable("shutdown", message))
            }
            () = deadline_passed => Err(ApiError::timed_out()),
        }
    }

    fn log_line(&self, outcome: String, status: u16) -> LogLine {
        let took = self.metadata.arrived_at.elapsed();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        LogLine {
            time_s: now.saturating_sub(took).as_secs_f64(),
            id: self.metadata.request_id.clone(),
            request_id: self.metadata.request_id.clone(),
            endpoint: self.endpoint,
            status,
            outcome,
            stream: false,
            answers: self.open.len(),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: 0,
            first_token_ms: None,
            total_ms: took.as_secs_f64() * 1e3,
        }
    }
}

impl Drop for PromptBatch {
    /// Cancels the sequences that have not ended, and logs the request.
    fn drop(&mut self) {
        let was_open = self.open.iter().any(Option::is_some);
        for id in self.open.iter().flatten() {
            self.shared.engine.cancel(*id);
        }
        let metrics = &self.shared.metrics;
        let (outcome, status) = match &self.error {
            Some(error) => (error.code().to_owned(), error.status().as_u16()),
            // Status that HTTP servers conventionally log if the client disconnected first.
            None if was_open => ("client_left".to_owned(), 499),
            None => ("stop".to_owned(), 200),
        };
        if self.error.is_some() || was_open {
            metrics.count_refused(&outcome);
        } else {
            let took = self.metadata.arrived_at.elapsed();
            metrics.request_latency.observe(took.as_secs_f64());
            metrics.prompt_tokens.observe(self.prompt_tokens as f64);
        }
        let log = &self.shared.request_log;
        if log.is_open() && !log.add(&self.log_line(outcome, status)) {
            metrics.lost_log_lines.inc();
        }
    }
}

/// Returns the time of a request's arrival, now, and its id.
pub fn metadata_of(request_id: Option<&str>) -> RequestMetadata {
    let request_id = request_id.unwrap_or_default().to_owned();
    RequestMetadata { arrived_at: Instant::now(), request_id }
}
