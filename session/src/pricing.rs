//! Measured profiles as a source of costs for the planner.

use planner::policy::name::PolicyName;
use planner::search::{CostError, MeasuredFactors, Pricing, TimeFactors};
use profiler::{Correction, Profile, ProfileCosts, RunLength, UncertaintyBound, plan_key};
use program::ir::Program;
use program::plan::Plan;
use program::simulate::SimulationCosts;

/// Profiles of a run: with its device, and with all cores on the CPU, which is different hardware
/// if the device is emulated.
#[derive(Debug, Default)]
pub struct Profiles {
    pub with_device: Option<Profile>,
    pub without_device: Option<Profile>,
}

impl Profiles {
    /// Returns the profile of the hardware that a plan runs on. If only maps with the device are
    /// compared, a plan without it is a part of such a map and uses the same profile.
    pub fn for_plan(&self, plan: &Plan) -> Option<&Profile> {
        match plan.map.uses_gpu() {
            true => self.with_device.as_ref(),
            false => self.without_device.as_ref().or(self.with_device.as_ref()),
        }
    }
}

impl Profiles {
    /// Returns the profiles at one end of the uncertainty of their samples.
    pub(crate) fn at_uncertainty_end(&self, end: UncertaintyBound) -> Profiles {
        let at = |profile: &Option<Profile>| profile.as_ref().map(|profile| profile.at_bound(end));
        Profiles { with_device: at(&self.with_device), without_device: at(&self.without_device) }
    }
}

/// Returns true if a search by this name compares maps with and without the device.
pub(crate) const fn compares_without_device(name: PolicyName) -> bool {
    matches!(name, PolicyName::Auto | PolicyName::Lia | PolicyName::LiaSpread)
}

impl Pricing for Profiles {
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn SimulationCosts>, CostError> {
        let what = if plan.map.uses_gpu() { "with its device" } else { "without a device" };
        let profile = self
            .for_plan(plan)
            .ok_or_else(|| CostError(format!("The machine was not profiled {what}.")))?;
        let costs = ProfileCosts::for_programs(profile, plan, [program], RunLength { prompt_len })
            .map_err(|error| CostError(error.to_string()))?;
        Ok(Box::new(costs))
    }

    fn measured_factors(&self, plan: &Plan) -> Option<MeasuredFactors> {
        let Correction { prefill, decode, runs } =
            self.for_plan(plan)?.correction(&plan_key(plan))?;
        Some(MeasuredFactors { factors: TimeFactors { prefill, decode }, runs })
    }
}
