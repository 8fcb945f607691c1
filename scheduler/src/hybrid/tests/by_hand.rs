//! Tests with small queues, for which the correct iteration is evident.

use super::super::{
    DeferredRows, HostDecision, IterationLimits, IterationShape, QueuedSequence, Queues,
    SchedulingPolicy,
};
use super::{ExactCosts, decided, queued};

const EXACT: ExactCosts = ExactCosts::PLAIN;

const LIMITS: IterationLimits = IterationLimits {
    rows: 200,
    page_positions: 4,
    device_pages: 20,
    host_pages: 200,
    patience: 10,
    deferred_rows: DeferredRows::SameLayer,
};

fn queues<'a>(
    waiting: &'a [QueuedSequence],
    device: &'a [QueuedSequence],
    host: &'a [QueuedSequence],
) -> Queues<'a> {
    Queues { waiting, device, host, is_late: false }
}

#[test]
fn the_device_gives_its_last_away_and_takes_the_hosts_first() {
    // 9 + 8 + 5 pages; the device has 20.
    let device = [queued(0, 36), queued(1, 32), queued(2, 20)];
    let (iteration, _) =
        decided(SchedulingPolicy::GpuOnly, &queues(&[], &device, &[]), &LIMITS, &EXACT);
    assert_eq!((iteration.decodes, iteration.moves_out, iteration.evicted), (2, 1, 0));
    let no_host = IterationLimits { host_pages: 4, ..LIMITS };
    let (iteration, _) =
        decided(SchedulingPolicy::GpuOnly, &queues(&[], &device, &[]), &no_host, &EXACT);
    assert_eq!((iteration.decodes, iteration.moves_out, iteration.evicted), (2, 0, 1));
    // 17 and 2 pages are 95 % of the device's, 17 and 3 exceed that.
    let (device, host) = (&device[..2], [queued(3, 8), queued(4, 4)]);
    let (iteration, places) =
        decided(SchedulingPolicy::GpuOnly, &queues(&[], device, &host), &LIMITS, &EXACT);
    assert_eq!((iteration.decodes, iteration.shape), (2, IterationShape::Gpu));
    assert_eq!(places, [HostDecision::MovesIn, HostDecision::Waits]);
}

#[test]
fn prompts_leave_to_the_host_once_the_device_is_full_and_gpu_only_keeps_them() {
    let waiting = [queued(0, 40), queued(1, 48), queued(2, 4)];
    let (iteration, _) =
        decided(SchedulingPolicy::Neo, &queues(&waiting, &[], &[]), &LIMITS, &EXACT);
    assert_eq!((iteration.device_prefills, iteration.host_prefills), (1, 2));
    let (iteration, _) =
        decided(SchedulingPolicy::GpuOnly, &queues(&waiting, &[], &[]), &LIMITS, &EXACT);
    assert_eq!((iteration.device_prefills, iteration.host_prefills), (1, 0));
    let host = [queued(3, 76)];
    let (iteration, places) = decided(
        SchedulingPolicy::GpuOnly,
        &queues(&waiting, &[queued(4, 8)], &host),
        &LIMITS,
        &EXACT,
    );
    assert_eq!(iteration.device_prefills, 0, "who waits with the host is first");
    assert_eq!(places, [HostDecision::Waits]);
    let (iteration, _) =
        decided(SchedulingPolicy::FastDecode, &queues(&waiting, &[], &[]), &LIMITS, &EXACT);
    assert_eq!((iteration.device_prefills, iteration.host_prefills), (0, 3));
}

#[test]
fn a_prompt_that_only_the_host_has_room_for_begins_where_nobody_else_is() {
    // 22 pages; the device has 20.
    let waiting = [queued(0, 86), queued(1, 86)];
    for deferred_rows in DeferredRows::ALL {
        let limits = IterationLimits { deferred_rows, ..LIMITS };
        let (iteration, _) =
            decided(SchedulingPolicy::Apex, &queues(&waiting, &[], &[]), &limits, &EXACT);
        assert_eq!((iteration.device_prefills, iteration.host_prefills), (0, 1));
    }
}

