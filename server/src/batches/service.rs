//! Files and batches of a server: what requests and the thread that computes batches share.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use openai::input_line::{ErrorCode, Rejection};

use super::batch_record::{BatchRecord, BatchRequestCounts, BatchStatus, BatchTimes};
use super::batch_request::BatchRequest;
use super::file_record::{FilePurpose, FileRecord};
use super::ids::{BATCH_PREFIX, FILE_PREFIX, IdGenerator};
use super::quota::stored_bytes;
use super::run_state::{ActiveBatch, RunState};
use super::storage::BatchStorage;
use super::storage_index::StorageIndex;
use crate::batch_metrics::{BatchMetrics, StoredCounts};
use crate::clock::now_s;
use crate::config::BatchStorageOptions;
use crate::error::{ApiError, INVALID_REQUEST};

/// Maximum number of stored files.
const MAX_FILES: usize = 10_000;
/// Maximum number of batches; beyond it the records of the oldest ones that have ended are removed.
const MAX_BATCHES: usize = 10_000;
/// Maximum number of batches that have not ended.
const MAX_OPEN_BATCHES: usize = 1_000;

/// Files and batches of a server.
#[derive(Debug)]
pub struct BatchService {
    pub storage: BatchStorage,
    /// Maximum size of an uploaded file, in bytes.
    pub max_file_bytes: u64,
    pub run_state: RunState,
    pub metrics: BatchMetrics,
    ids: IdGenerator,
    /// True once there is a new batch to compute.
    has_work: Mutex<bool>,
    work_added: Condvar,
}

impl BatchService {
    /// Opens the directory of files and batches.
    ///
    /// # Errors
    /// See [`BatchStorage::open`].
    pub fn open(options: &BatchStorageOptions, metrics: BatchMetrics) -> io::Result<BatchService> {
        let service = BatchService {
            storage: BatchStorage::open(&options.path, options.max_bytes)?,
            max_file_bytes: options.max_file_bytes,
            run_state: RunState::default(),
            metrics,
            ids: IdGenerator::default(),
            has_work: Mutex::default(),
            work_added: Condvar::new(),
        };
        service.update_gauges(&service.storage.lock());
        Ok(service)
    }

    /// Updates the metrics of what is stored.
    pub fn update_gauges(&self, index: &StorageIndex) {
        self.metrics.set_stored(StoredCounts {
            open_batches: open_batches(index).count() as u64,
            files: index.files.records().len() as u64,
            bytes: self.storage.quota.used_bytes(),
        });
    }

