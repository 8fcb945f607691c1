//! An attempt to compute a batch: its job from the input to the last answer, and its result files.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use batch::eta::PlannedSequence;
use batch::kind::JobKind;
use batch::line_bounds::LineBounds;
use batch::prepare::{JobOptions, ModelInfo, PreparedInput};
use batch::progress::{JobProgress, LineCounts};
use batch::progress_counter::ProgressCounter;
use batch::run::Job;
use batch::serving_adapter::ServingAdapter;
use batch::sink::{IoTarget, OutputMode};
use batch::summary::{JobSummary, UnansweredRequest};
use engine_api::codec::TextCodec;
use engine_api::serving::Priority;
use openai::body::defaults::Defaults;
use openai::input_line::{BatchEndpoint, ErrorCode, LineError, Rejection};
use openai::output::error_line;

use super::batch_failure::AttemptFailure;
use super::batch_record::{BatchError, BatchRecord, BatchRequestCounts, BatchStatus};
use super::file_record::{FilePurpose, FileRecord};
use super::input_check::{check_line_count, count_lines};
use super::quota::QuotaReservation;
use super::results::{ResultFiles, ResultSummary, split_results};
use super::run_state::ActiveBatch;
use super::service::BatchService;
use crate::clock::now_s;
use crate::state::ServerState;

/// Maximum number of answers to all requests of a batch.
const MAX_ANSWERS: usize = 1_000_000;

/// End of an attempt that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The batch has a final status.
    Ended,
    /// The server is shutting down; the batch continues with the next start.
    Stopped,
}

/// Reason for which a job is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    Shutdown,
    Cancelled,
    Expired,
    /// The answers exceed the bound on stored bytes.
    StorageFull,
}

/// An attempt to compute a batch.
pub struct Attempt<'a> {
    shared: &'a ServerState,
    service: &'a BatchService,
    record: &'a BatchRecord,
    active: &'a ActiveBatch,
    /// First reason for which the job is interrupted.
    stop_reason: Cell<Option<StopReason>>,
    /// Bytes of the working file.
    reservation: RefCell<QuotaReservation>,
    /// True once the bytes exceed the bound.
    is_full: Cell<bool>,
}

