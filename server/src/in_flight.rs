//! A request whose answers are being computed. It is cancelled when it is dropped.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine_api::serving::{DraftCounts, GenerationId};
use openai::output::{FinishReason, Usage, prompt_tokens};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Instant as TokioInstant, sleep_until};

use super::admission::AdmissionPermit;
use super::answer_events::{AnswerEvent, AnswerEventKind, Backlog, CancelFlag, TrackedAnswer};
use super::answer_memory::AnswerMemoryPermit;
use super::error::ApiError;
use super::parsed_request::ParsedRequest;
use super::request_log::LogLine;
use super::state::{ServerPhase, ServerState, submit_error};

/// Resources that a request holds once it is admitted.
#[derive(Debug)]
pub struct RequestPermits {
    pub admission: AdmissionPermit,
    pub memory: AnswerMemoryPermit,
}

/// Time of a request's arrival, and its id.
#[derive(Debug)]
pub struct RequestMetadata {
    pub arrived_at: Instant,
    /// Id of the request; see the module `request_id`.
    pub request_id: String,
}

/// A request that was submitted to the engine.
#[derive(Debug)]
pub struct InFlightRequest {
    pub parsed: Arc<ParsedRequest>,
    shared: Arc<ServerState>,
    /// Answers that are not complete yet, by choice.
    open_answers: Vec<Option<GenerationId>>,
    events: UnboundedReceiver<AnswerEvent>,
    phase: watch::Receiver<ServerPhase>,
    cancel_flag: CancelFlag,
    backlog: Backlog,
    permit: AdmissionPermit,
    memory: Option<AnswerMemoryPermit>,
    metadata: RequestMetadata,
    stats: RequestStats,
}

/// Numbers and outcomes of a request so far.
#[derive(Debug)]
struct RequestStats {
    cached_tokens: u64,
    /// Number of tokens of the reasoning of completed answers.
    reasoning_tokens: u64,
    /// Drafted tokens of completed answers.
    drafts: DraftCounts,
    /// Number of generated tokens of each answer.
    generated: Vec<u64>,
    first_token: Option<Instant>,
    finish_reasons: Vec<&'static str>,
    /// Error for which some answers did not end.
    error: Option<ApiError>,
}

impl InFlightRequest {
    /// Submits all answers of a request to the engine.
    ///
    /// # Errors
    /// The engine does not accept requests any more.
    pub fn start(
        parsed: ParsedRequest,
        shared: &Arc<ServerState>,
        permits: RequestPermits,
        metadata: RequestMetadata,
    ) -> Result<InFlightRequest, ApiError> {
        let RequestPermits { admission: mut permit, memory } = permits;
        let arrived_at = metadata.arrived_at;
        let mut answer_slots = permit.take_answer_slots();
        let choices = parsed.request.choice_count();
        let (sender, events) = unbounded_channel();
        let stats = RequestStats {
            cached_tokens: 0,
            reasoning_tokens: 0,
            drafts: DraftCounts::default(),
            generated: vec![0; choices],
            first_token: None,
            finish_reasons: Vec::new(),
            error: None,
        };
        let mut in_flight = InFlightRequest {
            parsed: Arc::new(parsed),
            shared: Arc::clone(shared),
            open_answers: Vec::with_capacity(choices),
            events,
            phase: shared.phase.clone(),
            cancel_flag: CancelFlag::default(),
            backlog: Backlog::default(),
            permit,
            memory: Some(memory),
            metadata,
            stats,
        };
        for choice in 0..choices {
            let answer_slot = answer_slots.pop().ok_or_else(|| {
                ApiError::internal("The request has more choices than were admitted.")
            })?;
            let tracked = TrackedAnswer {
                request: Arc::clone(&in_flight.parsed.request),
                choice,
                is_streamed: in_flight.parsed.stream.is_some(),
                arrived_at,
                events: sender.clone(),
                cancel_flag: in_flight.cancel_flag_for_answer(),
                backlog: in_flight.backlog.clone(),
                answer_slot,
            };
            let forwarder = shared.detokenizer_pool.track(tracked);
            let generation = in_flight.parsed.generation_request(choice);
            match shared.engine.submit(generation, Box::new(forwarder)) {
                Ok(id) => in_flight.open_answers.push(Some(id)),
                Err(reason) => {
                    in_flight.stats.error = Some(submit_error(reason));
                    return Err(submit_error(reason));
                }
            }
        }
        shared.metrics.preparation.observe(arrived_at.elapsed().as_secs_f64());
        Ok(in_flight)
    }

