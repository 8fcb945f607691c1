//! APEX's scheduler (Fan et al., 2025, algorithm 1).

use super::batches::Load;
use super::costs::LayerCosts;
use super::host_rows::{clear, fill, lag};
use super::intake::{Intake, Prompts};
use super::iteration::{Iteration, Place, Shape};
use super::lagging::fill_lagging;
use super::neo::{finished, shape};
use super::queues::{Lags, Limits, Queues};

/// Two batches if inequality (5) holds, or if deferred rows are not permitted; otherwise
/// asynchronous overlap.
pub(super) fn apex<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    places: &mut [Place],
) -> Iteration {
    let mut intake = Intake::of(queues, limits, costs, Prompts::Both, places);
    let decode = Decode::of(&intake, costs);
    drop_what_host_cannot_attend(&mut intake, &decode, costs, places);
    if load_of_host(&intake, places).sequences == 0 {
        return finished(intake, Shape::Gpu, places);
    }
    let mut begins = true;
    if limits.lags == Lags::Never || decode.pipelining_pays(&intake, places, costs) {
        let mut two = intake;
        fill(&mut two, places);
        let is_pipelined = shape(&two) == Shape::Pipelined;
        // Two batches wait for deferred rows that can join neither of them.
        let is_free = limits.lags != Lags::Apart || !lag(queues);
        if limits.lags == Lags::Never || (is_pipelined && is_free) {
            return finished(two, shape(&two), places);
        }
        begins = !is_pipelined;
        clear(places);
    }
    lagging(intake, &decode, begins, places)
}

/// Asynchronous overlap regardless of (5); `begins` permits rows that are not deferred yet.
pub(super) fn async_only<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    begins: bool,
    places: &mut [Place],
) -> Iteration {
    let mut intake = Intake::of(queues, limits, costs, Prompts::Both, places);
    let decode = Decode::of(&intake, costs);
    drop_what_host_cannot_attend(&mut intake, &decode, costs, places);
    lagging(intake, &decode, begins, places)
}

fn lagging<C: LayerCosts>(
    mut intake: Intake<'_, '_, C>,
    decode: &Decode,
    begins: bool,
    places: &mut [Place],
) -> Iteration {
    // Without work on the device that could hide attention, layer by layer would only take longer.
    let has_device = intake.batches.requests > 0;
    let goes_on = has_device || intake.limits().lags == Lags::Apart;
    if goes_on && !intake.queues().is_late {
        let window_ms = decode.iteration_ms(intake.costs());
        fill_lagging(&mut intake, window_ms, begins && has_device, places);
    }
    let lags = lag(intake.queues()) || places.contains(&Place::Lagging);
    let shape = if lags { Shape::Async } else { Shape::Gpu };
    finished(intake, shape, places)
}

/// Decodes of the device, without prompts, in ms per layer.
struct Decode {
    linear_ms: f64,
    attention_ms: f64,
    positions: u64,
}

impl Decode {
    fn of<C: LayerCosts>(intake: &Intake<'_, '_, C>, costs: &C) -> Decode {
        let batches = &intake.batches;
        let prefills = intake.iteration.prefills(intake.queues());
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
        intake: &Intake<'_, '_, C>,
        places: &[Place],
        costs: &C,
    ) -> bool {
        let host = load_of_host(intake, places);
        let host_rate = host.positions as f64 / host.ms(costs);
        let cycle_ms = 2.0 * self.linear_ms + self.attention_ms;
        // Everything that the device does, including prompts, and the linears of decode once more.
        let window_ms = intake.batches.device_ms() + self.linear_ms;
        let positions = self.positions as f64;
        let both = (positions + host_rate * window_ms) / cycle_ms;
        both > positions / (self.linear_ms + self.attention_ms)
    }
}

/// Returns the load of all sequences that stay with the host.
fn load_of_host<C: LayerCosts>(intake: &Intake<'_, '_, C>, places: &[Place]) -> Load {
    let with_host = intake.iteration.with_host(intake.queues()).zip(places);
    let stays = with_host.filter(|(_, place)| **place != Place::MovesIn);
    stays.fold(Load::default(), |load, (one, _)| load.with(one.tokens))
}

/// Admits prompts for the host as long as it can attend to all of its sequences within an iteration
/// of the device's decodes, a layer of each: more would only wait. If there are no other sequences,
/// one is admitted.
fn drop_what_host_cannot_attend<C: LayerCosts>(
    intake: &mut Intake<'_, '_, C>,
    decode: &Decode,
    costs: &C,
    places: &[Place],
) {
    let window_ms = decode.iteration_ms(costs);
    let has = load_of_host(intake, places);
    while intake.iteration.host_prefills > 0 {
        let leaving = intake.iteration.leaving(intake.queues());
        let load = leaving.iter().fold(has, |load, one| load.with(one.tokens));
        let is_alone = intake.batches.requests == 1 && has.sequences == 0;
        if load.ms(costs) <= window_ms || is_alone {
            break;
        }
        intake.drop_host_prefill();
    }
}