impl<'a> Attempt<'a> {
    pub fn new(
        shared: &'a ServerState,
        service: &'a BatchService,
        record: &'a BatchRecord,
        active: &'a ActiveBatch,
    ) -> Attempt<'a> {
        let reservation = RefCell::new(QuotaReservation::new(&service.storage.quota));
        let (stop_reason, is_full) = (Cell::new(None), Cell::new(false));
        Attempt { shared, service, record, active, stop_reason, reservation, is_full }
    }

    /// Computes the batch, continuing with the answers of earlier attempts.
    ///
    /// # Errors
    /// The failure of the attempt; finished answers are in the working file.
    pub fn run(&self) -> Result<AttemptEnd, AttemptFailure> {
        self.reserve_work();
        let lines = count_lines(self.service.storage.open_content(&self.record.input_file_id)?)?;
        check_line_count(lines).map_err(AttemptFailure::Final)?;
        if self.record.times.in_progress_at.is_none()
            && self.stop_reason() == Some(StopReason::Cancelled)
        {
            return self.finish(BatchStatus::Cancelled, &[], Vec::new());
        }
        let options = self.job_options()?;
        let prepared = PreparedInput::prepare(
            &options,
            self.model_info(),
            &self.shared.model.embeddings,
            &mut ProgressCounter::silent(),
            &|| self.shared.is_stopping(),
        )?;
        let fingerprint = self.shared.model.system_fingerprint.clone();
        match prepared {
            PreparedInput::Completions(prepared) => {
                check_answer_count(prepared.answer_count())?;
                let total = prepared.line_count() as u64;
                self.run_job(prepared.resume(fingerprint)?, total)
            }
            PreparedInput::Embeddings(prepared) => {
                check_answer_count(prepared.vector_count())?;
                let total = prepared.line_count() as u64;
                self.run_job(prepared.resume(fingerprint)?, total)
            }
        }
    }

    fn run_job<K>(&self, job: Job<K>, total: u64) -> Result<AttemptEnd, AttemptFailure>
    where
        K: JobKind<Summary = JobSummary>,
    {
        self.service.update_batch(&self.record.id, |record| {
            record.counts.total = total;
            if record.status == BatchStatus::Validating {
                record.set_status(BatchStatus::InProgress, now_s());
            }
        })?;
        let mut progress = WrittenLines { attempt: self };
        let interrupted = || self.stop_reason().is_some();
        let grammars = job.grammars().into_iter().map(Arc::new).collect();
        let engine = &*self.shared.engine;
        let mut engine = ServingAdapter::new(engine, grammars, &interrupted)
            .with_priority(Priority::Background)
            .with_answer_memory(self.shared.options.answer_memory_bytes);
        let summary = job.run(Some(&mut engine), &mut progress, &interrupted)?;
        if !summary.interrupted {
            let is_cancelled = self.active.is_cancelled() || self.is_cancelling();
            let status = if is_cancelled { BatchStatus::Cancelled } else { BatchStatus::Completed };
            return self.finish(status, &[], Vec::new());
        }
        match self.stop_reason() {
            Some(StopReason::Cancelled) => self.finish(BatchStatus::Cancelled, &[], Vec::new()),
            Some(StopReason::Expired) => {
                self.finish(BatchStatus::Expired, &summary.not_run, Vec::new())
            }
            Some(StopReason::StorageFull) => {
                let message = "The answers exceed the server's storage for files and batches \
                               (--store-batches-size). Delete files that you no longer need, and \
                               create a new batch for the remaining requests.";
                let error = BatchError::new("storage_limit_exceeded", message);
                self.finish(BatchStatus::Failed, &[], vec![error])
            }
            Some(StopReason::Shutdown) | None => Ok(AttemptEnd::Stopped),
        }
    }

    /// Ends the batch with an error; the answers so far are its output.
    ///
    /// # Errors
    /// The result files cannot be written.
    pub fn fail(&self, error: BatchError) -> Result<AttemptEnd, AttemptFailure> {
        self.reserve_work();
        self.finish(BatchStatus::Failed, &[], vec![error])
    }

    /// Returns the reason for which the job is to be interrupted, which stays the same.
    fn stop_reason(&self) -> Option<StopReason> {
        if self.stop_reason.get().is_none() {
            self.stop_reason.set(self.find_stop_reason());
        }
        self.stop_reason.get()
    }

    fn find_stop_reason(&self) -> Option<StopReason> {
        if self.shared.is_stopping() {
            Some(StopReason::Shutdown)
        } else if self.active.is_cancelled() || self.record.status == BatchStatus::Cancelling {
            Some(StopReason::Cancelled)
        } else if self.record.expires_at <= now_s() {
            Some(StopReason::Expired)
        } else {
            self.is_full.get().then_some(StopReason::StorageFull)
        }
    }

    fn is_cancelling(&self) -> bool {
        self.record.status == BatchStatus::Cancelling
    }

    /// Counts the bytes of the working file.
    fn reserve_work(&self) {
        let bytes = self.service.storage.work_bytes(&self.record.id);
        if !self.reservation.borrow_mut().grow(bytes) {
            self.is_full.set(true);
        }
    }

    fn model_info(&self) -> ModelInfo<'a> {
        let model = &self.shared.model;
        ModelInfo {
            name: model.name().to_owned(),
            aliases: model.names.iter().skip(1).cloned().collect(),
            limits: self.shared.prompt_limits(),
            codec: model.codec.as_deref().map(|codec| codec as &dyn TextCodec),
        }
    }

    fn job_options(&self) -> Result<JobOptions, AttemptFailure> {
        let (shared, storage) = (self.shared, &self.service.storage);
        let endpoint = BatchEndpoint::from_url(&self.record.endpoint).ok_or_else(|| {
            AttemptFailure::Final(BatchError::new("internal_error", "The endpoint is unknown."))
        })?;
        let max_answers = u64::from(shared.engine.limits().slots.max(1))
            .saturating_add(shared.options.max_queue.into());
        let bounds = LineBounds {
            endpoint,
            model_names: shared.model.names.clone(),
            max_bytes: shared.options.limits.body_bytes,
            max_values: shared.max_json_values(),
            max_answers: usize::try_from(max_answers).unwrap_or(usize::MAX),
            max_answer_bytes: shared.options.answer_memory_bytes,
            prompts: shared.prompt_bounds,
            max_threads: 1,
        };
        Ok(JobOptions {
            input: IoTarget::File(storage.content_path(&self.record.input_file_id)),
            output: IoTarget::File(storage.work_path(&self.record.id)?),
            mode: OutputMode::Resume,
            chat: false,
            chat_options: shared.options.chats.clone(),
            max_tokens: shared.options.max_tokens,
            seed: shared.options.seed,
            defaults: Defaults::default(),
            ignore_unknown_fields: shared.options.ignore_unknown_fields,
            bounds: Some(bounds),
        })
    }

    /// Writes the result files and ends the batch. `expired` are requests without an answer that
    /// get an error. A server that is killed meanwhile writes the same files again.
    fn finish(
        &self,
        status: BatchStatus,
        expired: &[UnansweredRequest],
        batch_errors: Vec<BatchError>,
    ) -> Result<AttemptEnd, AttemptFailure> {
        let (id, storage) = (&self.record.id, &self.service.storage);
        self.service.update_batch(id, |record| {
            if status == BatchStatus::Completed {
                record.set_status(BatchStatus::Finalizing, now_s());
            }
        })?;
        let (output, errors) = (storage.begin_file()?, storage.begin_file()?);
        let files = ResultFiles { output: output.file(), errors: errors.file() };
        let expired: Vec<Vec<u8>> = expired.iter().map(expired_line).collect();
        let summary = match storage.open_work(id)? {
            Some(work) => split_results(&work, &files, &expired)?,
            None => ResultSummary::default(),
        };
        let created_at = now_s();
        for (file_id, bytes, kind, content) in [
            (&self.record.output_file_id, summary.output_bytes, "output", output),
            (&self.record.error_file_id, summary.error_bytes, "error", errors),
        ] {
            if bytes == 0 {
                continue;
            }
            let record = FileRecord {
                number: storage.lock().take_number(),
                id: file_id.clone(),
                bytes,
                created_at,
                expires_at: self.record.output_lifetime_s.map(|seconds| created_at + seconds),
                filename: format!("{id}_{kind}.jsonl"),
                purpose: FilePurpose::BatchOutput,
            };
            let reservation = QuotaReservation::new(&storage.quota);
            storage.put_file(record, content, reservation)?;
        }
        let BatchRequestCounts { completed, failed, .. } = summary.counts;
        self.service.update_batch(id, |record| {
            record.set_status(status, now_s());
            let total = record.counts.total.max(summary.counts.total);
            record.counts = BatchRequestCounts { total, ..summary.counts };
            record.usage = (completed > 0).then_some(summary.usage);
            record.has_output = summary.output_bytes > 0;
            record.has_errors = summary.error_bytes > 0;
            record.errors = batch_errors;
        })?;
        self.service.metrics.count_requests(completed, failed);
        storage.remove_work(id);
        Ok(AttemptEnd::Ended)
    }
}