#[test]
fn a_host_that_nothing_hides_is_computed_where_the_device_is_idle() {
    // None of the sequences fits on the device.
    let host = [queued(0, 90), queued(1, 84), queued(2, 96)];
    for policy in SchedulingPolicy::ALL {
        let (iteration, places) = decided(policy, &queues(&[], &[], &host), &LIMITS, &EXACT);
        assert_eq!(iteration.shape, IterationShape::Pipelined, "{policy:?}");
        assert_eq!(
            places,
            [HostDecision::SecondBatch, HostDecision::FirstBatch, HostDecision::FirstBatch],
            "{policy:?}"
        );
    }
    // Each sequence needs another page, and none is free.
    let full = [queued(0, 81), queued(1, 81)];
    let limits = IterationLimits { host_pages: 40, ..LIMITS };
    let (_, places) =
        decided(SchedulingPolicy::FastDecode, &queues(&[], &[], &full), &limits, &EXACT);
    assert_eq!(places, [HostDecision::SecondBatch, HostDecision::Evicted]);
}

#[test]
fn apex_pipelines_where_its_inequality_holds_and_lags_where_not() {
    let device: Vec<QueuedSequence> = (0..3).map(|id| queued(id, 24)).collect();
    let host: Vec<QueuedSequence> = (3..6).map(|id| queued(id, 16)).collect();
    let both = queues(&[], &device, &host);
    // Linears take 4.75 ms, attention 72 / 32 ms: inequality (6) is N_G / N_C < 7.7.
    let fast = ExactCosts { host_position_ms: 1.0 / 32.0, launch_ms: 0.0, ..EXACT };
    let (iteration, places) = decided(SchedulingPolicy::Apex, &both, &LIMITS, &fast);
    assert_eq!(iteration.shape, IterationShape::Pipelined, "{places:?}");
    let slow = ExactCosts { host_position_ms: 10.0 / 32.0, ..EXACT };
    let (iteration, places) = decided(SchedulingPolicy::Apex, &both, &LIMITS, &slow);
    assert_eq!(iteration.shape, IterationShape::Async);
    // N_G / N_C is 32 over 48 / 16.5. Four layers take 28 ms.
    assert_eq!(places, [HostDecision::Deferred; 3]);
    let late = Queues { is_late: true, ..both };
    let deferred: Vec<QueuedSequence> =
        host.iter().map(|one| QueuedSequence { layer: 2, ..*one }).collect();
    let late = Queues { host: &deferred, ..late };
    let (iteration, places) = decided(SchedulingPolicy::Apex, &late, &LIMITS, &slow);
    assert_eq!((iteration.shape, iteration.decodes), (IterationShape::Async, 3));
    assert_eq!(places, [HostDecision::Waits; 3], "the device does not wait");
}

#[test]
fn who_lags_is_alone_until_its_token_is_there_and_does_not_move() {
    let device = [queued(0, 70)];
    let host = [QueuedSequence { layer: 3, ..queued(1, 8) }, queued(2, 8)];
    let slow = ExactCosts { host_position_ms: 8.0, ..EXACT };
    let (_, places) = decided(SchedulingPolicy::Apex, &queues(&[], &device, &host), &LIMITS, &slow);
    assert_eq!(places, [HostDecision::Deferred, HostDecision::Waits]);
    let (_, places) = decided(SchedulingPolicy::Neo, &queues(&[], &[], &host), &LIMITS, &slow);
    assert_eq!(
        places,
        [HostDecision::SecondBatch, HostDecision::FirstBatch],
        "its own layers are the second batch's"
    );
}

