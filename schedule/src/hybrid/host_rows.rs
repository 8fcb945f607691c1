//! Which of the host's sequences are computed, and in which batch: NEO's step 4, and what is done
//! where the device has nothing to do.

use super::batches::Load;
use super::costs::LayerCosts;
use super::intake::Intake;
use super::iteration::Place;
use super::queues::Queued;

/// Puts the host's sequences where the host has time for them: in order, each into the batch beside
/// which more is left, the second to begin with. Whoever does not fit is passed over, and so are
/// all later ones that are as long.
///
/// Those that lag come first, and only into the second batch, whose linears before their layer
/// they then leave out.
pub(super) fn fill<C: LayerCosts>(intake: &mut Intake<'_, '_, C>, places: &mut [Place]) {
    let mut batch = 1;
    let mut shortest_too_long = u32::MAX;
    for lags in [true, false] {
        let with_host = intake.iteration.with_host(intake.queues());
        for (one, place) in with_host.zip(places.iter_mut()) {
            let is_open = *place == Place::Waits && (one.layer > 0) == lags;
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

/// Puts all of the host's sequences into both batches, each where the host has less to do: the
/// device has nothing to do beside which they could hide. Where the host has no room for any of
/// them to grow, the last lose their caches, until the first has it.
pub(super) fn fill_without_device<C: LayerCosts>(
    intake: &mut Intake<'_, '_, C>,
    places: &mut [Place],
) {
    let Some(first) = intake.iteration.with_host(intake.queues()).next() else { return };
    let is_open = |intake: &Intake<'_, '_, C>, one: &Queued| intake.has_host_room(one);
    let mut with_host = intake.iteration.with_host(intake.queues());
    if !with_host.any(|one| is_open(intake, one)) {
        let count = intake.iteration.host_sequences(intake.queues());
        for index in (1..count).rev() {
            if is_open(intake, first) {
                break;
            }
            let last = intake.iteration.with_host(intake.queues()).nth(index);
            intake.host_pages -= last.map_or(0, |last| intake.held(last));
            places[index] = Place::Evicted;
        }
    }
    let with_host = intake.iteration.with_host(intake.queues());
    for (one, place) in with_host.zip(places.iter_mut()) {
        if *place != Place::Waits || intake.rows_left() == 0 || !intake.has_host_room(one) {
            continue;
        }
        let host = intake.batches.host;
        let batch = usize::from(one.layer > 0 || host[1].positions <= host[0].positions);
        intake.batches = intake.batches.with_host_decode(batch, one.tokens);
        intake.grow(one);
        *place = [Place::First, Place::Second][batch];
    }
}

/// Takes back what [`fill`] did.
pub(super) fn clear(places: &mut [Place]) {
    for place in places.iter_mut().filter(|place| **place != Place::MovesIn) {
        *place = Place::Waits;
    }
}

/// Lets those go on that lag; if none does, the first as many for which the host attends within a
/// time, ms.
pub(super) fn fill_lagging<C: LayerCosts>(
    intake: &mut Intake<'_, '_, C>,
    costs: &C,
    window_ms: f64,
    places: &mut [Place],
) {
    let goes_on = intake.queues().host.iter().any(|one| one.layer > 0);
    let mut load = Load::default();
    let with_host = intake.iteration.with_host(intake.queues());
    for (one, place) in with_host.zip(places.iter_mut()) {
        let is_open = *place == Place::Waits && (one.layer > 0) == goes_on;
        let rows_left = intake.rows_left().saturating_sub(load.sequences);
        if !is_open || rows_left == 0 || !intake.has_host_room(one) {
            continue;
        }
        let with = load.with(one.tokens);
        if !goes_on && with.ms(costs) + costs.launch_ms() > window_ms {
            break;
        }
        load = with;
        intake.grow(one);
        *place = Place::Lagging;
    }
}
