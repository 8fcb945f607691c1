//! Which of the host's rows advance by a layer in asynchronous overlap.

use super::batches::Load;
use super::costs::LayerCosts;
use super::host_rows::lag;
use super::intake::Intake;
use super::iteration::Place;
use super::queues::{Lags, Queued};

/// Advances deferred rows and, if `begins`, starts others for which the host can compute attention
/// within the iteration's time in ms: if all deferred rows advance together, once none remain;
/// otherwise whenever they [keep pace](keeps_pace).
pub(super) fn fill_lagging<C: LayerCosts>(
    intake: &mut Intake<'_, '_, C>,
    window_ms: f64,
    begins: bool,
    places: &mut [Place],
) {
    let (costs, lags) = (intake.costs(), intake.limits().lags);
    let begins = begins && (lags == Lags::Apart || !lag(intake.queues()));
    let count = intake.iteration.host_sequences(intake.queues());
    let mut load = Load::default();
    for begins in if begins { &[false, true][..] } else { &[false] } {
        for index in 0..count {
            let Some(one) = intake.iteration.with_host(intake.queues()).nth(index) else { return };
            let rows_left = intake.rows_left().saturating_sub(load.sequences);
            let is_open = places[index] == Place::Waits && (one.layer == 0) == *begins;
            if !is_open || rows_left == 0 || !intake.has_host_room(one) {
                continue;
            }
            let is_in_time = match lags {
                _ if !begins => true,
                Lags::Apart => keeps_pace(intake, one, window_ms, places),
                Lags::Never | Lags::Together => {
                    load.with(one.tokens).ms(costs) + costs.launch_ms() <= window_ms
                }
            };
            if !is_in_time {
                break;
            }
            load = load.with(one.tokens);
            intake.grow(one);
            places[index] = Place::Lagging;
        }
    }
}

/// Returns true if the host can attend for one more row that starts: for deferred rows close to the
/// first layer it has as much time as the layers that they have completed. The host is never late
/// if rows are spread over the layers. If no row is close, a row may start however long it takes.
fn keeps_pace<C: LayerCosts>(
    intake: &Intake<'_, '_, C>,
    one: &Queued,
    window_ms: f64,
    places: &[Place],
) -> bool {
    let costs = intake.costs();
    let layer_ms = window_ms / f64::from(costs.layers().max(1));
    let lagging = || {
        let with_host = intake.iteration.with_host(intake.queues()).zip(places);
        with_host.filter(|(_, place)| **place == Place::Lagging).map(|(other, _)| other)
    };
    // Layer by layer, from the nearest.
    let (mut load, mut near, mut launches) = (Load::default().with(one.tokens), None, 1.0);
    loop {
        let further = lagging().map(|other| other.layer).filter(|layer| near < Some(*layer));
        let Some(layer) = further.min() else { return true };
        let there = lagging().filter(|other| other.layer == layer);
        load = there.fold(load, |load, other| load.with(other.tokens));
        launches += if layer > 0 { 1.0 } else { 0.0 };
        if load.ms(costs) + launches * costs.launch_ms() > f64::from(layer + 1) * layer_ms {
            return false;
        }
        near = Some(layer);
    }
}
