//! Machines by description, with the measurements that their files may contain.

use std::path::Path;

use anyhow::Context;
use model::config::ModelConfig;
use planner::machine::Machine;
use planner::policy::by_name::PolicyName;
use planner::priced::{Finished, Pricing, Rehearse, Unpriced, WithStorages};
use profiler::{Profile, Request, cache, plan_key};
use program::ir::Program;
use program::map::Chunking;
use program::plan::Plan;
use program::simulate::Costs;

use super::pricing::{Profiles, compares_alone};
use super::profile;

/// Description of a machine, with its measured profiles if the file has them.
#[derive(Debug)]
pub(crate) struct MeasuredMachine {
    pub(crate) description: Machine,
    profiles: Option<Profiles>,
}

impl MeasuredMachine {
    /// Combines a description with those of its measurements that a search for a policy uses.
    /// `file` is the path that errors mention.
    ///
    /// # Errors
    /// Measurements that were modified, or that were made by another version.
    pub(crate) fn of(
        description: Machine,
        file: &str,
        policy: PolicyName,
    ) -> anyhow::Result<MeasuredMachine> {
        let read = |text: &Option<String>| {
            let decoded = text.as_ref().map(|text| cache::decode(text, Path::new(file)));
            decoded.transpose().with_context(|| format!("[profile] of {file}"))
        };
        let is_alone = compares_alone(policy) || policy == PolicyName::CpuOnly;
        let profiles = match &description.profile {
            Some(texts) => Some(Profiles {
                with_device: read(&texts.with_device)?,
                alone: read(&texts.alone)?.filter(|_| is_alone),
            }),
            None => None,
        };
        Ok(MeasuredMachine { description, profiles })
    }

    /// Returns the machine with its described rates alone, for comparison with machines that were
    /// not measured.
    pub(crate) fn as_described(description: &Machine) -> MeasuredMachine {
        MeasuredMachine { description: description.clone(), profiles: None }
    }

    /// Returns the measured ways to split attention.
    pub(crate) fn chunkings(&self, config: &ModelConfig, batch_size: u16) -> Vec<Chunking> {
        let profile = self.profiles.as_ref().and_then(|profiles| profiles.with_device.as_ref());
        profile.map_or_else(Vec::new, |profile| profile::chunkings(profile, config, batch_size))
    }

    /// Returns the rehearsals that were measured on the machine; `None` without measurements.
    pub(crate) fn rehearsals(&self) -> Option<&dyn Rehearse> {
        self.profiles.is_some().then_some(self as &dyn Rehearse)
    }

    /// Returns the measured costs of a program, if all of it was measured.
    fn measured(&self, plan: &Plan, program: &Program, prompt_len: u32) -> Option<Box<dyn Costs>> {
        let rates = self.description.storage_rates();
        let (profiles, _) = self.covering(plan)?;
        WithStorages { inner: profiles, rates: &rates }.costs(plan, program, prompt_len).ok()
    }

    /// Returns the profiles and the one for the hardware that a plan runs on, if it covers the
    /// plan's model and batches.
    fn covering(&self, plan: &Plan) -> Option<(&Profiles, &Profile)> {
        let profiles = self.profiles.as_ref()?;
        let profile = profiles.of(plan)?;
        let threads = profile.measurements.threads;
        let request = Request::for_shape(&plan.config, &plan.shape, threads);
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
    ) -> Result<Box<dyn Costs>, Unpriced> {
        let measured = self.measured(plan, program, prompt_len);
        measured.map_or_else(|| self.description.costs(plan, program, prompt_len), Ok)
    }

    fn costs_alone(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn Costs>, Unpriced> {
        let measured = self.measured(plan, program, prompt_len);
        measured.map_or_else(|| self.description.costs_alone(plan, program, prompt_len), Ok)
    }

    fn costs_of_host(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Option<Box<dyn Costs>>, Unpriced> {
        match self.covering(plan) {
            Some(_) => Ok(None),
            None => self.description.costs_of_host(plan, program, prompt_len),
        }
    }

    fn finished(&self, plan: &Plan) -> Option<Finished> {
        self.covering(plan).and_then(|(profiles, _)| profiles.finished(plan))
    }
}

impl Rehearse for MeasuredMachine {
    /// Returns a stored rehearsal; nothing can run on a machine that is only described.
    fn decode_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        let (_, profile) = self.covering(plan)?;
        let key = plan_key(plan);
        let mut rehearsals = profile.measurements.rehearsals.iter();
        rehearsals.find(|one| one.plan == key && one.steps == steps).map(|one| one.decode_ns())
    }
}
