//! Rehearsals before a run: those stored with the profile, or new ones by the workers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use planner::priced::{Pricing, Rehearse};
use profiler::{Cache, Rehearsal, plan_key, rehearse};
use program::plan::Plan;
use program::simulate::simulate;

use super::hardware::Hardware;
use super::pricing::Profiles;
use super::profile::runner;
use super::progress_reporter::ProgressReporter;
use crate::interrupt::Interrupt;

/// Total time of rehearsals after which no further one starts.
const TRYING_MAX: Duration = Duration::from_secs(20);

/// Name of the part of planning between two rehearsals.
pub(crate) const SEARCHING: &str = "searching placements";

/// Rehearses plans on this machine.
#[derive(Debug)]
pub struct Stage<'a> {
    pub profiles: &'a Profiles,
    /// Hardware of plans with the device; `alone` is that of plans without it.
    pub with_device: Hardware,
    pub alone: Hardware,
    pub(crate) reporter: &'a ProgressReporter,
    pub interrupt: &'a Interrupt,
    /// Total time that rehearsals have taken.
    pub spent: Cell<Duration>,
}

impl Stage<'_> {
    /// Returns the duration of decode steps of a plan as its profile predicts it, without a
    /// rehearsal.
    fn expected_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        let prompt = plan.shape.longest_prompt(steps + 1);
        let costs = self.profiles.costs(plan, plan.decode(), prompt).ok()?;
        Some(simulate(plan.decode(), costs.as_ref(), steps).ok()?.total_ns)
    }

    fn try_out(&self, plan: &Plan, steps: u32) -> Option<Rehearsal> {
        let hardware = if plan.map.uses_gpu() { self.with_device } else { self.alone };
        let trying = format!("trying a placement of {} layers", plan.config.num_layers);
        self.reporter.update(&trying, None);
        let expected_ns = self.expected_ns(plan, steps);
        let mut runner = runner(hardware, self.reporter.verbosity(), self.interrupt);
        let rehearsed = rehearse(plan, steps, hardware.threads, expected_ns, &mut runner);
        self.reporter.update(SEARCHING, None);
        match rehearsed {
            Ok(rehearsal) => Some(rehearsal),
            Err(error) => {
                // The run that ends reports an interrupt itself.
                if !self.interrupt.is_requested() {
                    self.reporter.say(&format!(
                        "this placement could not be tried, so its estimate is used: {error}"
                    ));
                }
                None
            }
        }
    }
}

impl Rehearse for Stage<'_> {
    fn decode_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        if plan.map.uses_storages() {
            // No storage holds the weights of a rehearsal, which is a model with fewer layers.
            return None;
        }
        let cache = Cache::of_user();
        let profile = self.profiles.of(plan)?;
        let kept = cache.as_ref().and_then(|cache| cache.load(&profile.fingerprint).ok());
        let mut profile = kept.unwrap_or_else(|| profile.clone());
        let known = &mut profile.measurements.rehearsals;
        let key = plan_key(plan);
        if let Some(known) = known.iter().find(|known| known.plan == key && known.steps == steps) {
            return Some(known.decode_ns());
        }
        if self.spent.get() >= TRYING_MAX {
            return None;
        }
        let begun = Instant::now();
        let rehearsal = self.try_out(plan, steps);
        self.spent.set(self.spent.get() + begun.elapsed());
        let rehearsal = rehearsal?;
        let decode_ns = rehearsal.decode_ns();
        known.push(rehearsal);
        // A profile that cannot be stored was reported when it was measured.
        if let Some(cache) = cache {
            let _ = cache.store(&profile);
        }
        Some(decode_ns)
    }
}