    /// Waits until there is a new batch, for at most `timeout`.
    pub fn wait_for_work(&self, timeout: Duration) {
        let has_work = self.has_work.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.work_added.wait_timeout_while(has_work, timeout, |has_work| !*has_work);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Returns the id of a new file.
    pub fn new_file_id(&self) -> String {
        self.ids.next_id(FILE_PREFIX)
    }

    /// Checks that one more file may be stored.
    ///
    /// # Errors
    /// There are too many files.
    pub fn check_file_count(&self) -> Result<(), ApiError> {
        if self.storage.lock().files.records().len() < MAX_FILES {
            return Ok(());
        }
        let message = format!(
            "The server stores at most {MAX_FILES} files. Delete files that you no longer need."
        );
        Err(ApiError::invalid(STORAGE_LIMIT, message))
    }

    /// Returns the record of an uploaded file.
    pub fn uploaded_file(
        &self,
        filename: String,
        bytes: u64,
        lifetime_s: Option<u64>,
    ) -> FileRecord {
        let created_at = now_s();
        FileRecord {
            number: self.storage.lock().take_number(),
            id: self.new_file_id(),
            bytes,
            created_at,
            expires_at: lifetime_s.map(|seconds| created_at.saturating_add(seconds)),
            filename,
            purpose: FilePurpose::Batch,
        }
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// There is no such file, a batch uses it, or it cannot be removed.
    pub fn delete_file(&self, id: &str) -> Result<(), ApiError> {
        let mut index = self.storage.lock();
        if index.files.find(id).is_none() {
            return Err(no_such_file(id));
        }
        if let Some(batch) = index.batches.records().iter().find(|batch| batch.is_using(id)) {
            let message = format!(
                "File is still processing. Check back later: batch '{}' has not ended.",
                batch.id
            );
            let status = StatusCode::CONFLICT;
            return Err(ApiError::new(status, INVALID_REQUEST, "file_in_use", message));
        }
        self.storage.remove_file(&mut index, id).map_err(|error| storage_error(&error))?;
        self.update_gauges(&index);
        Ok(())
    }

    /// Removes files that have expired and that no batch uses.
    pub fn remove_expired_files(&self, now_s: u64) {
        let mut index = self.storage.lock();
        let is_used = |id: &str| index.batches.records().iter().any(|batch| batch.is_using(id));
        let expired = index.files.records().iter().filter(|file| file.is_expired(now_s));
        let expired = expired.filter(|file| !is_used(&file.id)).map(|file| file.id.clone());
        let expired: Vec<String> = expired.collect();
        for id in &expired {
            // A file that cannot be removed is tried again later.
            let _ = self.storage.remove_file(&mut index, id);
        }
        if !expired.is_empty() {
            self.update_gauges(&index);
        }
    }

    /// Creates a batch.
    ///
    /// # Errors
    /// The input file does not exist, there are too many batches, or the record cannot be written.
    pub fn create_batch(
        &self,
        request: BatchRequest,
        model: &str,
    ) -> Result<BatchRecord, ApiError> {
        let created_at = now_s();
        let mut index = self.storage.lock();
        let is_input = |file: &&FileRecord| file.purpose == FilePurpose::Batch;
        if index.files.find(&request.input_file_id).filter(is_input).is_none() {
            let message = no_such_file(&request.input_file_id).message().to_owned();
            let rejection = Rejection::new(ErrorCode::InvalidValue, message);
            return Err(rejection.with_param("input_file_id").into());
        }
        self.make_capacity(&mut index)?;
        let record = BatchRecord {
            number: index.take_number(),
            id: self.ids.next_id(BATCH_PREFIX),
            endpoint: request.endpoint.url().to_owned(),
            model: model.to_owned(),
            input_file_id: request.input_file_id,
            completion_window: request.completion_window,
            metadata: request.metadata,
            output_lifetime_s: request.output_lifetime_s,
            created_at,
            expires_at: created_at.saturating_add(request.window_s),
            status: BatchStatus::Validating,
            times: BatchTimes::default(),
            counts: BatchRequestCounts::default(),
            errors: Vec::new(),
            usage: None,
            output_file_id: self.new_file_id(),
            error_file_id: self.new_file_id(),
            has_output: false,
            has_errors: false,
        };
        self.storage
            .put_batch(&mut index, record.clone())
            .map_err(|error| storage_error(&error))?;
        self.update_gauges(&index);
        drop(index);
        *self.has_work.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.work_added.notify_one();
        Ok(record)
    }

    /// Makes capacity for one more batch.
    fn make_capacity(&self, index: &mut StorageIndex) -> Result<(), ApiError> {
        if open_batches(index).count() >= MAX_OPEN_BATCHES {
            let message = format!(
                "The server accepts at most {MAX_OPEN_BATCHES} batches that have not ended. Please \
                 try again later."
            );
            return Err(ApiError::too_many("too_many_batches", message, 60));
        }
        if self.storage.quota.try_add(stored_bytes(0)) {
            self.storage.quota.subtract(stored_bytes(0));
        } else {
            return Err(storage_full());
        }
        while index.batches.records().len() >= MAX_BATCHES {
            let ended = index.batches.records().iter().find(|batch| batch.status.is_final());
            let Some(id) = ended.map(|batch| batch.id.clone()) else { break };
            self.storage.remove_batch(index, &id).map_err(|error| storage_error(&error))?;
        }
        Ok(())
    }

    /// Cancels a batch; returns its new record.
    ///
    /// # Errors
    /// There is no such batch, it has ended, or the record cannot be written.
    pub fn cancel_batch(&self, id: &str) -> Result<BatchRecord, ApiError> {
        let mut index = self.storage.lock();
        let mut record = index.batches.find(id).cloned().ok_or_else(|| no_such_batch(id))?;
        match record.status {
            BatchStatus::Validating | BatchStatus::InProgress => {}
            BatchStatus::Cancelling => return Ok(record),
            status => {
                let message = format!("Cannot cancel a batch with status '{}'.", status.name());
                let code = "batch_not_cancellable";
                return Err(ApiError::new(StatusCode::CONFLICT, INVALID_REQUEST, code, message));
            }
        }
        let now_s = now_s();
        record.set_status(BatchStatus::Cancelling, now_s);
        // A batch that waits for its turn has no answers; one that continues after a restart may
        // have some.
        let is_active = self.run_state.cancel(id);
        if !is_active && record.times.in_progress_at.is_none() {
            record.set_status(BatchStatus::Cancelled, now_s);
        }
        self.storage
            .put_batch(&mut index, record.clone())
            .map_err(|error| storage_error(&error))?;
        if record.status.is_final() {
            self.metrics.count_ended(record.status);
        }
        self.update_gauges(&index);
        Ok(record)
    }

    /// Begins to compute the oldest batch that has not ended.
    pub fn begin_batch(&self) -> Option<ActiveBatch> {
        // Under the lock, so that a batch that is cancelled is either active or not begun.
        let index = self.storage.lock();
        open_batches(&index).next().map(|batch| self.run_state.begin(&batch.id))
    }

    /// Returns the record of a batch.
    pub fn batch(&self, id: &str) -> Option<BatchRecord> {
        self.storage.lock().batches.find(id).cloned()
    }

    /// Changes the record of a batch and writes it, durably.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn update_batch(&self, id: &str, change: impl FnOnce(&mut BatchRecord)) -> io::Result<()> {
        let mut index = self.storage.lock();
        let Some(mut record) = index.batches.find(id).cloned() else { return Ok(()) };
        change(&mut record);
        let status = record.status;
        self.storage.put_batch(&mut index, record)?;
        if status.is_final() {
            self.metrics.count_ended(status);
        }
        self.update_gauges(&index);
        Ok(())
    }

    /// Changes the counts of a batch in memory: after a restart, they follow from its answers.
    pub fn set_counts(&self, id: &str, counts: BatchRequestCounts) {
        let mut index = self.storage.lock();
        if let Some(record) = index.batches.find(id).cloned() {
            index.batches.put(BatchRecord { counts, ..record });
        }
    }
}

/// Returns the batches that have not ended, the oldest first.
fn open_batches(index: &StorageIndex) -> impl Iterator<Item = &BatchRecord> {
    index.batches.records().iter().filter(|batch| !batch.status.is_final())
}

/// Code of errors about the bounds on what is stored.
const STORAGE_LIMIT: &str = "storage_limit_exceeded";

/// Returns the error for a file that is not stored.
pub fn no_such_file(id: &str) -> ApiError {
    let shown: String = id.chars().take(100).collect();
    let message = format!("No such File object: {shown}");
    let status = StatusCode::NOT_FOUND;
    ApiError::new(status, INVALID_REQUEST, "file_not_found", message).with_param("id")
}

/// Returns the error for a batch that does not exist.
pub fn no_such_batch(id: &str) -> ApiError {
    let shown: String = id.chars().take(100).collect();
    let message = format!("No batch found with id '{shown}'.");
    ApiError::new(StatusCode::NOT_FOUND, INVALID_REQUEST, "batch_not_found", message)
        .with_param("id")
}

/// Returns the error for a file that exceeds the bound on all files.
pub fn storage_full() -> ApiError {
    let message = "The server's storage for files and batches (--store-batches-size) is full. \
                   Delete files that you no longer need.";
    ApiError::invalid(STORAGE_LIMIT, message)
}

/// Returns the error for a file that cannot be read or written.
pub fn storage_error(error: &io::Error) -> ApiError {
    let kind = error.kind();
    ApiError::internal(format!("The server's storage for files and batches failed: {kind}."))
}