    /// Returns the cancel flag of one answer. A single answer shares the request's flag; several
    /// have separate flags, because an answer that ends early sets its flag.
    fn cancel_flag_for_answer(&self) -> CancelFlag {
        if self.parsed.request.choice_count() == 1 {
            self.cancel_flag.clone()
        } else {
            CancelFlag::default()
        }
    }

    /// Returns true if some answers are not complete.
    pub fn is_open(&self) -> bool {
        self.open_answers.iter().any(Option::is_some)
    }

    /// Waits for the next event of the request.
    ///
    /// # Errors
    /// The request failed, timed out or was cut off by a shutdown; no more events follow, and its
    /// open answers are cancelled.
    pub async fn next(&mut self) -> Result<AnswerEvent, ApiError> {
        let event = self.receive().await;
        self.record_event(event)
    }

    /// Returns an event that is available already; `None` if there is none.
    ///
    /// # Errors
    /// See [`InFlightRequest::next`].
    pub fn try_next(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        let event = self.events.try_recv().ok()?;
        Some(self.record_event(Ok(event)))
    }

    async fn receive(&mut self) -> Result<AnswerEvent, ApiError> {
        let deadline =
            self.shared.options.timeout.map(|timeout| self.metadata.arrived_at + timeout);
        let deadline_passed = async {
            match deadline {
                Some(deadline) => sleep_until(TokioInstant::from_std(deadline)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            news = self.events.recv() => {
                news.ok_or_else(|| ApiError::internal("The server lost the answer internally."))
            }
            _ = self.phase.wait_for(|phase| *phase == ServerPhase::Ending) => {
                let message = "The server shut down before the answer was complete.";
                Err(ApiError::unavailable("shutdown", message))
            }
            () = deadline_passed => Err(ApiError::timed_out()),
        }
    }

    fn record_event(
        &mut self,
        event: Result<AnswerEvent, ApiError>,
    ) -> Result<AnswerEvent, ApiError> {
        let outcome = event.and_then(|event| match &event.kind {
            AnswerEventKind::Failed(sentence) => Err(ApiError::internal(sentence.clone())),
            AnswerEventKind::DetokenizationFailed(sentence) => {
                Err(ApiError::tokenizer_failed(sentence.clone()))
            }
            _ => Ok(event),
        });
        match &outcome {
            Ok(event) => self.update_stats(event),
            Err(error) => self.stats.error = Some(error.clone()),
        }
        outcome
    }

    fn update_stats(&mut self, event: &AnswerEvent) {
        let choice = event.choice;
        match &event.kind {
            AnswerEventKind::Prompt { cached_tokens, .. } => {
                // Answers to the same prompt share it.
                if choice.is_multiple_of(self.parsed.request.n) {
                    let tokens = self.parsed.request.prompt_of(choice).tokens.len();
                    self.stats.cached_tokens += u64::from(*cached_tokens);
                    self.permit.release_prompt_tokens(tokens as u64);
                }
            }
            AnswerEventKind::Delta(_, tokens) => {
                self.backlog.remove();
                self.stats.generated[choice] = *tokens;
                self.stats.first_token.get_or_insert_with(Instant::now);
            }
            AnswerEventKind::Completed(ended) => {
                let id = self.open_answers[choice].take();
                if let Some(id) = id.filter(|_| ended.is_stop_string) {
                    self.shared.engine.cancel(id);
                }
                self.stats.first_token.get_or_insert_with(Instant::now);
                self.stats.generated[choice] = u64::from(ended.answer.generated);
                self.stats.reasoning_tokens += u64::from(ended.answer.reasoning_tokens);
                self.stats.drafts += ended.drafts;
                let reason = FinishReason::from_answer(&ended.answer).name();
                self.stats.finish_reasons.push(reason);
                self.shared.metrics.count_finished(reason);
                self.permit.mark_answered();
            }
            AnswerEventKind::Failed(_) | AnswerEventKind::DetokenizationFailed(_) => {}
        }
    }

    /// Returns the state of the server.
    pub fn shared(&self) -> &Arc<ServerState> {
        &self.shared
    }

    /// Takes the reserved memory of the answers, which stays in use until they are written.
    pub fn take_memory_permit(&mut self) -> Option<AnswerMemoryPermit> {
        self.memory.take()
    }

    /// Returns the token counts so far.
    pub fn usage(&self) -> Usage {
        let counted = self.stats.generated.iter().enumerate();
        let counted = counted.filter(|(choice, _)| !self.parsed.is_prompt_only(*choice));
        let generated = counted.map(|(_, tokens)| tokens).sum();
        let usage = Usage::new(prompt_tokens(&self.parsed.request), generated)
            .with_cached(self.stats.cached_tokens);
        let usage = match self.parsed.request.reasoning {
            Some(_) => usage.with_reasoning(self.stats.reasoning_tokens),
            None => usage,
        };
        let DraftCounts { verified, accepted } = self.stats.drafts;
        match verified {
            0 => usage,
            verified => usage.with_drafts(accepted, verified.saturating_sub(accepted)),
        }
    }

    fn log_line(&self, outcome: String, status: u16) -> LogLine {
        let request = &*self.parsed.request;
        let since = |at: Instant| at.duration_since(self.metadata.arrived_at).as_secs_f64() * 1e3;
        let took = self.metadata.arrived_at.elapsed();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let usage = self.usage();
        LogLine {
            time_s: now.saturating_sub(took).as_secs_f64(),
            id: self.parsed.api.answer_id(request),
            request_id: self.metadata.request_id.clone(),
            endpoint: self.parsed.api.path(),
            status,
            outcome,
            stream: self.parsed.stream.is_some(),
            answers: request.choice_count(),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: self.stats.cached_tokens,
            completion_tokens: usage.completion_tokens,
            first_token_ms: self.stats.first_token.map(since),
            total_ms: took.as_secs_f64() * 1e3,
        }
    }
}

impl Drop for InFlightRequest {
    /// Cancels the answers that are not complete, and logs the request.
    fn drop(&mut self) {
        self.cancel_flag.set();
        let was_open = self.is_open();
        for id in self.open_answers.iter().flatten() {
            self.shared.engine.cancel(*id);
        }
        let metrics = &self.shared.metrics;
        let (outcome, status) = match &self.stats.error {
            Some(error) => (error.code().to_owned(), error.status().as_u16()),
            // Status that HTTP servers conventionally log if the client disconnected first.
            None if was_open => ("client_left".to_owned(), 499),
            None => (self.stats.finish_reasons.join(","), 200),
        };
        if self.stats.error.is_some() || was_open {
            metrics.count_refused(&outcome);
        } else {
            metrics.request_latency.observe(self.metadata.arrived_at.elapsed().as_secs_f64());
            let usage = self.usage();
            metrics.prompt_tokens.observe(usage.prompt_tokens as f64);
            metrics.generated_tokens.observe(usage.completion_tokens as f64);
        }
        if self.shared.request_log.is_open()
            && !self.shared.request_log.add(&self.log_line(outcome, status))
        {
            metrics.lost_log_lines.inc();
        }
    }
}
