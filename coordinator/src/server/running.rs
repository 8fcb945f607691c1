//! A request whose answers are being computed. It is cancelled when it is dropped.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Instant as TokioInstant, sleep_until};

use super::admission::Ticket;
use super::answer_memory::AnswerMemoryPermit;
use super::error::ApiError;
use super::log::LogLine;
use super::order::Order;
use super::sequence::{Backlog, Begun, Gone, News, What};
use super::shared::{Phase, Shared, refused};
use crate::boundary::serving::SubmissionId;
use crate::openai::item::Endpoint;
use crate::openai::output::{FinishReason, Usage, body_id, prompt_tokens};

/// Resources that a request holds once it is admitted.
#[derive(Debug)]
pub struct Admitted {
    pub ticket: Ticket,
    pub memory: AnswerMemoryPermit,
}

/// Time of a request's arrival, and its id.
#[derive(Debug)]
pub struct Asked {
    pub arrived: Instant,
    /// Id of the request; see the module `request_id`.
    pub request_id: String,
}

/// A request that was submitted to the engine.
#[derive(Debug)]
pub struct Running {
    pub order: Arc<Order>,
    shared: Arc<Shared>,
    /// Answers that are not complete yet, by choice.
    open: Vec<Option<SubmissionId>>,
    news: UnboundedReceiver<News>,
    phase: watch::Receiver<Phase>,
    gone: Gone,
    backlog: Backlog,
    ticket: Ticket,
    memory: Option<AnswerMemoryPermit>,
    asked: Asked,
    count: Count,
}

/// Numbers and outcomes of a request so far.
#[derive(Debug)]
struct Count {
    cached_tokens: u64,
    /// Number of generated tokens of each answer.
    generated: Vec<u64>,
    first_token: Option<Instant>,
    ends: Vec<&'static str>,
    /// Error for which some answers did not end.
    cut: Option<ApiError>,
}

impl Running {
    /// Submits all answers of a request to the engine.
    ///
    /// # Errors
    /// The engine does not accept requests any more.
    pub fn start(
        order: Order,
        shared: &Arc<Shared>,
        admitted: Admitted,
        asked: Asked,
    ) -> Result<Running, ApiError> {
        let Admitted { mut ticket, memory } = admitted;
        let arrived = asked.arrived;
        let mut places = ticket.places();
        let choices = order.request.choices();
        let (sender, news) = unbounded_channel();
        let count = Count {
            cached_tokens: 0,
            generated: vec![0; choices],
            first_token: None,
            ends: Vec::new(),
            cut: None,
        };
        let mut running = Running {
            order: Arc::new(order),
            shared: Arc::clone(shared),
            open: Vec::with_capacity(choices),
            news,
            phase: shared.phase.clone(),
            gone: Gone::default(),
            backlog: Backlog::default(),
            ticket,
            memory: Some(memory),
            asked,
            count,
        };
        for choice in 0..choices {
            let place = places.pop().ok_or_else(|| {
                ApiError::internal("The request has more choices than were admitted.")
            })?;
            let begun = Begun {
                request: Arc::clone(&running.order.request),
                choice,
                is_streamed: running.order.stream.is_some(),
                arrived,
                news: sender.clone(),
                gone: running.each_gone(),
                backlog: running.backlog.clone(),
                place,
            };
            let ear = shared.tellers.begin(begun);
            let submission = running.order.submission(choice);
            match shared.engine.submit(submission, Box::new(ear)) {
                Ok(id) => running.open.push(Some(id)),
                Err(reason) => {
                    running.count.cut = Some(refused(reason));
                    return Err(refused(reason));
                }
            }
        }
        shared.metrics.preparation.observe(arrived.elapsed().as_secs_f64());
        Ok(running)
    }

    /// Returns the cancel flag of one answer. A single answer shares the request's flag; several
    /// have separate flags, because an answer that ends early sets its flag.
    fn each_gone(&self) -> Gone {
        if self.order.request.choices() == 1 { self.gone.clone() } else { Gone::default() }
    }

    /// Returns true if some answers are not complete.
    pub fn is_open(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }

    /// Waits for the next event of the request.
    ///
    /// # Errors
    /// The request failed, timed out or was cut off by a shutdown; no more events follow, and its
    /// open answers are cancelled.
    pub async fn next(&mut self) -> Result<News, ApiError> {
        let news = self.receive().await;
        self.keep(news)
    }

    /// Returns an event that is available already; `None` if there is none.
    ///
    /// # Errors
    /// See [`Running::next`].
    pub fn try_next(&mut self) -> Option<Result<News, ApiError>> {
        let news = self.news.try_recv().ok()?;
        Some(self.keep(Ok(news)))
    }

