//! The thread that computes batches, one after the other.

use std::time::{Duration, Instant};

use super::attempt::{Attempt, AttemptEnd};
use super::batch_failure::AttemptFailure;
use super::run_state::ActiveBatch;
use super::service::BatchService;
use crate::clock::now_s;
use crate::state::ServerState;

/// Interval between checks of whether the server is shutting down.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between removals of expired files.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of consecutive failed attempts that add no answer.
const MAX_FAILURES: u32 = 3;
/// Pause before another attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Nice value of the thread and of those that it starts: parsing and writing yield to steps and
/// requests.
const LOW_PRIORITY_NICE: i32 = 5;

/// Computes batches until the server shuts down. Batches that have not ended continue with the next
/// start.
pub fn run_batches(shared: &ServerState) {
    let Some(service) = &shared.batches else { return };
    // A system that refuses this schedules all threads equally.
    let _ = rustix::process::setpriority_process(None, LOW_PRIORITY_NICE);
    let mut expired_at: Option<Instant> = None;
    while !shared.is_stopping() {
        if expired_at.is_none_or(|at| at.elapsed() >= EXPIRY_INTERVAL) {
            service.remove_expired_files(now_s());
            expired_at = Some(Instant::now());
        }
        match service.begin_batch() {
            Some(active) => {
                run_batch(shared, service, &active);
                service.run_state.end();
            }
            None => service.wait_for_work(POLL_INTERVAL),
        }
    }
}

/// Computes a batch to its end, or until the server shuts down.
fn run_batch(shared: &ServerState, service: &BatchService, active: &ActiveBatch) {
    let mut failures = 0;
    let mut work_bytes = service.storage.work_bytes(&active.id);
    while let Some(record) = service.batch(&active.id).filter(|batch| !batch.status.is_final()) {
        let failure = match Attempt::new(shared, service, &record, active).run() {
            Ok(AttemptEnd::Ended | AttemptEnd::Stopped) => return,
            Err(_) if shared.is_stopping() => return,
            Err(failure) => failure,
        };
        let bytes = service.storage.work_bytes(&active.id);
        failures = if bytes > work_bytes { 1 } else { failures + 1 };
        work_bytes = bytes;
        let error = match failure {
            AttemptFailure::Retryable(_) if failures < MAX_FAILURES => {
                service.metrics.retries.inc();
                pause(shared, RETRY_PAUSE);
                continue;
            }
            AttemptFailure::Retryable(error) | AttemptFailure::Final(error) => error,
        };
        // If its results cannot be written either, everything is tried again.
        if Attempt::new(shared, service, &record, active).fail(error).is_err() {
            pause(shared, RETRY_PAUSE);
        }
    }
}

/// Waits, but no longer than until the server shuts down.
fn pause(shared: &ServerState, duration: Duration) {
    let began = Instant::now();
    while began.elapsed() < duration && !shared.is_stopping() {
        std::thread::sleep(POLL_INTERVAL);
    }
}
