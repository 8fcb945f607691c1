//! Which of the host's rows advance by a layer in asynchronous overlap.

use super::batches::AttentionLoad;
use super::costs::LayerCosts;
use super::host_rows::has_deferred_rows;
use super::iteration::HostDecision;
use super::iteration_builder::IterationBuilder;
use super::queues::{DeferredRows, QueuedSequence};

/// Advances deferred rows and, if `may_start`, starts others for which the host can compute
/// attention within the iteration's time in ms: if all deferred rows advance together, once none
/// remain; otherwise whenever they [keep pace](keeps_pace).
pub(super) fn advance_deferred<C: LayerCosts>(
    builder: &mut IterationBuilder<'_, '_, C>,
    window_ms: f64,
    may_start: bool,
    decisions: &mut [HostDecision],
) {
    let (costs, deferred_rows) = (builder.costs(), builder.limits().deferred_rows);
    let may_start = may_start
        && (deferred_rows == DeferredRows::AnyLayer || !has_deferred_rows(builder.queues()));
    let count = builder.iteration.host_sequences(builder.queues());
    let mut load = AttentionLoad::default();
    for may_start in if may_start { &[false, true][..] } else { &[false] } {
        for index in 0..count {
            let Some(one) = builder.iteration.with_host(builder.queues()).nth(index) else {
                return;
            };
            let rows_left = builder.remaining_rows().saturating_sub(load.sequences);
            let is_open = decisions[index] == HostDecision::Waits && (one.layer == 0) == *may_start;
            if !is_open || rows_left == 0 || !builder.has_host_capacity(one) {
                continue;
            }
            let is_in_time = match deferred_rows {
                _ if !may_start => true,
                DeferredRows::AnyLayer => keeps_pace(builder, one, window_ms, decisions),
                DeferredRows::Never | DeferredRows::SameLayer => {
                    load.with(one.tokens).ms(costs) + costs.launch_ms() <= window_ms
                }
            };
            if !is_in_time {
                break;
            }
            load = load.with(one.tokens);
            builder.reserve_host_pages(one);
            decisions[index] = HostDecision::Deferred;
        }
    }
}

/// Returns true if the host can attend for one more row that starts: for deferred rows close to the
/// first layer it has as much time as the layers that they have completed. The host is never late
/// if rows are spread over the layers. If no row is close, a row may start however long it takes.
fn keeps_pace<C: LayerCosts>(
    builder: &IterationBuilder<'_, '_, C>,
    one: &QueuedSequence,
    window_ms: f64,
    decisions: &[HostDecision],
) -> bool {
    let costs = builder.costs();
    let layer_ms = window_ms / f64::from(costs.layers().max(1));
    let deferred = || {
        let with_host = builder.iteration.with_host(builder.queues()).zip(decisions);
        with_host.filter(|(_, place)| **place == HostDecision::Deferred).map(|(other, _)| other)
    };
    // Layer by layer, from the nearest.
    let (mut load, mut near, mut launches) = (AttentionLoad::default().with(one.tokens), None, 1.0);
    loop {
        let further = deferred().map(|other| other.layer).filter(|layer| near < Some(*layer));
        let Some(layer) = further.min() else { return true };
        let there = deferred().filter(|other| other.layer == layer);
        load = there.fold(load, |load, other| load.with(other.tokens));
        launches += if layer > 0 { 1.0 } else { 0.0 };
        if load.ms(costs) + launches * costs.launch_ms() > f64::from(layer + 1) * layer_ms {
            return false;
        }
        near = Some(layer);
    }
}
