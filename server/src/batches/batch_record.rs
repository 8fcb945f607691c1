//! Records of batches, and the objects that clients see.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Status of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// The batch waits for its turn, or its input is being read.
    Validating,
    InProgress,
    /// Output and error file are being written.
    Finalizing,
    Completed,
    /// The batch cannot be computed; its errors say why.
    Failed,
    /// The completion window ended before all requests were computed.
    Expired,
    Cancelling,
    Cancelled,
}

impl BatchStatus {
    /// Returns true if the batch does not change any more.
    pub fn is_final(self) -> bool {
        match self {
            BatchStatus::Validating
            | BatchStatus::InProgress
            | BatchStatus::Finalizing
            | BatchStatus::Cancelling => false,
            BatchStatus::Completed
            | BatchStatus::Failed
            | BatchStatus::Expired
            | BatchStatus::Cancelled => true,
        }
    }

    /// Returns the name in objects and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            BatchStatus::Validating => "validating",
            BatchStatus::InProgress => "in_progress",
            BatchStatus::Finalizing => "finalizing",
            BatchStatus::Completed => "completed",
            BatchStatus::Failed => "failed",
            BatchStatus::Expired => "expired",
            BatchStatus::Cancelling => "cancelling",
            BatchStatus::Cancelled => "cancelled",
        }
    }
}

/// Times at which a batch reached each status, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BatchTimes {
    pub in_progress_at: Option<u64>,
    pub finalizing_at: Option<u64>,
    pub completed_at: Option<u64>,
    pub failed_at: Option<u64>,
    pub expired_at: Option<u64>,
    pub cancelling_at: Option<u64>,
    pub cancelled_at: Option<u64>,
}

/// Numbers of requests of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BatchRequestCounts {
    pub total: u64,
    /// Requests with an answer.
    pub completed: u64,
    /// Requests with an error.
    pub failed: u64,
}

/// Reason for which a batch failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchError {
    pub code: String,
    /// Line of the input, from 1; `None` if no line is at fault.
    pub line: Option<u64>,
    /// Explanation as a sentence.
    pub message: String,
    pub param: Option<String>,
}

impl BatchError {
    /// Creates an error that concerns no line.
    pub fn new(code: &str, message: impl Into<String>) -> BatchError {
        BatchError { code: code.to_owned(), line: None, message: message.into(), param: None }
    }
}

/// Numbers of tokens of all answers of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BatchUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// Record of a batch, which is on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchRecord {
    /// Number that orders all files and batches by creation.
    pub number: u64,
    pub id: String,
    pub endpoint: String,
    pub model: String,
    pub input_file_id: String,
    /// Time window as the client named it.
    pub completion_window: String,
    pub metadata: Option<Map<String, Value>>,
    /// Lifetime of output and error file, in seconds; `None` if they are kept.
    pub output_lifetime_s: Option<u64>,
    pub created_at: u64,
    /// End of the completion window.
    pub expires_at: u64,
    pub status: BatchStatus,
    pub times: BatchTimes,
    pub counts: BatchRequestCounts,
    pub errors: Vec<BatchError>,
    pub usage: Option<BatchUsage>,
    /// Id of the output file, chosen in advance so that a restart during finalization writes the
    /// same file again.
    pub output_file_id: String,
    pub error_file_id: String,
    /// True once there is an output file.
    pub has_output: bool,
    /// True once there is an error file.
    pub has_errors: bool,
}

/// A list in OpenAI's format.
#[derive(Debug, Serialize)]
struct ErrorList<'a> {
    object: &'static str,
    data: &'a [BatchError],
}

#[derive(Debug, Serialize)]
struct InputTokenDetails {
    cached_tokens: u64,
}

#[derive(Debug, Serialize)]
struct OutputTokenDetails {
    reasoning_tokens: u64,
}

/// Token counts in OpenAI's format. Cached tokens and tokens of the reasoning are not counted for
/// batches.
#[derive(Debug, Serialize)]
struct UsageObject {
    input_tokens: u64,
    input_tokens_details: InputTokenDetails,
    output_tokens: u64,
    output_tokens_details: OutputTokenDetails,
    total_tokens: u64,
}

/// A batch in OpenAI's format.
#[derive(Debug, Serialize)]
pub struct BatchObject<'a> {
    id: &'a str,
    object: &'static str,
    endpoint: &'a str,
    model: &'a str,
    errors: Option<ErrorList<'a>>,
    input_file_id: &'a str,
    completion_window: &'a str,
    status: &'static str,
    output_file_id: Option<&'a str>,
    error_file_id: Option<&'a str>,
    created_at: u64,
    in_progress_at: Option<u64>,
    expires_at: u64,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    request_counts: BatchRequestCounts,
    usage: Option<UsageObject>,
    metadata: Option<&'a Map<String, Value>>,
}

impl BatchRecord {
    /// Changes the status and records the time.
    pub fn set_status(&mut self, status: BatchStatus, now_s: u64) {
        self.status = status;
        let times = &mut self.times;
        let time = match status {
            BatchStatus::Validating => return,
            BatchStatus::InProgress => &mut times.in_progress_at,
            BatchStatus::Finalizing => &mut times.finalizing_at,
            BatchStatus::Completed => &mut times.completed_at,
            BatchStatus::Failed => &mut times.failed_at,
            BatchStatus::Expired => &mut times.expired_at,
            BatchStatus::Cancelling => &mut times.cancelling_at,
            BatchStatus::Cancelled => &mut times.cancelled_at,
        };
        // A batch that continues after a restart reached the status before.
        time.get_or_insert(now_s);
    }

    /// Returns true if the batch reads or writes the file and has not ended.
    pub fn is_using(&self, file_id: &str) -> bool {
        let files = [&self.input_file_id, &self.output_file_id, &self.error_file_id];
        !self.status.is_final() && files.iter().any(|id| *id == file_id)
    }

    /// Returns the object that clients see.
    pub fn object(&self) -> BatchObject<'_> {
        let usage = self.usage.map(|usage| UsageObject {
            input_tokens: usage.input_tokens,
            input_tokens_details: InputTokenDetails { cached_tokens: 0 },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputTokenDetails { reasoning_tokens: 0 },
            total_tokens: usage.input_tokens + usage.output_tokens,
        });
        let errors = ErrorList { object: "list", data: &self.errors };
        BatchObject {
            id: &self.id,
            object: "batch",
            endpoint: &self.endpoint,
            model: &self.model,
            errors: (!self.errors.is_empty()).then_some(errors),
            input_file_id: &self.input_file_id,
            completion_window: &self.completion_window,
            status: self.status.name(),
            output_file_id: self.has_output.then_some(&*self.output_file_id),
            error_file_id: self.has_errors.then_some(&*self.error_file_id),
            created_at: self.created_at,
            in_progress_at: self.times.in_progress_at,
            expires_at: self.expires_at,
            finalizing_at: self.times.finalizing_at,
            completed_at: self.times.completed_at,
            failed_at: self.times.failed_at,
            expired_at: self.times.expired_at,
            cancelling_at: self.times.cancelling_at,
            cancelled_at: self.times.cancelled_at,
            request_counts: self.counts,
            usage,
            metadata: self.metadata.as_ref(),
        }
    }
}