/// Tests four layers of 6.5 ms, with rows for which the host's attention takes 4 ms or 16 ms.
#[test]
fn rows_apart_begin_as_the_host_keeps_pace() {
    let limits = IterationLimits { deferred_rows: DeferredRows::AnyLayer, ..LIMITS };
    let costs = ExactCosts { host_position_ms: 0.5, launch_ms: 0.0, ..EXACT };
    let device = [queued(0, 72)];
    let begun = |host: &[QueuedSequence]| {
        let queues = queues(&[], &device, host);
        let (iteration, places) = decided(SchedulingPolicy::Apex, &queues, &limits, &costs);
        assert_eq!(iteration.shape, IterationShape::Async, "{places:?}");
        places
    };
    let at = |layer, id, tokens| QueuedSequence { layer, ..queued(id, tokens) };
    let (goes, waits) = (HostDecision::Deferred, HostDecision::Waits);
    assert_eq!(begun(&[queued(1, 7), queued(2, 7)]), [goes, waits], "one in a layer's time");
    assert_eq!(begun(&[at(1, 1, 7), queued(2, 7)]), [goes, goes]);
    assert_eq!(begun(&[queued(1, 31)]), [goes], "nobody is near");
    assert_eq!(begun(&[at(2, 1, 31), queued(2, 7)]), [goes, waits], "20 ms in three");
    assert_eq!(begun(&[at(3, 1, 31), queued(2, 7)]), [goes, goes]);
    // The device has no concurrent work: deferred rows advance, and no others begin.
    let host = [at(2, 1, 7), queued(2, 90)];
    let alone = queues(&[], &[], &host);
    let (iteration, places) = decided(SchedulingPolicy::Apex, &alone, &limits, &costs);
    assert_eq!((iteration.shape, places), (IterationShape::Async, vec![goes, waits]));
}

#[test]
fn rows_apart_finish_their_tokens_before_two_batches() {
    let limits = IterationLimits { deferred_rows: DeferredRows::AnyLayer, ..LIMITS };
    let device: Vec<QueuedSequence> = (0..3).map(|id| queued(id, 24)).collect();
    let fast = ExactCosts { host_position_ms: 1.0 / 32.0, launch_ms: 0.0, ..EXACT };
    let decide = |host: &[QueuedSequence], limits: &IterationLimits| {
        decided(SchedulingPolicy::Apex, &queues(&[], &device, host), limits, &fast)
    };
    let (iteration, _) = decide(&[queued(3, 16), queued(4, 16)], &limits);
    assert_eq!(iteration.shape, IterationShape::Pipelined);
    let host = [queued(3, 16), QueuedSequence { layer: 2, ..queued(4, 16) }];
    let (iteration, places) = decide(&host, &limits);
    assert_eq!(iteration.shape, IterationShape::Async);
    assert_eq!(places, [HostDecision::Waits, HostDecision::Deferred]);
    // With rows deferred together, they leave their layer for the second batch.
    let (iteration, places) = decide(&host, &LIMITS);
    assert_eq!(
        (iteration.shape, places[1]),
        (IterationShape::Pipelined, HostDecision::SecondBatch)
    );
    // If rows must not be deferred, a deferred row waits.
    let (iteration, places) =
        decide(&host, &IterationLimits { deferred_rows: DeferredRows::Never, ..LIMITS });
    assert_eq!((iteration.shape, places[1]), (IterationShape::Pipelined, HostDecision::Waits));
}

#[test]
fn no_prompt_begins_before_one_that_waited_too_long() {
    let waiting = [queued(0, 4)];
    let device = [queued(1, 72)];
    let waits = |idle_iterations| [QueuedSequence { idle_iterations, ..queued(2, 60) }];
    let slow = ExactCosts { host_position_ms: 8.0, ..EXACT };
    let begins = |idle_iterations| {
        let host = waits(idle_iterations);
        decided(SchedulingPolicy::Neo, &queues(&waiting, &device, &host), &LIMITS, &slow)
            .0
            .device_prefills
    };
    assert_eq!((begins(9), begins(10)), (1, 0));
}
