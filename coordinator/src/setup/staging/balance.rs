//! How fast the drives of a run read together, and what part of each weight every one of them
//! reads: measured once and kept beside the profiles.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::Context;
use model::config::ModelConfig;
use model::ops::Op;
use planner::priced::StorageRate;
use profiler::Cache;
use program::shares::{BLOCK_BYTES, ReadShares};
use program::weights::Weights;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use staging::balance::{self, ALPHA, Balance, BalanceError, STEPS, Trajectory};
use staging::measure::measure;
use staging::{AlignedBuffer, Reader, ReaderOptions};

use super::write::Staging;

/// Raised when what is kept is to be measured anew.
const FORMAT: u32 = 1;
/// Reads of a division, of which the median counts.
const REPEATS: usize = 3;
/// Weights of fewer blocks are divided as larger ones are: their times tell nothing.
const BLOCKS_MIN: u64 = 16;

/// What was measured of some drives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Balanced {
    format: u32,
    /// The drives, in order.
    pub(crate) directories: Vec<String>,
    /// By drive, while the others read too.
    pub(crate) read_bytes_per_s: Vec<f64>,
    pub(crate) latency_ns: Vec<f64>,
    /// By operation, in the order in which they were balanced.
    pub(crate) weights: Vec<BalancedWeight>,
}

/// How the division of an operation's weight was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BalancedWeight {
    pub(crate) op: String,
    pub(crate) size_bytes: u64,
    pub(crate) trajectory: Trajectory,
}

impl Balanced {
    /// What part each drive reads.
    pub(crate) fn shares(&self, config: &ModelConfig) -> ReadShares {
        let parts = |sizes: &[u64]| -> Vec<u32> {
            sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX)).collect()
        };
        let equal = vec![1; self.directories.len()];
        let largest = self.weights.iter().max_by_key(|weight| weight.size_bytes);
        let largest = largest.map_or(equal, |weight| parts(&weight.trajectory.sizes));
        let mut shares = ReadShares::new(largest);
        for weight in &self.weights {
            let ops = config.layer_ops().iter();
            let op = ops.copied().find(|op| op.name(config.family) == weight.op);
            if let Some(op) = op {
                shares = shares.with(op, parts(&weight.trajectory.sizes));
            }
        }
        shares
    }

    /// How fast each drive reads.
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

/// Where it is kept, by all that it depends on.
fn kept_at(stagings: &[Staging], options: &[ReaderOptions]) -> Option<PathBuf> {
    let mut hash = Sha256::new();
    hash.update(FORMAT.to_le_bytes());
    for (staging, options) in stagings.iter().zip(options) {
        let device = staging.directory.metadata().ok()?.dev();
        hash.update(format!("{}\n{device}\n{options:?}\n", staging.staged.path().display()));
    }
    let name: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Some(Cache::of_user()?.directory().join(format!("nvme-{name}.json")))
}

/// What is kept of these drives, or what is measured now, and where it is kept.
///
/// # Errors
/// A staging that cannot be read.
pub(crate) fn obtain(
    (stagings, options): (&[Staging], &[ReaderOptions]),
    config: &ModelConfig,
    is_forced: bool,
) -> anyhow::Result<(Balanced, Option<PathBuf>)> {
    let path = kept_at(stagings, options);
    let kept = path.as_ref().filter(|_| !is_forced).and_then(|path| std::fs::read(path).ok());
    let kept = kept.and_then(|bytes| serde_json::from_slice::<Balanced>(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| kept.format == FORMAT) {
        return Ok((kept, path));
    }
    let balanced = measured(stagings, options, config)?;
    // What cannot be kept is measured again the next time.
    let stored = path.filter(|path| {
        let text = serde_json::to_vec_pretty(&balanced).unwrap_or_default();
        let folder = path.parent().map(std::fs::create_dir_all);
        folder.is_some_and(|made| made.is_ok()) && std::fs::write(path, text).is_ok()
    });
    Ok((balanced, stored))
}

/// Why no division was measured.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("{0}")]
    Balance(#[from] BalanceError),
}

fn measured(
    stagings: &[Staging],
    options: &[ReaderOptions],
    config: &ModelConfig,
) -> anyhow::Result<Balanced> {
    let open = |(staging, options): (&Staging, &ReaderOptions)| {
        Reader::open(&staging.staged, options.clone())
            .with_context(|| format!("the staging in {}", staging.directory.display()))
    };
    let mut readers: Vec<Reader> =
        stagings.iter().zip(options).map(open).collect::<anyhow::Result<_>>()?;
    let staged = &stagings[0].staged;
    let names: BTreeMap<Op, String> = config
        .layer_ops()
        .iter()
        .map(|op| (*op, Weights::Layer { layer: 0, op: *op }.name(config)))
        .collect();
    let blobs = names.iter().filter_map(|(op, name)| Some((*op, staged.blob(name)?)));
    let mut blobs: Vec<_> = blobs.collect();
    // The largest first: what it comes to is where others begin.
    blobs.sort_by_key(|(_, blob)| std::cmp::Reverse(staged.size_bytes(*blob)));
    let (_, largest) = *blobs.first().context("the staging holds no weights of layers")?;
    let mut to = AlignedBuffer::new(staged.size_bytes(largest) as usize);
    let mut start = vec![1; readers.len()];
    let mut weights: Vec<BalancedWeight> = Vec::new();
    for (op, blob) in blobs {
        let blocks = staged.blocks(blob);
        let known = weights.iter().any(|other| other.size_bytes == staged.size_bytes(blob));
        if known || (blocks < BLOCKS_MIN && !weights.is_empty()) {
            continue;
        }
        let trajectory =
            balance::run::<MeasureError>(Balance::new(blocks, &start, ALPHA), STEPS, |sizes| {
                let times = measure(&mut readers, blob, sizes, &mut to, REPEATS);
                Ok(times.into_iter().map(Result::ok).collect())
            })?;
        start.clone_from(&trajectory.sizes);
        let op = op.name(config.family).to_owned();
        weights.push(BalancedWeight { op, size_bytes: staged.size_bytes(blob), trajectory });
    }
    let first = &weights[0].trajectory;
    let times = measure(&mut readers, largest, &first.sizes, &mut to, REPEATS);
    let rate = |(size, time): (&u64, Result<f64, _>)| match time {
        Ok(time_s) if *size > 0 => (size * BLOCK_BYTES) as f64 / time_s.max(1e-9),
        _ => 0.0,
    };
    let read_bytes_per_s: Vec<f64> = first.sizes.iter().zip(times).map(rate).collect();
    let ones: Vec<u64> =
        (0..readers.len() as u64).map(|place| u64::from(place < staged.blocks(largest))).collect();
    let times = measure(&mut readers, largest, &ones, &mut to, REPEATS);
    let latency = |(time, rate): (Result<f64, _>, &f64)| {
        let transfer_s = BLOCK_BYTES as f64 / rate.max(1.0);
        time.map_or(0.0, |time_s| (time_s - transfer_s).max(0.0) * 1e9)
    };
    let latency_ns = times.into_iter().zip(&read_bytes_per_s).map(latency).collect();
    let directories = stagings.iter().map(|one| one.directory.display().to_string()).collect();
    Ok(Balanced { format: FORMAT, directories, read_bytes_per_s, latency_ns, weights })
}
