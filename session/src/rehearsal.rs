//! Rehearsals before a run: those stored with the profile, or new ones by the workers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use planner::search::{Pricing, Rehearser};
use profiler::{ProfileCache, RehearsalTimes, plan_key, rehearse};
use program::plan::Plan;
use program::simulate::simulate;

use super::hardware::Hardware;
use super::pricing::Profiles;
use super::profile::runner;
use super::progress_reporter::ProgressReporter;
use crate::interrupt::Interrupt;

/// Total time of rehearsals after which no further one starts.
const MAX_REHEARSAL_TIME: Duration = Duration::from_secs(20);

/// Name of the part of planning between two rehearsals.
pub(crate) const SEARCH_LABEL: &str = "searching placements";

/// Rehearses plans on this machine.
#[derive(Debug)]
pub struct RehearsalRunner<'a> {
    pub profiles: &'a Profiles,
    /// Hardware of plans with the device; `alone` is that of plans without it.
    pub with_device: Hardware,
    pub without_device: Hardware,
    pub reporter: &'a ProgressReporter,
    pub interrupt: &'a Interrupt,
    /// Total time that rehearsals have taken.
    pub spent: Cell<Duration>,
}

impl RehearsalRunner<'_> {
    /// Returns the duration of decode steps of a plan as its profile predicts it, without a
    /// rehearsal.
    fn expected_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        let prompt = plan.shape.longest_prompt(steps + 1);
        let costs = self.profiles.costs(plan, plan.decode(), prompt).ok()?;
        Some(simulate(plan.decode(), costs.as_ref(), steps).ok()?.total_ns)
    }

    fn rehearse_plan(&self, plan: &Plan, steps: u32) -> Option<RehearsalTimes> {
        let hardware = if plan.map.uses_gpu() { self.with_device } else { self.without_device };
        let message = format!("trying a placement of {} layers", plan.config.num_layers);
        self.reporter.update(&message, None);
        let expected_ns = self.expected_ns(plan, steps);
        let mut runner = runner(hardware, self.reporter.verbosity(), self.interrupt);
        let rehearsed = rehearse(plan, steps, hardware.threads, expected_ns, &mut runner);
        self.reporter.update(SEARCH_LABEL, None);
        match rehearsed {
            Ok(rehearsal) => Some(rehearsal),
            Err(error) => {
                // The run that ends reports an interrupt itself.
                if !self.interrupt.is_requested() {
                    self.reporter.print_line(&format!(
                        "this placement could not be tried, so its estimate is used: {error}"
                    ));
                }
                None
            }
        }
    }
}

impl Rehearser for RehearsalRunner<'_> {
    fn decode_ns(&self, plan: &Plan, steps: u32) -> Option<f64> {
        if plan.map.uses_storages() {
            // No storage holds the weights of a rehearsal, which is a model with fewer layers.
            return None;
        }
        let cache = ProfileCache::of_user();
        let profile = self.profiles.for_plan(plan)?;
        let stored = cache.as_ref().and_then(|cache| cache.load(&profile.fingerprint).ok());
        let mut profile = stored.unwrap_or_else(|| profile.clone());
        let known = &mut profile.measurements.rehearsals;
        let key = plan_key(plan);
        if let Some(known) = known.iter().find(|known| known.plan == key && known.steps == steps) {
            return Some(known.decode_ns());
        }
        if self.spent.get() >= MAX_REHEARSAL_TIME {
            return None;
        }
        let started = Instant::now();
        let rehearsal = self.rehearse_plan(plan, steps);
        self.spent.set(self.spent.get() + started.elapsed());
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
