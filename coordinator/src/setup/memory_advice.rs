//! What would fit, told behind an error about a CUDA device's memory.

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

/// A run whose device may turn out too small.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Advice<'a> {
    pub(crate) run: &'a Run,
    pub(crate) opened: &'a Opened,
    pub(crate) demand: Demand,
    pub(crate) case: Case,
}

/// The refusal of a plan, with what the CUDA device has, if that was too little.
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

/// Whether the run ended since its device has too little memory.
fn is_about_device_memory(error: &anyhow::Error) -> bool {
    let launch = error.downcast_ref::<LaunchError>();
    let job = error.downcast_ref::<JobError>();
    matches!(launch, Some(LaunchError::Worker(failure)) if failure.is_about_device_memory())
        || matches!(job, Some(JobError::Engine(EngineError::DeviceMemory(_))))
}

impl Advice<'_> {
    /// The error of a run whose workers are gone; one about device memory says what fits now.
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
        // Operations that the model lacks were refused long ago.
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
            _ => "not even one sequence fits; --device none runs without it".to_owned(),
        }
    }

    /// The run's own placement, or streaming, which any device has room for that has any.
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