    async fn receive(&mut self) -> Result<News, ApiError> {
        let deadline = self.shared.options.timeout.map(|timeout| self.asked.arrived + timeout);
        let passed = async {
            match deadline {
                Some(deadline) => sleep_until(TokioInstant::from_std(deadline)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            news = self.news.recv() => {
                news.ok_or_else(|| ApiError::internal("The server lost the answer internally."))
            }
            _ = self.phase.wait_for(|phase| *phase == Phase::Ending) => {
                let message = "The server shut down before the answer was complete.";
                Err(ApiError::unavailable("shutdown", message))
            }
            () = passed => Err(ApiError::timed_out()),
        }
    }

    fn keep(&mut self, news: Result<News, ApiError>) -> Result<News, ApiError> {
        let kept = news.and_then(|news| match &news.what {
            What::Failed(sentence) => Err(ApiError::internal(sentence.clone())),
            What::Lost(sentence) => Err(ApiError::tokenizer_failed(sentence.clone())),
            _ => Ok(news),
        });
        match &kept {
            Ok(news) => self.note(news),
            Err(error) => self.count.cut = Some(error.clone()),
        }
        kept
    }

    fn note(&mut self, news: &News) {
        let choice = news.choice;
        match &news.what {
            What::Prompt { cached_tokens, .. } => {
                // Answers to the same prompt share it.
                if choice.is_multiple_of(self.order.request.n) {
                    let tokens = self.order.request.prompt_of(choice).tokens.len();
                    self.count.cached_tokens += u64::from(*cached_tokens);
                    self.ticket.computed(tokens as u64);
                }
            }
            What::Grown(_, tokens) => {
                self.backlog.take();
                self.count.generated[choice] = *tokens;
                self.count.first_token.get_or_insert_with(Instant::now);
            }
            What::Ended(ended) => {
                let id = self.open[choice].take();
                if let Some(id) = id.filter(|_| ended.by_stop_string) {
                    self.shared.engine.cancel(id);
                }
                self.count.first_token.get_or_insert_with(Instant::now);
                self.count.generated[choice] = u64::from(ended.answer.generated);
                let reason = FinishReason::of(&ended.answer).name();
                self.count.ends.push(reason);
                self.shared.metrics.count_finished(reason);
                self.ticket.ended();
            }
            What::Failed(_) | What::Lost(_) => {}
        }
    }

    /// Takes the reserved memory of the answers, which stays in use until they are written.
    pub fn take_memory(&mut self) -> Option<AnswerMemoryPermit> {
        self.memory.take()
    }

    /// Returns the token counts so far.
    pub fn usage(&self) -> Usage {
        let told = self.count.generated.iter().enumerate();
        let told = told.filter(|(choice, _)| !self.order.is_prompt_alone(*choice));
        let generated = told.map(|(_, tokens)| tokens).sum();
        Usage::new(prompt_tokens(&self.order.request), generated)
            .with_cached(self.count.cached_tokens)
    }

    fn log_line(&self, outcome: String, status: u16) -> LogLine {
        let request = &*self.order.request;
        let since = |at: Instant| at.duration_since(self.asked.arrived).as_secs_f64() * 1e3;
        let took = self.asked.arrived.elapsed();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let usage = self.usage();
        LogLine {
            time_s: now.saturating_sub(took).as_secs_f64(),
            id: body_id(request),
            request_id: self.asked.request_id.clone(),
            endpoint: match request.endpoint {
                Endpoint::Completions => "/v1/completions",
                Endpoint::ChatCompletions => "/v1/chat/completions",
            },
            status,
            outcome,
            stream: self.order.stream.is_some(),
            answers: request.choices(),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: self.count.cached_tokens,
            completion_tokens: usage.completion_tokens,
            first_token_ms: self.count.first_token.map(since),
            total_ms: took.as_secs_f64() * 1e3,
        }
    }
}

impl Drop for Running {
    /// Cancels the answers that are not complete, and logs the request.
    fn drop(&mut self) {
        self.gone.set();
        let was_open = self.is_open();
        for id in self.open.iter().flatten() {
            self.shared.engine.cancel(*id);
        }
        let metrics = &self.shared.metrics;
        let (outcome, status) = match &self.count.cut {
            Some(error) => (error.code().to_owned(), error.status().as_u16()),
            // Status that HTTP servers conventionally log if the client disconnected first.
            None if was_open => ("client_left".to_owned(), 499),
            None => (self.count.ends.join(","), 200),
        };
        if self.count.cut.is_some() || was_open {
            metrics.count_refused(&outcome);
        } else {
            metrics.whole.observe(self.asked.arrived.elapsed().as_secs_f64());
            let usage = self.usage();
            metrics.prompt_tokens.observe(usage.prompt_tokens as f64);
            metrics.generated_tokens.observe(usage.completion_tokens as f64);
        }
        if self.shared.log.is_open() && !self.shared.log.add(&self.log_line(outcome, status)) {
            metrics.lost_log_lines.inc();
        }
    }
}
