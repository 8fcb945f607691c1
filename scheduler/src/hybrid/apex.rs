//! APEX's scheduler (Fan et al., 2025, algorithm 1).

use super::batches::AttentionLoad;
use super::costs::LayerCosts;
use super::deferred_rows::advance_deferred;
use super::host_rows::{has_deferred_rows, place_host_rows, reset_decisions};
use super::iteration::{HostDecision, Iteration, IterationShape};
use super::iteration_builder::{AdmittedPrompts, IterationBuilder};
use super::neo::{batch_shape, finish};
use super::queues::{DeferredRows, IterationLimits, Queues};

/// Two batches if inequality (5) holds, or if deferred rows are not permitted; otherwise
/// asynchronous overlap.
pub(super) fn apex<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    decisions: &mut [HostDecision],
) -> Iteration {
    let mut builder =
        IterationBuilder::new(queues, limits, costs, AdmittedPrompts::Both, decisions);
    let decode = Decode::of(&builder, costs);
    limit_host_prefills(&mut builder, &decode, costs, decisions);
    if host_load(&builder, decisions).sequences == 0 {
        return finish(builder, IterationShape::Gpu, decisions);
    }
    let mut may_start = true;
    if limits.deferred_rows == DeferredRows::Never
        || decode.pipelining_pays(&builder, decisions, costs)
    {
        let mut two = builder;
        place_host_rows(&mut two, decisions);
        let is_pipelined = batch_shape(&two) == IterationShape::Pipelined;
        // Two batches wait for deferred rows that can join neither of them.
        let is_free = limits.deferred_rows != DeferredRows::AnyLayer || !has_deferred_rows(queues);
        if limits.deferred_rows == DeferredRows::Never || (is_pipelined && is_free) {
            return finish(two, batch_shape(&two), decisions);
        }
        may_start = !is_pipelined;
        reset_decisions(decisions);
    }
    schedule_deferred(builder, &decode, may_start, decisions)
}

/// Asynchronous overlap regardless of (5); `may_start` permits rows that are not deferred yet.
pub(super) fn async_only<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    may_start: bool,
    decisions: &mut [HostDecision],
) -> Iteration {
    let mut builder =
        IterationBuilder::new(queues, limits, costs, AdmittedPrompts::Both, decisions);
    let decode = Decode::of(&builder, costs);
    limit_host_prefills(&mut builder, &decode, costs, decisions);
    schedule_deferred(builder, &decode, may_start, decisions)
}

fn schedule_deferred<C: LayerCosts>(
    mut builder: IterationBuilder<'_, '_, C>,
    decode: &Decode,
    may_start: bool,
    decisions: &mut [HostDecision],
) -> Iteration {
    // Without work on the device that could hide attention, layer by layer would only take longer.
    let has_device = builder.batches.requests > 0;
    let can_advance = has_device || builder.limits().deferred_rows == DeferredRows::AnyLayer;
    if can_advance && !builder.queues().is_late {
        let window_ms = decode.iteration_ms(builder.costs());
        advance_deferred(&mut builder, window_ms, may_start && has_device, decisions);
    }
    let has_deferred =
        has_deferred_rows(builder.queues()) || decisions.contains(&HostDecision::Deferred);
    let shape = if has_deferred { IterationShape::Async } else { IterationShape::Gpu };
    finish(builder, shape, decisions)
}

/// Decodes of the device, without prompts, in ms per layer.
struct Decode {
    linear_ms: f64,
    attention_ms: f64,
    positions: u64,
}

impl Decode {
    fn of<C: LayerCosts>(builder: &IterationBuilder<'_, '_, C>, costs: &C) -> Decode {
        let batches = &builder.batches;
        let prefills = builder.iteration.prefills(builder.queues());
        let rows = batches.rows[0] - prefills.iter().map(|one| one.tokens).sum::<u32>();
        Decode {
            linear_ms: costs.linear_ms(rows),
            attention_ms: costs.device_decode_ms(batches.device_positions),
            positions: batches.device_positions,
        }
    }

    /// Returns the duration of a whole iteration with only these decodes.
    fn iteration_ms<C: LayerCosts>(&self, costs: &C) -> f64 {
        f64::from(costs.layers()) * (self.linear_ms + self.attention_ms)
    }

    /// Evaluates inequality (5): positions that both sides attend to in a given time, with two
    /// batches against one. With prompts the host has more time, as in algorithm 1.
    fn pipelining_pays<C: LayerCosts>(
        &self,
        builder: &IterationBuilder<'_, '_, C>,
        decisions: &[HostDecision],
        costs: &C,
    ) -> bool {
        let host = host_load(builder, decisions);
        let host_rate = host.positions as f64 / host.ms(costs);
        let cycle_ms = 2.0 * self.linear_ms + self.attention_ms;
        // Everything that the device does, including prompts, and the linears of decode once more.
        let window_ms = builder.batches.device_ms() + self.linear_ms;
        let positions = self.positions as f64;
        let both = (positions + host_rate * window_ms) / cycle_ms;
        both > positions / (self.linear_ms + self.attention_ms)
    }
}

/// Returns the load of all sequences that stay with the host.
fn host_load<C: LayerCosts>(
    builder: &IterationBuilder<'_, '_, C>,
    decisions: &[HostDecision],
) -> AttentionLoad {
    let with_host = builder.iteration.with_host(builder.queues()).zip(decisions);
    let stays = with_host.filter(|(_, place)| **place != HostDecision::MovesIn);
    stays.fold(AttentionLoad::default(), |load, (one, _)| load.with(one.tokens))
}

/// Admits prompts for the host as long as it can attend to all of its sequences within an iteration
/// of the device's decodes, a layer of each: more would only wait. If there are no other sequences,
/// one is admitted.
fn limit_host_prefills<C: LayerCosts>(
    builder: &mut IterationBuilder<'_, '_, C>,
    decode: &Decode,
    costs: &C,
    decisions: &[HostDecision],
) {
    let window_ms = decode.iteration_ms(costs);
    let current = host_load(builder, decisions);
    while builder.iteration.host_prefills > 0 {
        let leaving = builder.iteration.prefills_to_host(builder.queues());
        let load = leaving.iter().fold(current, |load, one| load.with(one.tokens));
        let is_alone = builder.batches.requests == 1 && current.sequences == 0;
        if load.ms(costs) <= window_ms || is_alone {
            break;
        }
        builder.drop_host_prefill();
    }
}
