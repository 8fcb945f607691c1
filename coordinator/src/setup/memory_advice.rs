//! Suggestions of what would fit, added to errors about the memory of a CUDA device.

use anyhow::anyhow;
use planner::budget::{Limits, PlanError};
use planner::policy::by_name::PolicyName;
use planner::policy::{Placement, Policy};
use planner::split::parse_split;

use super::formats::{Case, formats};
use super::model::Opened;
use super::plan_request::{DEFAULT_BATCH_MAX, limits, request};
use super::staging::nvme::storage;
use crate::boundary::engine::EngineError;
use crate::cli::cuda;
use crate::cli::request::{PlacementChoice, Run};
use crate::cli::values::{BatchesChoice, DeviceChoice, NvmeDirect};
use crate::engine::launch::LaunchError;
use crate::job::demand::Demand;
use crate::job::error::JobError;

/// A run whose device may turn out to have too little memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advice<'a> {
    pub(crate) run: &'a Run,
    pub(crate) opened: &'a Opened,
    pub(crate) demand: Demand,
    pub(crate) case: Case,
}

/// Adds the free memory of the CUDA device to the refusal of a plan that needs more device memory
/// than allowed. Returns other errors unchanged.
pub(crate) fn of_device(run: &Run, error: anyhow::Error) -> anyhow::Error {
    let too_little = match error.downcast_ref::<PlanError>() {
        Some(PlanError::DoesNotFit { budget, limits, .. }) => {
            limits.vram_bytes.is_some_and(|vram_bytes| budget.device_bytes > vram_bytes)
        }
        _ => false,
    };
    match run.device {
        DeviceChoice::Cuda(index) if too_little => match cuda::free_in_words(index) {
            Some(free) => error.context(free),
            None => error,
        },
        _ => error,
    }
}

/// Returns true if the run ended because its device has too little memory.
fn is_about_device_memory(error: &anyhow::Error) -> bool {
    let launch = error.downcast_ref::<LaunchError>();
    let job = error.downcast_ref::<JobError>();
    matches!(launch, Some(LaunchError::Worker(failure)) if failure.is_about_device_memory())
        || matches!(job, Some(JobError::Engine(EngineError::DeviceMemory(_))))
}

impl Advice<'_> {
    /// Adds what fits now to an error about device memory, once the workers have exited. Returns
    /// other errors unchanged.
    pub(crate) fn after(&self, error: anyhow::Error) -> anyhow::Error {
        let DeviceChoice::Cuda(index) = self.run.device else { return error };
        if !is_about_device_memory(&error) {
            return error;
        }
        let text = format!("{error:#}");
        let Some(free) = cuda::free_in_words(index) else { return error };
        anyhow!("{} Now {free}, and {}.", text.trim_end(), self.fitting(index))
    }

    fn fitting(&self, index: u32) -> String {
        let is_off = self.run.nvme_direct == NvmeDirect::Off;
        let drives = if is_off { 0 } else { self.run.nvme.len() };
        let vram_bytes = Some(cuda::vram_bytes(index, self.run.vram_bytes, drives));
        let limits = Limits { vram_bytes, ..limits(self.run, self.opened, self.demand) };
        let formats = formats(self.run, self.opened, self.case);
        let placement = Placement::of(self.policy());
        // Operations that the model lacks were refused during planning.
        let storage = storage(self.run, &self.opened.config).ok().flatten();
        let request = request(
            self.run,
            self.opened,
            self.demand,
            &formats,
            (&limits, storage.as_ref()),
            &placement,
        );
        let (count, size) = match self.run.batches {
            Some(BatchesChoice::Given(batches)) => (batches.count, batches.size),
            _ => (1, self.demand.sequences.clamp(1, DEFAULT_BATCH_MAX.into()) as u16),
        };
        match request.largest_batch(count, size) {
            Ok(Some(fitting)) if fitting == size => "the same run fits".to_owned(),
            Ok(Some(fitting)) => format!("--batches {count}x{fitting} fits"),
            _ => "not even one sequence fits; --device none runs without a device".to_owned(),
        }
    }

    /// Returns the run's own policy if it specifies a split or `resident`, otherwise streaming,
    /// which fits on any device on which anything fits.
    fn policy(&self) -> Policy {
        if let PlacementChoice::Split { split, chunking } = &self.run.placement
            && let Ok(split) = parse_split(split, &self.opened.config, *chunking)
        {
            return Policy::TwoSplit { split, chunking: *chunking };
        }
        match self.run.placement {
            PlacementChoice::Named(PolicyName::Resident) => Policy::Resident,
            _ => Policy::GpuOnly,
        }
    }
}
