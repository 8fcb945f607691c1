//! The shape that is best by the time that an iteration takes, whatever the papers' rules say.

use super::apex::async_only;
use super::costs::LayerCosts;
use super::host_rows::lag;
use super::intake::{Intake, Prompts};
use super::iteration::{Iteration, Place, Shape};
use super::neo::{finished, gpu_only, neo, shape, two_batches};
use super::queues::{Lags, Limits, Queued, Queues};
use super::work::{Times, Work};

/// A schedule that is so much worse than another is not: what it begins pays later.
const AS_GOOD: f64 = 0.999;

/// Of all schedules the one that is most use in a time, weights that stream and all transfers
/// counted: one batch on the device, NEO's choice, two batches, and rows that lag. Where another is
/// better than these but some lag that can join it nowhere, they finish their tokens first.
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

/// What the device alone would take for what an iteration computes, in the iteration's time: for a
/// token what it takes for each in an iteration of its decodes, for a prompt what that adds to one.
/// A row that lags is a layer's share of a token.
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
    // iterations of their own.
    let lagging = f64::from(work.lagging.sequences) / (layers + 1.0);
    let decodes = f64::from(work.tokens) - prefills.len() as f64 + lagging;
    let use_ms = prompts_ms.sum::<f64>() + decodes * decode_ms;
    if times.total_ms > 0.0 { use_ms / times.total_ms } else { 0.0 }
}

/// What a token takes where the device alone decodes, ms; with nobody there, a token by itself.
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
