//! Machines by description, with the measurements that their files may contain.

use std::path::Path;

use anyhow::Context;
use model::config::ModelConfig;
use planner::machine::Machine;
use planner::policy::name::PolicyName;
use planner::search::{CostError, MeasuredFactors, Pricing, Rehearser, StoragePricing};
use profiler::{Profile, ProfilingRequest, cache, plan_key};
use program::ir::Program;
use program::map::Chunking;
use program::plan::Plan;
use program::simulate::SimulationCosts;

use super::pricing::{Profiles, compares_without_device};
use super::profile;

/// Description of a machine, with its measured profiles if the file has them.
#[derive(Debug)]
pub struct MeasuredMachine {
    pub description: Machine,
    profiles: Option<Profiles>,
}

impl MeasuredMachine {
    /// Combines a description with those of its measurements that a search for a policy uses.
    /// `file` is the path that errors mention.
    ///
    /// # Errors
    /// Measurements that were modified, or that were made by another version.
    pub fn load(
        description: Machine,
        file: &str,
        policy: PolicyName,
    ) -> anyhow::Result<MeasuredMachine> {
        let read = |text: &Option<String>| {
            let decoded = text.as_ref().map(|text| cache::decode(text, Path::new(file)));
            decoded.transpose().with_context(|| format!("[profile] of {file}"))
        };
        let is_alone = compares_without_device(policy) || policy.is_cpu_only();
        let profiles = match &description.profile {
            Some(texts) => Some(Profiles {
                with_device: read(&texts.with_device)?,
                without_device: read(&texts.alone)?.filter(|_| is_alone),
            }),
            None => None,
        };
        Ok(MeasuredMachine { description, profiles })
    }

    /// Returns the machine with its described rates alone, for comparison with machines that were
    /// not measured.
    pub fn without_measurements(description: &Machine) -> MeasuredMachine {
        MeasuredMachine { description: description.clone(), profiles: None }
    }

    /// Returns the measured ways to split attention.
    pub(crate) fn chunkings(&self, config: &ModelConfig, batch_size: u16) -> Vec<Chunking> {
        let profile = self.profiles.as_ref().and_then(|profiles| profiles.with_device.as_ref());
        profile.map_or_else(Vec::new, |profile| profile::chunkings(profile, config, batch_size))
    }

    /// Returns the rehearsals that were measured on the machine; `None` without measurements.
    pub(crate) fn rehearsals(&self) -> Option<&dyn Rehearser> {
        self.profiles.is_some().then_some(self as &dyn Rehearser)
    }

    /// Returns the measured costs of a program, if all of it was measured.
    fn measured_costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Option<Box<dyn SimulationCosts>> {
        let rates = self.description.storage_rates();
        let (profiles, _) = self.covering_profile(plan)?;
        StoragePricing { inner: profiles, rates: &rates }.costs(plan, program, prompt_len).ok()
    }

    /// Returns the profiles and the one for the hardware that a plan runs on, if it covers the
    /// plan's model and batches.
    fn covering_profile(&self, plan: &Plan) -> Option<(&Profiles, &Profile)> {
        let profiles = self.profiles.as_ref()?;
        let profile = profiles.for_plan(plan)?;
        let threads = profile.measurements.threads;
        let request = ProfilingRequest::for_shape(&plan.config, &plan.shape, threads);
        profile.fingerprint.covers(&request).then_some((profiles, profile))
    }
}

impl Pricing for MeasuredMachine {
    /// Returns measured costs if everything but reads from drives was measured, otherwise costs by
    /// the described rates.
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let measured = self.measured_costs(plan, program, prompt_len);
        measured.map_or_else(|| self.description.costs(plan, program, prompt_len), Ok)
    }

    fn costs_without_contention(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let measured = self.measured_costs(plan, program, prompt_len);
        measured.map_or_else(
            || self.description.costs_without_contention(plan, program, prompt_len),
            Ok,
        )
    }

    fn host_memory_costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Option<Box<dyn SimulationCosts>>, CostError> {
        match self.covering_profile(plan) {
            Some(_) => Ok(None),
            None => self.description.host_memory_costs(plan, program, prompt_len),
        }
    }

    fn measured_factors(&self, plan: &Plan) -> Option<MeasuredFactors> {
        self.covering_profile(plan).and_then(|(profiles, _)| profiles.measured_factors(plan))
    }
}

impl Rehearser for MeasuredMachine {
    /// Returns a stored rehearsal; nothing can run on a machine that is only described.
    fn decode_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        let (_, profile) = self.covering_profile(plan)?;
        let key = plan_key(plan);
        let mut rehearsals = profile.measurements.rehearsals.iter();
        rehearsals
            .find(|rehearsal| rehearsal.plan == key && rehearsal.steps == steps)
            .map(|rehearsal| rehearsal.decode_ns())
    }
}
