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
    CacheCapacity, ExecutedIteration, RequestArrival, ServingCosts, ServingResults,
    TimedServerSize, replay_decisions, simulate, timed_plan,
};
use protocol::messages::{TimedDurations, WeightsOrigin};
use protocol::table::HybridPolicy;
use scheduler::hybrid::{IterationLimits, SchedulingPolicy};

use crate::request::TimedReplay;
use engine::launch::LaunchOptions;
use engine::replay::{ReplayRequest, ReplayTrace, replay};
use iterations::{MeasuredIteration, group_iterations};
use session::argument_error::ArgumentError;
use session::hardware::Hardware;
use session::interrupt::Interrupt;
use show::{IterationComparison, TimedReplayOutput};

/// Minimum duration of the shortest iteration in the workers, so that the cost of communication
/// between processes on this machine is negligible.
const MIN_ITERATION_MS: f64 = 100.0;
/// Maximum duration of all iterations together that this slowdown may cause.
const MAX_SLOWED_MS: f64 = 120_000.0;

/// Inputs of a replay.
pub(super) struct ServingReplay<'a> {
    pub(super) timed: &'a TimedReplay,
    pub(super) config: &'a ModelConfig,
    pub(super) capacity: &'a CacheCapacity,
    pub(super) costs: &'a ServingCosts,
    pub(super) arrivals: &'a [RequestArrival],
    /// Maximum number of prompt rows in an iteration.
    pub(super) rows: u32,
}

impl ServingReplay<'_> {
    /// Simulates and replays the requests, and compares the results.
    ///
    /// # Errors
    /// Weights that stream, more requests than slots, workers that do not start, an interrupt,
    /// records that were lost, or a chart that cannot be written.
    pub(super) fn run(
        &self,
        chart: Option<&Path>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<TimedReplayOutput> {
        let policy = self.timed.policy;
        let sizes = self.replay_sizes()?;
        let plan = timed_plan(self.config, sizes)?;
        let TimedServerSize { slots, device_slots, context, rows } = sizes;
        let limits =
            IterationLimits::from_extents(rows, context, slots.into(), device_slots.into());
        let costs = self.costs.step_costs();
        let planned = simulate(policy, self.arrivals, &limits, &costs);
        let slow_motion = slow_motion_factor(&planned);
        let options = LaunchOptions {
            cpus: Vec::new(),
            spin_us: 0,
            durations: Some(TimedDurations::ByCosts { slow_motion }),
            ..Hardware::timed(true).launch_options(WeightsOrigin::Dummy { seed: 0 })
        };
        let to_coming = |arrival: &RequestArrival| ReplayRequest {
            arrival: Duration::from_secs_f64(arrival.at_ms * f64::from(slow_motion) / 1e3),
            prompt_tokens: arrival.prompt_tokens,
            answer_tokens: arrival.answer_tokens,
        };
        let coming: Vec<ReplayRequest> = self.arrivals.iter().map(to_coming).collect();
        let deciding = HybridPolicy { policy, limits, costs };
        let stop = || interrupt.is_requested();
        let seen = replay(&plan, &options, &deciding, &coming, &stop)?;
        if seen.lost_records > 0 {
            anyhow::bail!(
                "{} records of the trace were lost; use fewer --requests",
                seen.lost_records
            );
        }
        let measured = group_iterations(&plan, &seen);
        let simulated = self.simulate_as_measured(policy, &limits, &costs, &seen, &measured);
        if let Some(path) = chart {
            chart::write(path, &plan, &seen, &measured, slow_motion)?;
        }
        let ms = |iteration: &MeasuredIteration| {
            (iteration.ended_ns - iteration.begun_ns) as f64 / 1e6 / f64::from(slow_motion)
        };
        let comparisons =
            simulated.iter().zip(&measured).map(|(simulated, found)| IterationComparison {
                simulated: *simulated,
                shape: found.shape,
                rows: found.rows,
                measured_ms: ms(found),
            });
        Ok(TimedReplayOutput {
            policy,
            requests: self.arrivals.len(),
            device_slots: sizes.device_slots,
            slow_motion,
            ran: measured.len(),
            iterations: comparisons.collect(),
        })
    }

    /// Returns the simulated iterations, each of which considers only the requests offered before
    /// its measured counterpart was decided.
    fn simulate_as_measured(
        &self,
        policy: SchedulingPolicy,
        limits: &IterationLimits,
        costs: &scheduler::hybrid::StepCosts,
        seen: &ReplayTrace,
        measured: &[MeasuredIteration],
    ) -> Vec<ExecutedIteration> {
        let ms = |ns: u64| (ns - seen.start_ns) as f64 / 1e6;
        let offered = self.arrivals.iter().zip(&seen.offered_ns);
        let offered = offered.map(|(arrival, at)| RequestArrival { at_ms: ms(*at), ..*arrival });
        let offered: Vec<RequestArrival> = offered.collect();
        let decided: Vec<f64> = measured.iter().map(|iteration| ms(iteration.decided_ns)).collect();
        replay_decisions(policy, &offered, limits, costs, &decided)
    }

    fn replay_sizes(&self) -> anyhow::Result<TimedServerSize> {
        if self.capacity.streamed_bytes > 0 {
            let sentence = "--timed: the weights do not fit in device memory, and a replay does \
                            not support streamed weights; use a smaller model";
            return Err(ArgumentError(sentence.to_owned()).into());
        }
        let slots = u16::try_from(self.arrivals.len())
            .map_err(|_| ArgumentError("--timed supports at most 65535 --requests".to_owned()))?;
        let longest =
            self.arrivals.iter().map(|arrival| arrival.prompt_tokens + arrival.answer_tokens);
        let longest = longest.max().unwrap_or(1);
        let fitting_slots = self.capacity.device_positions / u64::from(longest);
        let fitting_slots = u16::try_from(fitting_slots).unwrap_or(u16::MAX).max(1);
        let device_slots = self.timed.device_slots.unwrap_or(fitting_slots).min(slots);
        // In addition to a prompt, an iteration holds the newest token of every slot.
        let rows = self.rows + u32::from(slots);
        Ok(TimedServerSize { slots, device_slots, context: longest, rows })
    }
}

/// Returns the factor by which time passes more slowly in the workers.
fn slow_motion_factor(planned: &ServingResults) -> u32 {
    let each = planned.iterations.iter().map(|iteration| iteration.times.total_ms);
    let (shortest_ms, all_ms) = (each.clone().fold(f64::INFINITY, f64::min), each.sum::<f64>());
    (MIN_ITERATION_MS / shortest_ms).min(MAX_SLOWED_MS / all_ms).ceil().max(1.0) as u32
}
