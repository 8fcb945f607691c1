//! NEO's scheduler (Jiang et al., MLSys '25, section 3.2), and its special cases with all attention
//! on one side.

use super::costs::LayerCosts;
use super::host_rows::{place_host_rows, place_without_device, reset_decisions};
use super::iteration::{HostDecision, Iteration, IterationShape};
use super::iteration_builder::{AdmittedPrompts, IterationBuilder};
use super::queues::{IterationLimits, Queues};

/// Minimum number of rows of the first batch, below which no further prompts are dropped, as in
/// NEO's program.
const FIRST_BATCH_ROWS_MIN: u32 = 128;

/// All attention on the device. Sequences that do not fit there wait in host memory.
pub(super) fn gpu_only<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    decisions: &mut [HostDecision],
) -> Iteration {
    let builder = IterationBuilder::new(queues, limits, costs, AdmittedPrompts::Device, decisions);
    finish(builder, IterationShape::Gpu, decisions)
}

/// NEO's steps 1 to 6. The schedule with one batch, to which the one with two is compared, is the
/// first batch without the host's decodes, as in the paper; prompts that go to the host stay.
pub(super) fn neo<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    decisions: &mut [HostDecision],
) -> Iteration {
    let builder = IterationBuilder::new(queues, limits, costs, AdmittedPrompts::Both, decisions);
    let both = fill_two_batches(builder, decisions);
    let alone = both.batches.without_host();
    if both.batches.is_better_than(&alone) {
        return finish(both, batch_shape(&both), decisions);
    }
    reset_decisions(decisions);
    let mut one = both;
    one.batches = alone;
    finish(one, IterationShape::Gpu, decisions)
}

/// FastDecode+ (NEO, section 5.1): NEO with all attention of decode on the host, even if the device
/// has no concurrent work.
pub(super) fn fast_decode<C: LayerCosts>(
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &C,
    decisions: &mut [HostDecision],
) -> Iteration {
    let builder = IterationBuilder::new(queues, limits, costs, AdmittedPrompts::Host, decisions);
    let builder = fill_two_batches(builder, decisions);
    finish(builder, batch_shape(&builder), decisions)
}

/// Steps 4 and 5: the schedule with two batches.
pub(super) fn fill_two_batches<'a, 'q, C: LayerCosts>(
    mut builder: IterationBuilder<'a, 'q, C>,
    decisions: &mut [HostDecision],
) -> IterationBuilder<'a, 'q, C> {
    place_host_rows(&mut builder, decisions);
    while let Some(last) = builder.iteration.prefills_to_host(builder.queues()).last() {
        let without = builder.batches.without_prefill(last.tokens);
        if without.rows[0] < FIRST_BATCH_ROWS_MIN || !without.is_hidden() {
            break;
        }
        builder.drop_host_prefill();
    }
    builder
}

/// Returns the shape with two batches, of which the second may be empty.
pub(super) fn batch_shape<C>(builder: &IterationBuilder<'_, '_, C>) -> IterationShape {
    let [first, second] = builder.batches.host;
    if first.sequences + second.sequences > 0 {
        IterationShape::Pipelined
    } else {
        IterationShape::Gpu
    }
}

/// Returns the iteration; if nothing would be computed and the host has sequences, these are
/// computed.
pub(super) fn finish<C: LayerCosts>(
    mut builder: IterationBuilder<'_, '_, C>,
    shape: IterationShape,
    decisions: &mut [HostDecision],
) -> Iteration {
    let is_idle = builder.batches.requests == 0 && !decisions.contains(&HostDecision::Deferred);
    if is_idle {
        place_without_device(&mut builder, decisions);
    }
    let shape = if is_idle { self::batch_shape(&builder) } else { shape };
    Iteration { shape, ..builder.iteration }
}
