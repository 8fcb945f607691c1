//! The shape that is best by the duration of an iteration, regardless of the papers' rules.

use super::apex::async_only;
use super::costs::LayerCosts;
use super::host_rows::lag;
use super::intake::{Intake, Prompts};
use super::iteration::{Iteration, Place, Shape};
use super::neo::{finished, gpu_only, neo, shape, two_batches};
use super::queues::{Lags, Limits, Queued, Queues};
use super::work::{Times, Work};

/// Ratio above which a schedule does not count as worse: what it begins pays off later.
const AS_GOOD: f64 = 0.999;

/// Chooses the schedule with the most useful work per time, including streamed weights and all
/// transfers: one batch on the device, NEO's choice, two batches, and deferred rows. If another
/// schedule is better than these but deferred rows cannot join it, they finish their tokens first.
pub(super) fn auto<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    places: &mut [Place],
) -> Iteration {
    let mut best = (f64::NEG_INFINITY, Schedule::ALL[0]);
    let lags = limits.lags != Lags::Never;
    let may_run = |schedule: &Schedule| lags || !matches!(schedule, Schedule::Lagging);
    for schedule in Schedule::ALL.into_iter().filter(may_run) {
        let iteration = schedule.run(queues, limits, costs, places);
        let use_of_it = use_per_ms(&iteration, (queues, limits.lags), places, costs);
        if use_of_it >= best.0 * AS_GOOD {
            best = (use_of_it.max(best.0), schedule);
        }
    }
    let is_lagging = matches!(best.1, Schedule::Lagging);
    if !is_lagging && limits.lags == Lags::Apart && lag(queues) {
        return async_only(queues, limits, costs, false, places);
    }
    best.1.run(queues, limits, costs, places)
}

#[derive(Debug, Clone, Copy)]
enum Schedule {
    Gpu,
    Neo,
    TwoBatches,
    Lagging,
}

impl Schedule {
    const ALL: [Schedule; 4] =
        [Schedule::Gpu, Schedule::Neo, Schedule::TwoBatches, Schedule::Lagging];

    fn run<C: LayerCosts>(
        self,
        queues: &Queues<'_>,
        limits: &Limits,
        costs: &C,
        places: &mut [Place],
    ) -> Iteration {
        match self {
            Schedule::Gpu => gpu_only(queues, limits, costs, places),
            Schedule::Neo => neo(queues, limits, costs, places),
            Schedule::TwoBatches => {
                let intake = Intake::of(queues, limits, costs, Prompts::Both, places);
                let intake = two_batches(intake, places);
                finished(intake, shape(&intake), places)
            }
            Schedule::Lagging => async_only(queues, limits, costs, true, places),
        }
    }
}

/// Returns useful work per millisecond of the iteration, in terms of the device alone: for a token
/// the time that it takes in an iteration of the device's decodes, for a prompt the time that it
/// adds to one. A deferred row counts as a layer's share of a token.
fn use_per_ms(
    iteration: &Iteration,
    (queues, lags): (&Queues<'_>, Lags),
    places: &[Place],
    costs: &impl LayerCosts,
) -> f64 {
    let work = Work::of(iteration, queues, lags, places, costs);
    let times = Times::of(&work, iteration.shape, costs);
    let prefills = iteration.prefills(queues);
    let decode_ms = decode_ms(queues, costs);
    let layers = f64::from(costs.layers());
    let prompts_ms = prefills.iter().map(|one| {
        let linear_ms = costs.linear_ms(one.tokens + 1) - costs.linear_ms(1);
        layers * (linear_ms + costs.prefill_attention_ms(one.tokens))
    });
    // A token's first part and its last, around attention of the first and the last layer, are in
    // separate iterations.
    let lagging = f64::from(work.lagging.sequences) / (layers + 1.0);
    let decodes = f64::from(work.tokens) - prefills.len() as f64 + lagging;
    let use_ms = prompts_ms.sum::<f64>() + decodes * decode_ms;
    if times.total_ms > 0.0 { use_ms / times.total_ms } else { 0.0 }
}

/// Returns the time per token if the device alone decodes, in ms; without sequences, that of a
/// single token.
fn decode_ms(queues: &Queues<'_>, costs: &impl LayerCosts) -> f64 {
    let alone = [Queued { id: 0, tokens: 1, layer: 0, waited: 0 }];
    let device = if queues.device.is_empty() { &alone } else { queues.device };
    let mut work = Work::default();
    for one in device {
        work.rows[0] += 1;
        work.device_positions += u64::from(one.tokens);
        work.tokens += 1;
        work.samples += 1;
    }
    Times::of(&work, Shape::Gpu, costs).total_ms / device.len() as f64
}