/// Checks the number of answers to all requests of a batch.
fn check_answer_count(answers: usize) -> Result<(), AttemptFailure> {
    if answers <= MAX_ANSWERS {
        return Ok(());
    }
    let message = format!(
        "The requests ask for {answers} choices, but a batch may have at most {MAX_ANSWERS}. Split \
         it into several batches."
    );
    Err(AttemptFailure::Final(BatchError::new("too_many_answers", message)))
}

/// Returns the error line of a request that was not computed before the completion window ended.
fn expired_line(request: &UnansweredRequest) -> Vec<u8> {
    let message = "This request could not be executed before the completion window expired.";
    let rejection = Rejection::new(ErrorCode::BatchExpired, message);
    let UnansweredRequest { line, custom_id } = request.clone();
    error_line(&LineError { line, custom_id, rejection })
}

/// Progress of a job, from which the counts of its batch follow.
struct WrittenLines<'a> {
    attempt: &'a Attempt<'a>,
}

impl std::fmt::Debug for WrittenLines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WrittenLines").field("batch", &self.attempt.record.id).finish()
    }
}

impl JobProgress for WrittenLines<'_> {
    fn begin(&mut self, _planned: Vec<PlannedSequence>) {}
    fn prefilled(&mut self, _computed: u64, _tokens: u64) {}
    fn token(&mut self, _sequence: usize) {}
    fn finished(&mut self, _sequence: usize, _generated: u32) {}

    fn lines_written(&mut self, counts: LineCounts) {
        let LineCounts { total, answered, failed } = counts;
        let [total, completed, failed] = [total, answered, failed].map(|count| count as u64);
        let counts = BatchRequestCounts { total, completed, failed };
        self.attempt.service.set_counts(&self.attempt.record.id, counts);
        self.attempt.reserve_work();
    }

    fn end(&mut self) {}
}
