//! `--timed POLICY`: replays the requests on the real processes and programs, whose instructions
//! take the described machine's times without computing anything. Each iteration's time is compared
//! with the simulated time for the same shape and rows.

mod chart;
mod iterations;
mod show;

use std::path::Path;
use std::time::Duration;

use model::config::ModelConfig;
use planner::serving::{
    Arrival, Capacity, Ran, Served, ServingCosts, TimedServing, follow, simulate, timed_plan,
};
use schedule::hybrid::{Limits, Policy};
use workers::shared::protocol::{Durations, WeightsFrom};
use workers::shared::table::Deciding;

use crate::cli::request::TimedReplay;
use crate::engine::launch::LaunchOptions;
use crate::engine::replay::{Coming, Replayed, replay};
use crate::interrupt::Interrupt;
use crate::setup::hardware::Hardware;
use crate::setup::usage::Usage;
use iterations::{Iteration, iterations};
use show::{Compared, TimedAnswer};

/// Minimum duration of the shortest iteration in the workers, so that the cost of communication
/// between processes on this machine is negligible.
const ITERATION_MIN_MS: f64 = 100.0;
/// Maximum duration of all iterations together that this slowdown may cause.
const SLOWED_MAX_MS: f64 = 120_000.0;

/// Inputs of a replay.
pub(super) struct Replaying<'a> {
    pub(super) timed: &'a TimedReplay,
    pub(super) config: &'a ModelConfig,
    pub(super) capacity: &'a Capacity,
    pub(super) costs: &'a ServingCosts,
    pub(super) arrivals: &'a [Arrival],
    /// Maximum number of prompt rows in an iteration.
    pub(super) rows: u32,
}

impl Replaying<'_> {
    /// Simulates and replays the requests, and compares the results.
    ///
    /// # Errors
    /// Weights that stream, more requests than slots, workers that do not start, an interrupt,
    /// records that were lost, or a chart that cannot be written.
    pub(super) fn run(
        &self,
        chart: Option<&Path>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<TimedAnswer> {
        let policy = self.timed.policy;
        let sizes = self.sizes()?;
        let plan = timed_plan(self.config, sizes)?;
        let TimedServing { slots, device_slots, context, rows } = sizes;
        let limits = Limits::of_extents(rows, context, slots.into(), device_slots.into());
        let costs = self.costs.step_costs();
        let planned = simulate(policy, self.arrivals, &limits, &costs);
        let slow_motion = slow_motion(&planned);
        let options = LaunchOptions {
            cpus: Vec::new(),
            spin_us: 0,
            durations: Some(Durations::ByCosts { slow_motion }),
            ..Hardware::timed(true).launch(WeightsFrom::Dummy { seed: 0 })
        };
        let coming = |one: &Arrival| Coming {
            at: Duration::from_secs_f64(one.at_ms * f64::from(slow_motion) / 1e3),
            prompt_tokens: one.prompt_tokens,
            answer_tokens: one.answer_tokens,
        };
        let coming: Vec<Coming> = self.arrivals.iter().map(coming).collect();
        let deciding = Deciding { policy, limits, costs };
        let stop = || interrupt.is_requested();
        let seen = replay(&plan, &options, &deciding, &coming, &stop)?;
        if seen.lost > 0 {
            anyhow::bail!("{} records of the trace were lost; give fewer requests", seen.lost);
        }
        let measured = iterations(&plan, &seen);
        let simulated = self.followed((policy, &limits), &costs, &seen, &measured);
        if let Some(path) = chart {
            chart::write(path, &plan, (&seen, &measured), slow_motion)?;
        }
        let ms =
            |one: &Iteration| (one.ended_ns - one.begun_ns) as f64 / 1e6 / f64::from(slow_motion);
        let compared = simulated.iter().zip(&measured).map(|(simulated, found)| Compared {
            simulated: *simulated,
            shape: found.shape,
            rows: found.rows,
            measured_ms: ms(found),
        });
        Ok(TimedAnswer {
            policy,
            requests: self.arrivals.len(),
            device_slots: sizes.device_slots,
            slow_motion,
            ran: measured.len(),
            iterations: compared.collect(),
        })
    }

    /// Returns the simulated iterations, each of which considers only the requests offered before
    /// its measured counterpart was decided.
    fn followed(
        &self,
        (policy, limits): (Policy, &Limits),
        costs: &schedule::hybrid::StepCosts,
        seen: &Replayed,
        measured: &[Iteration],
    ) -> Vec<Ran> {
        let ms = |ns: u64| (ns - seen.begun_ns) as f64 / 1e6;
        let offered = self.arrivals.iter().zip(&seen.offered_ns);
        let offered = offered.map(|(one, at)| Arrival { at_ms: ms(*at), ..*one });
        let offered: Vec<Arrival> = offered.collect();
        let decided: Vec<f64> = measured.iter().map(|one| ms(one.decided_ns)).collect();
        follow(policy, &offered, limits, costs, &decided)
    }

    fn sizes(&self) -> anyhow::Result<TimedServing> {
        if self.capacity.streamed_bytes > 0 {
            let sentence = "--timed: the model's weights do not all have room on the device, and \
                            those that stream are not replayed; take a smaller model";
            return Err(Usage(sentence.to_owned()).into());
        }
        let slots = u16::try_from(self.arrivals.len())
            .map_err(|_| Usage("--timed: give at most 65535 --requests".to_owned()))?;
        let longest = self.arrivals.iter().map(|one| one.prompt_tokens + one.answer_tokens);
        let longest = longest.max().unwrap_or(1);
        let has_room = self.capacity.device_positions / u64::from(longest);
        let has_room = u16::try_from(has_room).unwrap_or(u16::MAX).max(1);
        let device_slots = self.timed.device_slots.unwrap_or(has_room).min(slots);
        // In addition to a prompt, an iteration holds the newest token of every slot.
        let rows = self.rows + u32::from(slots);
        Ok(TimedServing { slots, device_slots, context: longest, rows })
    }
}

/// Returns the factor by which time passes more slowly in the workers.
fn slow_motion(planned: &Served) -> u32 {
    let each = planned.iterations.iter().map(|one| one.times.total_ms);
    let (shortest_ms, all_ms) = (each.clone().fold(f64::INFINITY, f64::min), each.sum::<f64>());
    (ITERATION_MIN_MS / shortest_ms).min(SLOWED_MAX_MS / all_ms).ceil().max(1.0) as u32
}
