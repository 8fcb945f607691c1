//! The shape that is best by the duration of an iteration, regardless of the papers' rules.

use super::apex::async_only;
use super::costs::LayerCosts;
use super::host_rows::has_deferred_rows;
use super::iteration::{HostDecision, Iteration, IterationShape};
use super::iteration_builder::{AdmittedPrompts, IterationBuilder};
use super::neo::{batch_shape, fill_two_batches, finish, gpu_only, neo};
use super::queues::{DeferredRows, IterationLimits, QueuedSequence, Queues};
use super::work::{IterationTimes, IterationWork};

/// Ratio above which a schedule does not count as worse: what it begins pays off later.
const TIE_RATIO: f64 = 0.999;

/// Chooses the schedule with the most useful work per time, including streamed weights and all
/// transfers: one batch on the device, NEO's choice, two batches, and deferred rows. If another
/// schedule is better than these but deferred rows cannot join it, they finish their tokens first.
pub(super) fn auto<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    decisions: &mut [HostDecision],
) -> Iteration {
    let mut best = (f64::NEG_INFINITY, Schedule::ALL[0]);
    let may_defer = limits.deferred_rows != DeferredRows::Never;
    let may_run = |schedule: &Schedule| may_defer || !matches!(schedule, Schedule::Deferred);
    for schedule in Schedule::ALL.into_iter().filter(may_run) {
        let iteration = schedule.run(queues, limits, costs, decisions);
        let useful_rate =
            useful_work_per_ms(&iteration, queues, limits.deferred_rows, decisions, costs);
        if useful_rate >= best.0 * TIE_RATIO {
            best = (useful_rate.max(best.0), schedule);
        }
    }
    let is_deferred = matches!(best.1, Schedule::Deferred);
    if !is_deferred && limits.deferred_rows == DeferredRows::AnyLayer && has_deferred_rows(queues) {
        return async_only(queues, limits, costs, false, decisions);
    }
    best.1.run(queues, limits, costs, decisions)
}

#[derive(Debug, Clone, Copy)]
enum Schedule {
    Gpu,
    Neo,
    TwoBatches,
    Deferred,
}

impl Schedule {
    const ALL: [Schedule; 4] =
        [Schedule::Gpu, Schedule::Neo, Schedule::TwoBatches, Schedule::Deferred];

    fn run<C: LayerCosts>(
        self,
        queues: &Queues<'_>,
        limits: &IterationLimits,
        costs: &C,
        decisions: &mut [HostDecision],
    ) -> Iteration {
        match self {
            Schedule::Gpu => gpu_only(queues, limits, costs, decisions),
            Schedule::Neo => neo(queues, limits, costs, decisions),
            Schedule::TwoBatches => {
                let intake =
                    IterationBuilder::new(queues, limits, costs, AdmittedPrompts::Both, decisions);
                let intake = fill_two_batches(intake, decisions);
                finish(intake, batch_shape(&intake), decisions)
            }
            Schedule::Deferred => async_only(queues, limits, costs, true, decisions),
        }
    }
}

/// Returns useful work per millisecond of the iteration, in terms of the device alone: for a token
/// the time that it takes in an iteration of the device's decodes, for a prompt the time that it
/// adds to one. A deferred row counts as a layer's share of a token.
fn useful_work_per_ms(
    iteration: &Iteration,
    queues: &Queues<'_>,
    deferred_rows: DeferredRows,
    decisions: &[HostDecision],
    costs: &impl LayerCosts,
) -> f64 {
    let work = IterationWork::compute(iteration, queues, deferred_rows, decisions, costs);
    let times = IterationTimes::compute(&work, iteration.shape, costs);
    let prefills = iteration.prefills(queues);
    let decode_ms = decode_ms(queues, costs);
    let layers = f64::from(costs.layers());
    let prompts_ms = prefills.iter().map(|one| {
        let linear_ms = costs.linear_ms(one.tokens + 1) - costs.linear_ms(1);
        layers * (linear_ms + costs.prefill_attention_ms(one.tokens))
    });
    // A token's first part and its last, around attention of the first and the last layer, are in
    // separate iterations.
    let deferred = f64::from(work.deferred.sequences) / (layers + 1.0);
    let decodes = f64::from(work.tokens) - prefills.len() as f64 + deferred;
    let use_ms = prompts_ms.sum::<f64>() + decodes * decode_ms;
    if times.total_ms > 0.0 { use_ms / times.total_ms } else { 0.0 }
}

/// Returns the time per token if the device alone decodes, in ms; without sequences, that of a
/// single token.
fn decode_ms(queues: &Queues<'_>, costs: &impl LayerCosts) -> f64 {
    let alone = [QueuedSequence { id: 0, tokens: 1, layer: 0, idle_iterations: 0 }];
    let device = if queues.device.is_empty() { &alone } else { queues.device };
    let mut work = IterationWork::default();
    for one in device {
        work.rows[0] += 1;
        work.device_positions += u64::from(one.tokens);
        work.tokens += 1;
        work.samples += 1;
    }
    IterationTimes::compute(&work, IterationShape::Gpu, costs).total_ms / device.len() as f64
}
