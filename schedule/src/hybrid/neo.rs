//! NEO's scheduler (Jiang et al., MLSys '25, section 3.2), and its special cases with all attention
//! on one side.

use super::costs::LayerCosts;
use super::host_rows::{clear, fill, fill_without_device};
use super::intake::{Intake, Prompts};
use super::iteration::{Iteration, Place, Shape};
use super::queues::{Limits, Queues};

/// Minimum number of rows of the first batch, below which no further prompts are dropped, as in
/// NEO's program.
const LEAST_ROWS: u32 = 128;

/// All attention on the device. Sequences that do not fit there wait in host memory.
pub(super) fn gpu_only<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    places: &mut [Place],
) -> Iteration {
    let intake = Intake::of(queues, limits, costs, Prompts::Device, places);
    finished(intake, Shape::Gpu, places)
}

/// NEO's steps 1 to 6. The schedule with one batch, to which the one with two is compared, is the
/// first batch without the host's decodes, as in the paper; prompts that go to the host stay.
pub(super) fn neo<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    places: &mut [Place],
) -> Iteration {
    let intake = Intake::of(queues, limits, costs, Prompts::Both, places);
    let both = two_batches(intake, places);
    let alone = both.batches.without_host();
    if both.batches.is_better_than(&alone) {
        return finished(both, shape(&both), places);
    }
    clear(places);
    let mut one = both;
    one.batches = alone;
    finished(one, Shape::Gpu, places)
}

/// FastDecode+ (NEO, section 5.1): NEO with all attention of decode on the host, even if the device
/// has no concurrent work.
pub(super) fn fast_decode<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &Limits,
    costs: &C,
    places: &mut [Place],
) -> Iteration {
    let intake = Intake::of(queues, limits, costs, Prompts::Host, places);
    let intake = two_batches(intake, places);
    finished(intake, shape(&intake), places)
}

/// Steps 4 and 5: the schedule with two batches.
pub(super) fn two_batches<'a, 'q, C: LayerCosts>(
    mut intake: Intake<'a, 'q, C>,
    places: &mut [Place],
) -> Intake<'a, 'q, C> {
    fill(&mut intake, places);
    while let Some(last) = intake.iteration.leaving(intake.queues()).last() {
        let without = intake.batches.without_prefill(last.tokens);
        if without.rows[0] < LEAST_ROWS || !without.is_hidden() {
            break;
        }
        intake.drop_host_prefill();
    }
    intake
}

/// Returns the shape with two batches, of which the second may be empty.
pub(super) fn shape<C>(intake: &Intake<'_, '_, C>) -> Shape {
    let [first, second] = intake.batches.host;
    if first.sequences + second.sequences > 0 { Shape::Pipelined } else { Shape::Gpu }
}

/// Returns the iteration; if nothing would be computed and the host has sequences, these are
/// computed.
pub(super) fn finished<C: LayerCosts>(
    mut intake: Intake<'_, '_, C>,
    shape: Shape,
    places: &mut [Place],
) -> Iteration {
    let is_idle = intake.batches.requests == 0 && !places.contains(&Place::Lagging);
    if is_idle {
        fill_without_device(&mut intake, places);
    }
    let shape = if is_idle { self::shape(&intake) } else { shape };
    Iteration { shape, ..intake.iteration }
}
