//! Metrics of files and batches.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::batches::batch_record::BatchStatus;

/// Label of a counter: its name and value.
type Labels = [(&'static str, String); 1];

/// Numbers of stored files and batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCounts {
    /// Batches that have not ended.
    pub open_batches: u64,
    pub files: u64,
    /// Bytes of all files and records.
    pub bytes: u64,
}

/// Metrics of files and batches, which are zero if the server runs no batches.
#[derive(Debug, Clone, Default)]
pub struct BatchMetrics {
    open_batches: Gauge,
    files: Gauge,
    stored_bytes: Gauge,
    ended: Family<Labels, Counter>,
    requests: Family<Labels, Counter>,
    /// Times that a batch was begun again after a failure of the engine.
    pub retries: Counter,
}

impl BatchMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let open = "Batches that have not ended";
        registry.register("batches_open", open, self.open_batches.clone());
        registry.register("batch_files", "Stored files of batches", self.files.clone());
        let bytes = "Bytes of stored files of batches";
        registry.register("batch_storage_bytes", bytes, self.stored_bytes.clone());
        registry.register("batches_ended", "Batches that ended, by status", self.ended.clone());
        let requests = "Requests of ended batches, by outcome";
        registry.register("batch_requests", requests, self.requests.clone());
        let retries = "Batches that were begun again after a failure of the engine";
        registry.register("batch_retries", retries, self.retries.clone());
    }

    /// Replaces the numbers of what is stored.
    pub fn set_stored(&self, counts: StoredCounts) {
        let StoredCounts { open_batches, files, bytes } = counts;
        for (gauge, value) in
            [(&self.open_batches, open_batches), (&self.files, files), (&self.stored_bytes, bytes)]
        {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Counts a batch that ended with this status.
    pub fn count_ended(&self, status: BatchStatus) {
        self.ended.get_or_create(&[("status", status.name().to_owned())]).inc();
    }

    /// Counts the requests of a batch that ended.
    pub fn count_requests(&self, completed: u64, failed: u64) {
        for (outcome, count) in [("completed", completed), ("failed", failed)] {
            self.requests.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(count);
        }
    }
}
