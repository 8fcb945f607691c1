//! Read rates of a run's drives when they are read concurrently, and the share of each weight that
//! each drive reads: measured once and stored with the profiles.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use atomic_fs::{Directory, PRIVATE_DIRECTORY_MODE, PRIVATE_MODE};
use model::config::ModelConfig;
use planner::search::StorageRate;
use profiler::ProfileCache;
use program::shares::ReadShares;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use weight_store::ReaderOptions;

use super::drive_measurement::{BalancedWeight, DriveMeasurements, measure_drives};
use super::write::Staging;
use crate::interrupt::Interrupt;
use crate::progress_reporter::ProgressReporter;
use crate::request::Verbosity;

/// Version of the stored measurements; incremented when they have to be repeated.
const FORMAT: u32 = 2;

/// Measurements of some drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveBalance {
    format: u32,
    /// Staging directories of the drives; all lists by drive have this order.
    pub directories: Vec<String>,
    /// Read rate of each drive while the others are read too.
    pub read_bytes_per_s: Vec<f64>,
    pub latency_ns: Vec<f64>,
    /// Division of the weights by size, the largest first.
    pub weights: Vec<BalancedWeight>,
    /// Reason for which each drive was left out, if it was. Measurements with such drives are not
    /// stored.
    #[serde(skip)]
    pub failed: Vec<Option<String>>,
}

impl DriveBalance {
    fn new(stagings: &[Staging], measured: DriveMeasurements) -> DriveBalance {
        let DriveMeasurements { read_bytes_per_s, latency_ns, weights, failed } = measured;
        DriveBalance {
            format: FORMAT,
            directories: stagings
                .iter()
                .map(|staging| staging.directory.display().to_string())
                .collect(),
            read_bytes_per_s,
            latency_ns,
            weights,
            failed,
        }
    }

    /// Returns the share of each weight that each drive reads.
    pub(crate) fn shares(&self, config: &ModelConfig) -> ReadShares {
        let parts = |sizes: &[u64]| -> Vec<u32> {
            sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect()
        };
        let equal = vec![1; self.directories.len()];
        let largest = self.weights.iter().max_by_key(|weight| weight.size_bytes);
        let largest = largest.map_or(equal, |weight| parts(&weight.trajectory.sizes));
        let mut shares = ReadShares::new(largest);
        for weight in &self.weights {
            for op in config.every_layer_op() {
                if weight.ops.iter().any(|name| name == op.name(config.family)) {
                    shares = shares.with(op, parts(&weight.trajectory.sizes));
                }
            }
        }
        shares
    }

    /// Returns the read rate and latency of each drive.
    pub(crate) fn rates(&self) -> Vec<StorageRate> {
        let rates = self.read_bytes_per_s.iter().zip(&self.latency_ns);
        rates
            .map(|(rate, latency_ns)| StorageRate {
                read_bytes_per_s: *rate,
                latency_ns: *latency_ns,
            })
            .collect()
    }
}

/// Returns the path at which the measurements are stored, which contains a hash of everything that
/// they depend on; `None` without a cache directory.
fn cache_path(stagings: &[Staging], options: &[ReaderOptions]) -> Option<PathBuf> {
    let mut hash = Sha256::new();
    hash.update(FORMAT.to_le_bytes());
    for (staging, options) in stagings.iter().zip(options) {
        let device = staging.directory.metadata().ok()?.dev();
        hash.update(format!("{}\n{device}\n{options:?}\n", staging.staged.path().display()));
    }
    let name: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Some(ProfileCache::of_user()?.directory().join(format!("nvme-{name}.json")))
}

/// Returns the stored measurements of these drives, or measures them, and the path at which they
/// are stored.
///
/// # Errors
/// No drive can be read, or an interrupt.
pub fn obtain(
    stagings: &[Staging],
    options: &[ReaderOptions],
    config: &ModelConfig,
    is_forced: bool,
    verbosity: Verbosity,
    interrupt: &Interrupt,
) -> anyhow::Result<(DriveBalance, Option<PathBuf>)> {
    let path = cache_path(stagings, options);
    let cached = path.as_ref().filter(|_| !is_forced).and_then(|path| std::fs::read(path).ok());
    let cached = cached.and_then(|bytes| serde_json::from_slice::<DriveBalance>(&bytes).ok());
    if let Some(cached) = cached.filter(|cached| cached.format == FORMAT) {
        return Ok((cached, path));
    }
    let reporter =
        ProgressReporter::start("measuring the read rate of all drives together", verbosity);
    let measured = measure_drives(stagings, options, config, interrupt)?;
    drop(reporter);
    let failed = measured.failed.iter().any(Option::is_some);
    let balanced = DriveBalance::new(stagings, measured);
    // Measurements that cannot be stored, or do not cover all drives, are repeated the next time.
    let stored = path.filter(|_| !failed).filter(|path| {
        let text = serde_json::to_vec_pretty(&balanced).unwrap_or_default();
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Directory::create(folder, PRIVATE_DIRECTORY_MODE).is_ok()
            && atomic_fs::replace(path, &text, PRIVATE_MODE).is_ok()
    });
    Ok((balanced, stored))
}
