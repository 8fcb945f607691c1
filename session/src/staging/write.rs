//! Writes a model's weights to drives. Each blob is read and encoded once, and written to all
//! directories that lack it, so that no more than one blob is in memory: one weight, or the experts
//! of one layer.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kernels::Variant;
use weight_store::{AlignedBuffer, StagedCopy, Writer};

use super::outdated;
use super::staged_weights::StagedWeights;
use crate::byte_progress_bar::ByteProgressBar;
use crate::interrupt::Interrupt;
use crate::model::open_weights;

/// A directory and the staging in it.
#[derive(Debug)]
pub struct Staging {
    pub directory: PathBuf,
    pub staged: StagedCopy,
}

/// Error of staging or measuring that ended because of an interrupt, not a failure.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; staged weights are kept, and the same command continues from there")]
pub struct Interrupted;

/// Stages the weights in each of `directories`, none of which contains a complete staging. Partial
/// stagings are continued. Those with experts in an earlier layout are replaced.
///
/// # Errors
/// A drive that is full or fails, weights that cannot be read, or an interrupt.
pub fn stage(
    weights: StagedWeights<'_>,
    directories: &[PathBuf],
    quiet: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Staging>> {
    let (identity, blobs) = (weights.identity()?, weights.blobs());
    let begin = |directory: &Path| -> anyhow::Result<Writer> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("the directory {}", directory.display()))?;
        outdated::remove(weights, directory)?;
        Ok(Writer::begin(directory, &identity, &blobs)?)
    };
    let mut writers: Vec<Writer> =
        directories.iter().map(|directory| begin(directory)).collect::<Result<_, _>>()?;
    let missing: Vec<Vec<usize>> = writers.iter().map(Writer::missing).collect();
    let is_missing = |index: &usize| missing.iter().any(|missing| missing.contains(index));
    let all_bytes: u64 = blobs.iter().map(|blob| blob.size_bytes).sum();
    let remaining: Vec<usize> = (0..blobs.len()).filter(is_missing).collect();
    let remaining_bytes: u64 = remaining.iter().map(|index| blobs[*index].size_bytes).sum();
    let mut bar = ByteProgressBar::new("staging", quiet);
    let mut done_bytes = all_bytes - remaining_bytes;
    bar.update(done_bytes, all_bytes);
    let source = open_weights(&weights.model.weights, &weights.model.config)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (variant, all) = (Variant::from_env()?, weights.contents());
    let largest = remaining.iter().map(|index| blobs[*index].size_bytes).max().unwrap_or(0);
    let mut buffer = AlignedBuffer::new(largest as usize);
    for index in remaining {
        if interrupt.is_requested() {
            return Err(Interrupted.into());
        }
        let size_bytes = blobs[index].size_bytes as usize;
        let bytes = &mut buffer.bytes_mut()[..size_bytes];
        weights.encoded().fill_staged(all[index], source.as_ref(), variant, threads, bytes)?;
        let bytes = &*bytes;
        // All drives write concurrently.
        std::thread::scope(|scope| {
            let lacking = writers.iter_mut().zip(&missing);
            let lacking = lacking.filter(|(_, missing)| missing.contains(&index));
            let threads: Vec<_> = lacking
                .map(|(writer, _)| scope.spawn(move || writer.write(index, bytes)))
                .collect();
            let written = threads.into_iter().map(|thread| match thread.join() {
                Ok(written) => written,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            written.collect::<Result<Vec<()>, _>>()
        })?;
        done_bytes += size_bytes as u64;
        bar.update(done_bytes, all_bytes);
    }
    bar.finish();
    let finished = writers.into_iter().zip(directories).map(|(writer, directory)| {
        let staged = writer.finish()?;
        Ok(Staging { directory: directory.clone(), staged })
    });
    finished.collect()
}
