//! Durations of iterations, computed by hand.

use super::super::{
    AttentionLoad, DeferredRows, HostDecision, Iteration, IterationShape, LinkCosts, MemoryShares,
    QueuedSequence, Queues,
};
use super::super::{IterationTimes, IterationWork, LayerCosts};
use super::{ExactCosts, queued};

fn link(each: f64) -> LinkCosts {
    LinkCosts {
        weights_ms: 0.0,
        row_out_ms: each,
        row_back_ms: each,
        position_out_ms: each,
        position_in_ms: each,
        memory: MemoryShares::default(),
    }
}

/// Returns the work of two decodes on the device, a prompt that goes to the host, and the host's
/// decodes in both batches.
fn work() -> IterationWork {
    let device = [queued(0, 32), queued(1, 32)];
    let host = [queued(2, 16), queued(3, 24), queued(4, 40)];
    let waiting = [queued(5, 8)];
    let queues = Queues { waiting: &waiting, device: &device, host: &host, is_late: false };
    let iteration = Iteration {
        shape: IterationShape::Pipelined,
        decodes: 2,
        host_prefills: 1,
        ..Iteration::NONE
    };
    let places = [HostDecision::SecondBatch, HostDecision::FirstBatch, HostDecision::Waits];
    IterationWork::compute(
        &iteration,
        &queues,
        DeferredRows::SameLayer,
        &places,
        &ExactCosts::PLAIN,
    )
}

#[test]
fn the_work_of_an_iteration_is_counted_by_owner_and_batch() {
    let work = work();
    assert_eq!(work.rows, [2 + 8 + 1, 1]);
    assert_eq!((work.device_positions, work.prefill_attention_ms), (64, 1.0));
    assert_eq!(work.host[0], AttentionLoad { sequences: 1, positions: 24 });
    assert_eq!(work.host[1], AttentionLoad { sequences: 1, positions: 16 });
    assert_eq!((work.leaving_positions, work.tokens, work.samples), (8, 5, 5));
}

#[test]
fn a_stage_is_as_long_as_the_longer_side() {
    let work = work();
    let times = IterationTimes::compute(&work, IterationShape::Pipelined, &ExactCosts::PLAIN);
    // Concurrently with 4 + 11/4 the host takes 0.5 + 2 + 0.5; concurrently with 4.25 + 1 + 2 it
    // takes 0.5 + 3 + 0.5.
    let (first, second) = (6.75, 7.25);
    let ends = 5.0 / 16.0;
    assert_eq!(times.total_ms, 4.0 * (first + second) + ends);
    assert_eq!(times.device_ms, times.total_ms);
    assert_eq!(times.host_ms, 4.0 * (2.5 + 3.5));
    let slow = ExactCosts { host_position_ms: 0.5, ..ExactCosts::PLAIN };
    let times = IterationTimes::compute(&work, IterationShape::Pipelined, &slow);
    assert_eq!(times.total_ms, 4.0 * ((8.0 + 1.0) + (12.0 + 1.0)) + ends);
    let linked = ExactCosts { link: link(0.25), ..slow };
    let times = IterationTimes::compute(&work, IterationShape::Pipelined, &linked);
    assert_eq!(times.total_ms, 4.0 * (9.5 + 13.5) + ends, "rows there and back");
    assert_eq!(times.to_host_ms, 4.0 * (8.0 + 2.0) * 0.25);
    assert_eq!(times.to_device_ms, 4.0 * 2.0 * 0.25);
}

#[test]
fn weights_that_stream_caches_that_leave_and_memory_bound_a_layer() {
    let gpu = IterationWork { rows: [10, 0], leaving_positions: 8, ..IterationWork::default() };
    let total = |link: LinkCosts| {
        IterationTimes::compute(
            &gpu,
            IterationShape::Gpu,
            &ExactCosts { link, ..ExactCosts::PLAIN },
        )
        .total_ms
    };
    assert_eq!(total(LinkCosts::default()), 4.0 * 6.5);
    assert_eq!(total(LinkCosts { weights_ms: 9.0, ..LinkCosts::default() }), 4.0 * 9.0);
    assert_eq!(total(link(1.0)), 4.0 * 8.0);
    let memory = MemoryShares { attention: 1.0, to_device: 0.5, to_host: 0.25 };
    assert_eq!(total(LinkCosts { weights_ms: 9.0, memory, ..link(4.0) }), 4.0 * 32.0);
    let slow = MemoryShares { to_host: 2.0, ..memory };
    assert_eq!(total(LinkCosts { weights_ms: 9.0, memory: slow, ..link(4.0) }), 4.0 * 68.5);
}

