//! Concurrent measurement of drives, in a thread that can be abandoned, since calls for a drive
//! that does not respond never return. A drive that fails or does not respond is left out, and the
//! others are measured again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context;
use model::config::ModelConfig;
use program::expert_records::ExpertRecord;
use program::shares::BLOCK_BYTES;
use program::weights::Weights;
use serde::{Deserialize, Serialize};
use shm::now_ns;
use shm::sync::{AtomicU64, Ordering};
use weight_store::balance::{self, ALPHA, Balance, BalanceError, STEPS, Trajectory};
use weight_store::measure::measure;
use weight_store::{AlignedBuffer, BlobId, ReadEvent, Reader, ReaderOptions, StagedCopy};

use super::write::{Interrupted, Staging};
use crate::interrupt::Interrupt;

/// Number of reads of a division, of which the median counts.
const REPEATS: usize = 3;
/// Minimum number of blocks of weights that are measured. Times of smaller weights tell nothing, so
/// these are divided like larger ones.
const BLOCKS_MIN: u64 = 16;
/// Time without a response after which a drive is left out.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Value of a drive's time of last progress while nothing is being read from it.
const IDLE: u64 = 0;
/// Interval between checks of the thread.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Search for the division of weights of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BalancedWeight {
    /// Names of the operations whose weights have this size.
    pub ops: Vec<String>,
    pub size_bytes: u64,
    pub trajectory: Trajectory,
}

/// Measurements by drive. A drive that failed has no share and no latency.
#[derive(Debug, Clone)]
pub(super) struct DriveMeasurements {
    pub(super) read_bytes_per_s: Vec<f64>,
    pub(super) latency_ns: Vec<f64>,
    pub(super) weights: Vec<BalancedWeight>,
    /// Reason for which each drive was left out, if it was.
    pub(super) failed: Vec<Option<String>>,
}

/// Measures all drives that can be read.
///
/// # Errors
/// No drive can be read, each with its reason, or an interrupt.
pub(super) fn measure_drives(
    stagings: &[Staging],
    options: &[ReaderOptions],
    config: &ModelConfig,
    interrupt: &Interrupt,
) -> anyhow::Result<DriveMeasurements> {
    let weights = measured_weights(&stagings[0].staged, config)?;
    let mut failed: Vec<Option<String>> = vec![None; stagings.len()];
    loop {
        let alive: Vec<usize> =
            (0..stagings.len()).filter(|drive| failed[*drive].is_none()).collect();
        if alive.is_empty() {
            let reasons = stagings.iter().zip(failed);
            let reasons: Vec<String> = reasons
                .map(|(staging, reason)| {
                    format!("{}: {}", staging.directory.display(), reason.unwrap_or_default())
                })
                .collect();
            anyhow::bail!("no drive can be read: {}", reasons.join("; "));
        }
        let drives =
            alive.iter().map(|drive| (stagings[*drive].staged.clone(), options[*drive].clone()));
        match measure_in_thread(drives.collect(), weights.clone(), interrupt)? {
            Ok(partial) => return Ok(expand_to_all_drives(partial, &alive, failed)),
            Err(DriveFailure { drive, reason }) => failed[alive[drive]] = Some(reason),
        }
    }
}

/// Returns a weight of each size in a layer, with the names of all operations of this size. The
/// largest comes first: each division starts from the previous result.
fn measured_weights(
    staged: &StagedCopy,
    config: &ModelConfig,
) -> anyhow::Result<Vec<(BlobId, Vec<String>)>> {
    let mut by_size: BTreeMap<u64, (BlobId, Vec<String>)> = BTreeMap::new();
    for op in config.every_layer_op() {
        let name = match op.is_expert() {
            true => ExpertRecord::blob_name(0),
            false => Weights::Layer { layer: 0, op }.name(config),
        };
        let Some(blob) = staged.blob(&name) else { continue };
        let known = by_size.entry(staged.size_bytes(blob)).or_insert((blob, Vec::new()));
        known.1.push(op.name(config.family).to_owned());
    }
    let mut weights: Vec<_> = by_size.into_values().rev().collect();
    anyhow::ensure!(!weights.is_empty(), "the staged weights include no layers");
    let first = weights.remove(0);
    weights.retain(|(blob, _)| staged.blocks(*blob) >= BLOCKS_MIN);
    weights.insert(0, first);
    Ok(weights)
}

/// A drive that cannot be read, as an index into the measured drives.
struct DriveFailure {
    drive: usize,
    reason: String,
}

