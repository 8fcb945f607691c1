//! Which of the host's sequences are computed, and in which batch: NEO's step 4, and the rule for
//! an idle device.

use super::costs::LayerCosts;
use super::intake::Intake;
use super::iteration::Place;
use super::queues::{Lags, Queued, Queues};

/// Places the host's sequences where the host has time for them: in order, each into the batch with
/// more remaining time, the second to begin with. A sequence that does not fit is skipped, and so
/// are all later ones of at least the same length.
///
/// Deferred rows come first, if they may leave their layer, and only into the second batch, whose
/// linears before that layer they skip.
pub(super) fn fill<C: LayerCosts>(intake: &mut Intake<'_, '_, C>, places: &mut [Place]) {
    let mut batch = 1;
    let mut shortest_too_long = u32::MAX;
    for lags in [true, false] {
        let with_host = intake.iteration.with_host(intake.queues());
        for (one, place) in with_host.zip(places.iter_mut()) {
            let is_open = *place == Place::Waits && (one.layer > 0) == lags && joins(intake, one);
            if !is_open || one.tokens >= shortest_too_long || intake.rows_left() == 0 {
                continue;
            }
            if !intake.has_host_room(one) {
                continue;
            }
            let batch_of_it = if lags { 1 } else { batch };
            let with = intake.batches.with_host_decode(batch_of_it, one.tokens);
            if !with.is_hidden() {
                shortest_too_long = one.tokens;
                continue;
            }
            intake.batches = with;
            intake.grow(one);
            *place = [Place::First, Place::Second][batch_of_it];
            batch = usize::from(with.slack_ms(1) > with.slack_ms(0));
        }
    }
}

/// Places all of the host's sequences into both batches, each where the host has less work: the
/// device has no work that could hide them. If the host has no capacity for any of them to grow,
/// the last ones lose their caches, until the first one fits.
pub(super) fn fill_without_device<C: LayerCosts>(
    intake: &mut Intake<'_, '_, C>,
    places: &mut [Place],
) {
    let mut with_host = intake.iteration.with_host(intake.queues());
    let Some(first) = with_host.find(|one| joins(intake, one)) else { return };
    let is_open =
        |intake: &Intake<'_, '_, C>, one: &Queued| joins(intake, one) && intake.has_host_room(one);
    let mut with_host = intake.iteration.with_host(intake.queues());
    if !with_host.any(|one| is_open(intake, one)) {
        let count = intake.iteration.host_sequences(intake.queues());
        for index in (0..count).rev() {
            if is_open(intake, first) {
                break;
            }
            let last = intake.iteration.with_host(intake.queues()).nth(index);
            if last.is_some_and(|last| last.id == first.id) {
                continue;
            }
            intake.host_pages -= last.map_or(0, |last| intake.held(last));
            places[index] = Place::Evicted;
        }
    }
    let with_host = intake.iteration.with_host(intake.queues());
    for (one, place) in with_host.zip(places.iter_mut()) {
        if *place != Place::Waits || intake.rows_left() == 0 || !is_open(intake, one) {
            continue;
        }
        let host = intake.batches.host;
        let batch = usize::from(one.layer > 0 || host[1].positions <= host[0].positions);
        intake.batches = intake.batches.with_host_decode(batch, one.tokens);
        intake.grow(one);
        *place = [Place::First, Place::Second][batch];
    }
}

/// Reverts the effect of [`fill`].
pub(super) fn clear(places: &mut [Place]) {
    for place in places.iter_mut().filter(|place| **place != Place::MovesIn) {
        *place = Place::Waits;
    }
}

/// Returns true if any row is deferred.
pub(super) fn lag(queues: &Queues<'_>) -> bool {
    queues.host.iter().any(|one| one.layer > 0)
}

/// Returns true if a sequence can be in one of two batches.
fn joins<C: LayerCosts>(intake: &Intake<'_, '_, C>, one: &Queued) -> bool {
    one.layer == 0 || intake.limits().lags == Lags::Together
}
