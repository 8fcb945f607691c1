//! Suggestions of what would fit, added to errors about the memory of a CUDA device.

use anyhow::anyhow;
use batch::error::JobError;
use batch::workload::JobWorkload;
use engine::launch::LaunchError;
use engine_api::batch::EngineError;
use planner::budget::{MemoryLimits, PlanError};
use planner::policy::name::PolicyName;
use planner::policy::{Placement, Policy};
use planner::split::parse_split;

use super::formats::{RunCompression, resolve_formats};
use super::plan_request::{DEFAULT_MAX_BATCH, limits, plan_request};
use super::staging::nvme::storage;
use crate::cuda_device;
use crate::request::PlacementChoice;
use crate::session::Session;
use crate::values::{BatchesChoice, DeviceChoice, NvmeDirect};

/// A run whose device may turn out to have too little memory.
#[derive(Debug, Clone, Copy)]
pub struct FitSuggestions<'a> {
    pub session: &'a Session<'a>,
    pub demand: JobWorkload,
    pub compression: RunCompression,
}

/// Adds the free memory of the CUDA device to the refusal of a plan that needs more device memory
/// than allowed. Returns other errors unchanged.
pub(crate) fn with_free_device_memory(
    session: &Session<'_>,
    error: anyhow::Error,
) -> anyhow::Error {
    let is_device_too_small = match error.downcast_ref::<PlanError>() {
        Some(PlanError::DoesNotFit { budget, limits, .. }) => {
            limits.vram_bytes.is_some_and(|vram_bytes| budget.device_bytes > vram_bytes)
        }
        _ => false,
    };
    match session.options.device {
        DeviceChoice::Cuda(index) if is_device_too_small => {
            match cuda_device::format_free_memory(index) {
                Some(free) => error.context(free),
                None => error,
            }
        }
        _ => error,
    }
}

/// Returns true if the run ended because its device has too little memory.
fn is_out_of_device_memory(error: &anyhow::Error) -> bool {
    let launch = error.downcast_ref::<LaunchError>();
    let job = error.downcast_ref::<JobError>();
    matches!(launch, Some(LaunchError::Worker(failure)) if failure.is_out_of_device_memory())
        || matches!(job, Some(JobError::Engine(EngineError::OutOfDeviceMemory(_))))
}

impl FitSuggestions<'_> {
    /// Adds what fits now to an error about device memory, once the workers have exited. Returns
    /// other errors unchanged.
    pub fn add_suggestion(&self, error: anyhow::Error) -> anyhow::Error {
        let DeviceChoice::Cuda(index) = self.session.options.device else { return error };
        if !is_out_of_device_memory(&error) {
            return error;
        }
        let text = format!("{error:#}");
        let Some(free) = cuda_device::format_free_memory(index) else { return error };
        anyhow!("{} Now {free}, and {}.", text.trim_end(), self.suggestion(index))
    }

    fn suggestion(&self, index: u32) -> String {
        let is_off = self.session.options.nvme_direct == NvmeDirect::Off;
        let drives = if is_off { 0 } else { self.session.options.nvme.len() };
        let vram_bytes =
            Some(cuda_device::vram_bytes(index, self.session.options.vram_bytes, drives));
        let limits = MemoryLimits { vram_bytes, ..limits(self.session, self.demand) };
        let formats = resolve_formats(self.session, self.compression);
        let placement = Placement::from_policy(self.policy());
        // Operations that the model lacks were refused during planning.
        let storage = storage(self.session).ok().flatten();
        let request = plan_request(
            self.session,
            self.demand,
            &formats,
            &limits,
            storage.as_ref(),
            &placement,
        );
        let (count, size) = match self.session.batches {
            Some(BatchesChoice::Fixed(batches)) => (batches.count, batches.size),
            _ => (1, self.demand.sequences.clamp(1, DEFAULT_MAX_BATCH.into()) as u16),
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
        if let PlacementChoice::Split { split, chunking } = &self.session.options.placement
            && let Ok(split) = parse_split(split, &self.session.model.config, *chunking)
        {
            return Policy::TwoSplit { split, chunking: *chunking };
        }
        match self.session.options.placement {
            PlacementChoice::Named(PolicyName::Resident) => Policy::Resident,
            _ => Policy::GpuOnly,
        }
    }
}
