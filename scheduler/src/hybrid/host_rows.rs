//! Which of the host's sequences are computed, and in which batch: NEO's step 4, and the rule for
//! an idle device.

use super::costs::LayerCosts;
use super::iteration::HostDecision;
use super::iteration_builder::IterationBuilder;
use super::queues::{DeferredRows, QueuedSequence, Queues};

/// Places the host's sequences where the host has time for them: in order, each into the batch with
/// more remaining time, the second to begin with. A sequence that does not fit is skipped, and so
/// are all later ones of at least the same length.
///
/// Deferred rows come first, if they may leave their layer, and only into the second batch, whose
/// linears before that layer they skip.
pub(super) fn place_host_rows<C: LayerCosts>(
    builder: &mut IterationBuilder<'_, '_, C>,
    decisions: &mut [HostDecision],
) {
    let mut batch = 1;
    let mut shortest_too_long = u32::MAX;
    for is_deferred in [true, false] {
        let with_host = builder.iteration.with_host(builder.queues());
        for (one, place) in with_host.zip(decisions.iter_mut()) {
            let is_open = *place == HostDecision::Waits
                && (one.layer > 0) == is_deferred
                && can_join_batch(builder, one);
            if !is_open || one.tokens >= shortest_too_long || builder.remaining_rows() == 0 {
                continue;
            }
            if !builder.has_host_capacity(one) {
                continue;
            }
            let target_batch = if is_deferred { 1 } else { batch };
            let with = builder.batches.with_host_decode(target_batch, one.tokens);
            if !with.is_hidden() {
                shortest_too_long = one.tokens;
                continue;
            }
            builder.batches = with;
            builder.reserve_host_pages(one);
            *place = [HostDecision::FirstBatch, HostDecision::SecondBatch][target_batch];
            batch = usize::from(with.slack_ms(1) > with.slack_ms(0));
        }
    }
}

/// Places all of the host's sequences into both batches, each where the host has less work: the
/// device has no work that could hide them. If the host has no capacity for any of them to grow,
/// the last ones lose their caches, until the first one fits.
pub(super) fn place_without_device<C: LayerCosts>(
    builder: &mut IterationBuilder<'_, '_, C>,
    decisions: &mut [HostDecision],
) {
    let mut with_host = builder.iteration.with_host(builder.queues());
    let Some(first) = with_host.find(|one| can_join_batch(builder, one)) else { return };
    let is_open = |builder: &IterationBuilder<'_, '_, C>, one: &QueuedSequence| {
        can_join_batch(builder, one) && builder.has_host_capacity(one)
    };
    let mut with_host = builder.iteration.with_host(builder.queues());
    if !with_host.any(|one| is_open(builder, one)) {
        let count = builder.iteration.host_sequences(builder.queues());
        for index in (0..count).rev() {
            if is_open(builder, first) {
                break;
            }
            let last = builder.iteration.with_host(builder.queues()).nth(index);
            if last.is_some_and(|last| last.id == first.id) {
                continue;
            }
            builder.host_pages -= last.map_or(0, |last| builder.held_pages(last));
            decisions[index] = HostDecision::Evicted;
        }
    }
    let with_host = builder.iteration.with_host(builder.queues());
    for (one, place) in with_host.zip(decisions.iter_mut()) {
        if *place != HostDecision::Waits || builder.remaining_rows() == 0 || !is_open(builder, one)
        {
            continue;
        }
        let host = builder.batches.host;
        let batch = usize::from(one.layer > 0 || host[1].positions <= host[0].positions);
        builder.batches = builder.batches.with_host_decode(batch, one.tokens);
        builder.reserve_host_pages(one);
        *place = [HostDecision::FirstBatch, HostDecision::SecondBatch][batch];
    }
}

/// Reverts the effect of [`place_host_rows`].
pub(super) fn reset_decisions(decisions: &mut [HostDecision]) {
    for place in decisions.iter_mut().filter(|place| **place != HostDecision::MovesIn) {
        *place = HostDecision::Waits;
    }
}

/// Returns true if any row is deferred.
pub(super) fn has_deferred_rows(queues: &Queues<'_>) -> bool {
    queues.host.iter().any(|one| one.layer > 0)
}

/// Returns true if a sequence can be in one of two batches.
fn can_join_batch<C: LayerCosts>(
    builder: &IterationBuilder<'_, '_, C>,
    one: &QueuedSequence,
) -> bool {
    one.layer == 0 || builder.limits().deferred_rows == DeferredRows::SameLayer
}
