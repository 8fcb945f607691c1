//! Measured profiles as a source of costs for the planner.

use planner::policy::by_name::PolicyName;
use planner::priced::{Factors, Finished, Pricing, Unpriced};
use profiler::{Correction, End, Profile, ProfileCosts, Workload, plan_key};
use program::ir::Program;
use program::plan::Plan;
use program::simulate::Costs;

/// Profiles of a run: with its device, and with all cores on the CPU, which is different hardware
/// if the device is emulated.
#[derive(Debug, Default)]
pub struct Profiles {
    pub with_device: Option<Profile>,
    pub alone: Option<Profile>,
}

impl Profiles {
    /// Returns the profile of the hardware that a plan runs on. If only maps with the device are
    /// compared, a plan without it is a part of such a map and uses the same profile.
    pub fn of(&self, plan: &Plan) -> Option<&Profile> {
        match plan.map.uses_gpu() {
            true => self.with_device.as_ref(),
            false => self.alone.as_ref().or(self.with_device.as_ref()),
        }
    }
}

impl Profiles {
    /// Returns the profiles at one end of the uncertainty of their samples.
    pub(crate) fn at(&self, end: End) -> Profiles {
        let at = |profile: &Option<Profile>| profile.as_ref().map(|profile| profile.at(end));
        Profiles { with_device: at(&self.with_device), alone: at(&self.alone) }
    }
}

/// Returns true if a search by this name compares maps with and without the device.
pub(crate) const fn compares_alone(name: PolicyName) -> bool {
    matches!(name, PolicyName::Auto | PolicyName::Lia | PolicyName::LiaSpread)
}

impl Pricing for Profiles {
    fn costs(
        &self,
        plan: &Plan,
        program: &Program,
        prompt_len: u32,
    ) -> Result<Box<dyn Costs>, Unpriced> {
        let what = if plan.map.uses_gpu() { "with its device" } else { "without a device" };
        let profile = self
            .of(plan)
            .ok_or_else(|| Unpriced(format!("The machine was not profiled {what}.")))?;
        let costs = ProfileCosts::of(profile, plan, [program], Workload { prompt_len })
            .map_err(|error| Unpriced(error.to_string()))?;
        Ok(Box::new(costs))
    }

    fn finished(&self, plan: &Plan) -> Option<Finished> {
        let Correction { prefill, decode, runs } = self.of(plan)?.correction(&plan_key(plan))?;
        Some(Finished { factors: Factors { prefill, decode }, runs })
    }
}