/// Measures in a separate thread, which is abandoned if a drive does not respond.
fn measure_in_thread(
    drives: Vec<(StagedCopy, ReaderOptions)>,
    weights: Vec<(BlobId, Vec<String>)>,
    interrupt: &Interrupt,
) -> anyhow::Result<Result<DriveMeasurements, DriveFailure>> {
    let progress_ns: Vec<Arc<AtomicU64>> =
        drives.iter().map(|_| Arc::new(AtomicU64::new(now_ns()))).collect();
    let (thread_progress_ns, (sender, receiver)) = (progress_ns.clone(), channel());
    let body = move || {
        // There is no receiver if the thread was abandoned.
        let _ = sender.send(measure_concurrently(&drives, &weights, &thread_progress_ns));
    };
    std::thread::Builder::new()
        .name("drives".to_owned())
        .spawn(body)
        .context("the thread that measures drives")?;
    loop {
        match receiver.recv_timeout(POLL_INTERVAL) {
            Ok(measured) => return Ok(measured),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("measuring drives failed"),
            Err(RecvTimeoutError::Timeout) if interrupt.is_requested() => {
                return Err(Interrupted.into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let last_ns =
            progress_ns.iter().map(|progress| progress.load(Ordering::Relaxed)).enumerate();
        let reading = last_ns.filter(|(_, last_ns)| *last_ns != IDLE);
        let Some((drive, last_ns)) = reading.min_by_key(|(_, last_ns)| *last_ns) else { continue };
        if Duration::from_nanos(now_ns().saturating_sub(last_ns)) > SILENCE_MAX {
            let reason = format!("it has not answered for {} s", SILENCE_MAX.as_secs());
            return Ok(Err(DriveFailure { drive, reason }));
        }
    }
}

/// Measures all drives concurrently.
fn measure_concurrently(
    drives: &[(StagedCopy, ReaderOptions)],
    weights: &[(BlobId, Vec<String>)],
    progress_ns: &[Arc<AtomicU64>],
) -> Result<DriveMeasurements, DriveFailure> {
    let mut readers = Vec::new();
    for (drive, (staged, options)) in drives.iter().enumerate() {
        let failure =
            |error: weight_store::ReaderError| DriveFailure { drive, reason: error.to_string() };
        let mut reader = Reader::open(staged, options.clone()).map_err(failure)?;
        let last_progress_ns = Arc::clone(&progress_ns[drive]);
        reader.observe(Box::new(move |flying| {
            let since_ns = if flying == ReadEvent::Ended { IDLE } else { now_ns() };
            last_progress_ns.store(since_ns, Ordering::Relaxed);
        }));
        readers.push(reader);
    }
    let staged = &drives[0].0;
    let mut to = AlignedBuffer::new(staged.size_bytes(weights[0].0) as usize);
    let mut times = |blob: BlobId, sizes: &[u64]| -> Result<Vec<f64>, DriveFailure> {
        let times = measure(&mut readers, blob, sizes, &mut to, REPEATS).into_iter().enumerate();
        times
            .map(|(drive, time)| {
                time.map_err(|error| DriveFailure { drive, reason: error.to_string() })
            })
            .collect()
    };
    let mut start = vec![1; drives.len()];
    let mut divided = Vec::new();
    for (blob, ops) in weights {
        let balance = Balance::new(staged.blocks(*blob), &start, ALPHA);
        let trajectory = balance::run::<DivisionError>(balance, STEPS, |sizes| {
            let times = times(*blob, sizes).map_err(DivisionError::DriveFailed)?;
            Ok(times.into_iter().map(Some).collect())
        });
        let trajectory = trajectory.map_err(|stopped| match stopped {
            DivisionError::DriveFailed(failure) => failure,
            DivisionError::Balance(error) => DriveFailure { drive: 0, reason: error.to_string() },
        })?;
        start.clone_from(&trajectory.sizes);
        let (ops, size_bytes) = (ops.clone(), staged.size_bytes(*blob));
        divided.push(BalancedWeight { ops, size_bytes, trajectory });
    }
    let (largest, sizes) = (weights[0].0, divided[0].trajectory.sizes.clone());
    let rates = sizes.iter().zip(times(largest, &sizes)?);
    let rates = rates.map(|(size, time_s)| (size * BLOCK_BYTES) as f64 / time_s.max(1e-9));
    let read_bytes_per_s: Vec<f64> = rates.collect();
    let blocks = staged.blocks(largest);
    let ones: Vec<u64> = (0..drives.len() as u64).map(|drive| u64::from(drive < blocks)).collect();
    let latencies = times(largest, &ones)?.into_iter().zip(&read_bytes_per_s);
    let latencies = latencies.map(|(time_s, rate)| {
        let transfer_s = BLOCK_BYTES as f64 / rate.max(1.0);
        (time_s - transfer_s).max(0.0) * 1e9
    });
    let latency_ns = latencies.collect();
    let failed = vec![None; drives.len()];
    Ok(DriveMeasurements { read_bytes_per_s, latency_ns, weights: divided, failed })
}

/// Reason for which a division was not measured.
enum DivisionError {
    DriveFailed(DriveFailure),
    Balance(BalanceError),
}

impl From<BalanceError> for DivisionError {
    fn from(error: BalanceError) -> DivisionError {
        DivisionError::Balance(error)
    }
}

/// Extends measurements of the remaining drives to all drives, with neutral values for those that
/// failed.
fn expand_to_all_drives(
    partial: DriveMeasurements,
    alive: &[usize],
    failed: Vec<Option<String>>,
) -> DriveMeasurements {
    fn at<T: Clone>(values: &[T], alive: &[usize], count: usize, other: T) -> Vec<T> {
        let mut all = vec![other; count];
        values.iter().zip(alive).for_each(|(value, drive)| all[*drive] = value.clone());
        all
    }
    let count = failed.len();
    let mut weights = partial.weights;
    for weight in &mut weights {
        let trajectory = &mut weight.trajectory;
        trajectory.sizes = at(&trajectory.sizes, alive, count, 0);
        for iteration in &mut trajectory.iterations {
            iteration.sizes = at(&iteration.sizes, alive, count, 0);
            iteration.times_s = at(&iteration.times_s, alive, count, None);
        }
    }
    DriveMeasurements {
        // A drive that reads nothing takes no time, whatever its rate.
        read_bytes_per_s: at(&partial.read_bytes_per_s, alive, count, 1.0),
        latency_ns: at(&partial.latency_ns, alive, count, 0.0),
        weights,
        failed,
    }
}
