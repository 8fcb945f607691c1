//! Drives of a run, with everything that the planner and the workers need to know about them.

use model::config::ModelConfig;
use model::ops::Op;
use planner::budget::{StagedOps, Storage};
use planner::policy::Formats;
use planner::search::StorageRate;
use program::shares::ReadShares;
use protocol::messages::StagedCopyConfig;
use weight_store::{Faults, IoKind, ReaderOptions};

use super::balance;
use super::direct;
use super::obtain::obtain_stagings;
use super::staged_weights::StagedWeights;
use super::write::Staging;
use crate::argument_error::ArgumentError;
use crate::interrupt::Interrupt;
use crate::session::Session;
use crate::values::NvmeOps;

/// Environment variable with faults of the drives for tests and studies: one text per drive,
/// separated by `;`.
const FAULTS_ENV: &str = "TANDEM_NVME_FAULTS";
/// Environment variable that, if set to `threads`, reads with threads even if io_uring is
/// available.
const IO_ENV: &str = "TANDEM_NVME_IO";
/// Milliseconds without a response after which a drive is given up.
const MAX_SILENCE_MS: u64 = 10_000;

/// Drives with complete stagings and known read rates.
#[derive(Debug)]
pub struct Nvme {
    pub storage: Storage,
    pub rates: Vec<StorageRate>,
    /// Reason for which drives are not read directly to the device, if the choice was automatic.
    pub note: Option<String>,
    stagings: Vec<Staging>,
    options: Vec<ReaderOptions>,
}

/// Returns what a run may read from drives, before these are examined; `None` if it has none.
///
/// # Errors
/// An operation that the model lacks.
pub(crate) fn storage(session: &Session<'_>) -> Result<Option<Storage>, ArgumentError> {
    if session.options.nvme.is_empty() {
        return Ok(None);
    }
    let ops = match &session.options.nvme_ops {
        NvmeOps::Auto => StagedOps::Auto,
        NvmeOps::All => StagedOps::All,
        NvmeOps::Named(names) => {
            let ops = names.iter().map(|name| find_op(name, &session.model.config));
            StagedOps::Selected(ops.collect::<Result<_, _>>()?)
        }
    };
    let storages = u16::try_from(session.options.nvme.len()).unwrap_or(u16::MAX);
    let (expert_reads, expert_cache_bytes) =
        (session.options.nvme_experts, session.options.expert_cache_bytes);
    let storage = Storage::auto(ReadShares::equal(storages));
    Ok(Some(Storage { ops, expert_reads, expert_cache_bytes, ..storage }))
}

fn find_op(name: &str, config: &ModelConfig) -> Result<Op, ArgumentError> {
    let mut all: Vec<Op> = config.every_layer_op();
    all.retain(|op| op.has_matrix(config));
    if !config.tied_embeddings {
        all.push(Op::Head);
    }
    let op = all.iter().copied().find(|op| op.name(config.family) == name);
    op.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|op| op.name(config.family)).collect();
        ArgumentError(format!(
            "--nvme-ops {name}: {} has no such weights; it has {}",
            config.name,
            names.join(", ")
        ))
    })
}

/// Returns the options for reading each drive.
///
/// # Errors
/// Faults in the environment that are not valid.
pub fn reader_options(drives: usize) -> Result<Vec<ReaderOptions>, ArgumentError> {
    let faults = std::env::var(FAULTS_ENV).unwrap_or_default();
    let io = match std::env::var(IO_ENV).as_deref() {
        Ok("threads") => IoKind::Threads,
        _ => IoKind::Auto,
    };
    let mut texts = faults.split(';');
    let options = (0..drives).map(|_| {
        let text = texts.next().unwrap_or_default();
        let faults: Faults =
            text.parse().map_err(|error| ArgumentError(format!("{FAULTS_ENV}: {error}")))?;
        Ok(ReaderOptions { io, faults, ..ReaderOptions::default() })
    });
    options.collect()
}

impl Nvme {
    /// Finds or writes the stagings of a run, and measures the drives unless measurements are
    /// stored.
    ///
    /// # Errors
    /// Fails like [`obtain`], or for drives that cannot be read.
    pub(crate) fn obtain(
        session: &Session<'_>,
        formats: &Formats,
        storage: Storage,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Nvme> {
        let quiet = session.options.is_quiet();
        let weights = StagedWeights {
            model: session.model,
            dtype: session.options.dtype,
            formats: &formats.weights,
        };
        let stagings = obtain_stagings(weights, &session.options.nvme, quiet, interrupt)?;
        let options = reader_options(stagings.len())?;
        let (balanced, _) = balance::obtain(
            &stagings,
            &options,
            &session.model.config,
            false,
            session.options.verbosity,
            interrupt,
        )?;
        for (staging, reason) in stagings.iter().zip(&balanced.failed) {
            if let (Some(reason), false) = (reason, quiet) {
                eprintln!(
                    "{} is not used for weights, since it could not be read while drives were \
                     measured: {reason}",
                    staging.directory.display()
                );
            }
        }
        let shares = balanced.shares(&session.model.config);
        let rates = balanced.rates();
        let (direct, note) =
            direct::decide(session.options.nvme_direct, session.options.device, &stagings)?;
        let storage = Storage { shares, ..storage }.with_direct_reads(direct);
        Ok(Nvme { storage, rates, note, stagings, options })
    }

    /// Returns the stagings for the storage workers.
    pub(crate) fn staged(&self) -> Vec<StagedCopyConfig> {
        let stagings = self.stagings.iter().zip(&self.options);
        stagings
            .map(|(staging, options)| StagedCopyConfig {
                path: staging.staged.path().display().to_string(),
                uses_threads: options.io == IoKind::Threads,
                silence_ms: MAX_SILENCE_MS,
                faults: options.faults.to_string(),
            })
            .collect()
    }
}