#[test]
fn moves_come_before_the_first_layer() {
    let device = [queued(0, 9)];
    let host = [queued(1, 5)];
    let queues = Queues { waiting: &[], device: &device, host: &host, is_late: false };
    let costs = ExactCosts { link: link(0.5), ..ExactCosts::PLAIN };
    let time = |iteration: Iteration, places: &[HostDecision]| {
        let work =
            IterationWork::compute(&iteration, &queues, DeferredRows::SameLayer, places, &costs);
        (work, IterationTimes::compute(&work, iteration.shape, &costs))
    };
    let (work, out) =
        time(Iteration { moves_out: 1, ..Iteration::NONE }, &[HostDecision::Waits; 2]);
    assert_eq!((work.moved_out_positions, out.total_ms), (8, 4.0 * 8.0 * 0.5));
    let stays = Iteration { decodes: 1, ..Iteration::NONE };
    let (work, in_) = time(stays, &[HostDecision::MovesIn]);
    assert_eq!((work.moved_in_positions, work.rows, work.device_positions), (4, [2, 0], 14));
    assert_eq!(in_.to_device_ms, 4.0 * 4.0 * 0.5);
}

#[test]
fn rows_that_lag_cost_a_layer_of_linears_and_no_time_of_attention() {
    let device = [queued(0, 32)];
    let at = |layer| {
        [QueuedSequence { layer, ..queued(1, 1000) }, QueuedSequence { layer, ..queued(2, 1000) }]
    };
    let time = |layer| {
        let host = at(layer);
        let queues = Queues { waiting: &[], device: &device, host: &host, is_late: false };
        let iteration = Iteration { shape: IterationShape::Async, decodes: 1, ..Iteration::NONE };
        let work = IterationWork::compute(
            &iteration,
            &queues,
            DeferredRows::SameLayer,
            &[HostDecision::Deferred; 2],
            &ExactCosts::PLAIN,
        );
        (work, IterationTimes::compute(&work, IterationShape::Async, &ExactCosts::PLAIN))
    };
    let (work, times) = time(2);
    assert_eq!((work.rows, work.samples), ([1, 0], 1));
    assert_eq!(times.total_ms, 4.0 * (4.25 + 1.0) + 0.5 + 1.0 / 16.0);
    assert_eq!(times.host_ms, 1.0 + 250.0 + 0.5);
    let (work, times) = time(ExactCosts::PLAIN.layers());
    assert_eq!((work.samples, work.tokens, times.host_ms), (3, 1, 0.0));
}

#[test]
fn rows_that_lag_apart_cost_each_layer_its_linears() {
    let device = [queued(0, 32)];
    let at = |layer, id| QueuedSequence { layer, ..queued(id, 100) };
    let host = [at(1, 1), at(1, 2), at(3, 3), at(4, 4)];
    let queues = Queues { waiting: &[], device: &device, host: &host, is_late: false };
    let iteration = Iteration { shape: IterationShape::Async, decodes: 1, ..Iteration::NONE };
    let work = IterationWork::compute(
        &iteration,
        &queues,
        DeferredRows::SameLayer,
        &[HostDecision::Deferred; 4],
        &ExactCosts::PLAIN,
    );
    assert_eq!((work.deferred_layers, work.deferred_finished.sequences, work.samples), (3, 1, 2));
    let times = IterationTimes::compute(&work, IterationShape::Async, &ExactCosts::PLAIN);
    // Three of four layers have up to two deferred rows each, and at two of them the host computes
    // attention, for three rows in total.
    assert_eq!(times.total_ms, 4.0 * (4.25 + 1.0) + 3.0 * 0.5 + 2.0 / 16.0);
    assert_eq!(times.host_ms, 1.5 + 37.5 + 2.0 * 0.5);
    // A server's iteration does not end before the host has computed their attention.
    let apart = IterationWork { waits_for_deferred: true, ..work };
    assert_eq!(
        IterationTimes::compute(&apart, IterationShape::Async, &ExactCosts::PLAIN).total_ms,
        40.0 + 2.0 / 16.0
    );
}

#[test]
fn what_lagged_is_finished_by_two_batches_from_its_layer_on() {
    let host = [QueuedSequence { layer: 3, ..queued(0, 16) }];
    let queues = Queues { waiting: &[], device: &[], host: &host, is_late: false };
    let iteration = Iteration { shape: IterationShape::Pipelined, ..Iteration::NONE };
    let work = IterationWork::compute(
        &iteration,
        &queues,
        DeferredRows::SameLayer,
        &[HostDecision::SecondBatch],
        &ExactCosts::PLAIN,
    );
    assert_eq!((work.partial_layer, work.partial.sequences, work.rows), (2, 1, [0, 0]));
    let times = IterationTimes::compute(&work, IterationShape::Pipelined, &ExactCosts::PLAIN);
    assert_eq!(times.total_ms, 2.0 * (4.25 + 0.5 + 2.0 + 0.5) + 1.0 / 16.0);
}
