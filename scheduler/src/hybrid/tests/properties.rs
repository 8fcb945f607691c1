//! Properties of every policy with arbitrary queues: capacities are respected, no iteration
//! migrates in both directions, and every sequence ends.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::{
    DeferredRows, HostDecision, Iteration, IterationLimits, IterationShape, LayerCosts,
    QueuedSequence, Queues, SchedulingPolicy,
};
use super::{ExactCosts, decided, queued};

const POLICIES: [SchedulingPolicy; 5] = SchedulingPolicy::ALL;

/// A server, reduced to its queues.
#[derive(Debug, Clone, Default)]
struct Server {
    waiting: VecDeque<QueuedSequence>,
    device: Vec<QueuedSequence>,
    host: Vec<QueuedSequence>,
    ended: Vec<u32>,
    is_late: bool,
}

impl Server {
    /// Runs an iteration, and returns true if anything was computed. `ends` returns true if a
    /// sequence has all its tokens.
    fn step(
        &mut self,
        policy: SchedulingPolicy,
        limits: &IterationLimits,
        ends: impl Fn(&QueuedSequence) -> bool,
    ) -> bool {
        let waiting: Vec<QueuedSequence> = self.waiting.iter().copied().collect();
        let (device, host) = (self.device.clone(), self.host.clone());
        let is_late = self.is_late;
        let queues = Queues { waiting: &waiting, device: &device, host: &host, is_late };
        let (iteration, places) = decided(policy, &queues, limits, &ExactCosts::PLAIN);
        check(policy, &iteration, &places, &queues, limits);
        let with_host: Vec<(QueuedSequence, HostDecision)> =
            iteration.with_host(&queues).copied().zip(places.iter().copied()).collect();
        let mut on_device = device[..iteration.decodes].to_vec();
        let mut on_host = Vec::new();
        let mut evicted = device[iteration.decodes..device.len() - iteration.moves_out].to_vec();
        let mut grown = Vec::new();
        for (one, place) in with_host {
            match place {
                HostDecision::Waits => {
                    on_host.push(QueuedSequence { idle_iterations: one.idle_iterations + 1, ..one })
                }
                HostDecision::MovesIn => on_device.push(one),
                HostDecision::FirstBatch | HostDecision::SecondBatch => grown.push(one),
                HostDecision::Deferred if one.layer == ExactCosts::PLAIN.layers() => {
                    grown.push(one)
                }
                HostDecision::Deferred => {
                    on_host.push(QueuedSequence {
                        layer: one.layer + 1,
                        idle_iterations: 0,
                        ..one
                    });
                }
                HostDecision::Evicted => evicted.push(one),
            }
        }
        let prompts = iteration.prefills(&queues);
        on_device.extend(&prompts[..iteration.device_prefills]);
        grown.extend(&prompts[iteration.device_prefills..]);
        let mut gets_on = |one: &QueuedSequence, to: &mut Vec<QueuedSequence>| {
            let next =
                QueuedSequence { tokens: one.tokens + 1, layer: 0, idle_iterations: 0, ..*one };
            if ends(&next) { self.ended.push(one.id) } else { to.push(next) }
        };
        self.device.clear();
        on_device.iter().for_each(|one| gets_on(one, &mut self.device));
        grown.iter().for_each(|one| gets_on(one, &mut on_host));
        self.host = on_host;
        self.waiting.drain(..prompts.len());
        evicted.iter().rev().for_each(|one| {
            self.waiting.push_front(QueuedSequence { layer: 0, ..*one });
        });
        // The host is occasionally late.
        let may_be_late = limits.deferred_rows == DeferredRows::SameLayer
            && places.contains(&HostDecision::Deferred);
        self.is_late = may_be_late && self.ended.len() % 3 == 1;
        let computes = [
            HostDecision::MovesIn,
            HostDecision::FirstBatch,
            HostDecision::SecondBatch,
            HostDecision::Deferred,
        ];
        let on_host = places.iter().any(|place| computes.contains(place));
        iteration.decodes + prompts.len() > 0 || on_host
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.device.is_empty() && self.host.is_empty()
    }
}

/// Asserts the invariants of an iteration.
fn check(
    policy: SchedulingPolicy,
    iteration: &Iteration,
    places: &[HostDecision],
    queues: &Queues<'_>,
    limits: &IterationLimits,
) {
    let moves_in = places.iter().filter(|place| **place == HostDecision::MovesIn).count();
    assert!(moves_in == 0 || iteration.moves_out + iteration.evicted == 0, "both ways at once");
    let device_pages = iteration.device_pages(queues, limits, places);
    let host_pages = iteration.host_pages(queues, limits, places);
    assert!(device_pages <= u64::from(limits.device_pages), "{device_pages} of {limits:?}");
    assert!(host_pages <= u64::from(limits.host_pages), "{host_pages} of {limits:?}");
    let decodes = [
        HostDecision::MovesIn,
        HostDecision::FirstBatch,
        HostDecision::SecondBatch,
        HostDecision::Deferred,
    ];
    let of_host = places.iter().filter(|place| decodes.contains(place)).count();
    let prompts: u32 = iteration.prefills(queues).iter().map(|one| one.tokens).sum();
    assert!(iteration.decodes as u32 + of_host as u32 + prompts <= limits.rows, "too many rows");
    let all = iteration.decodes + iteration.evicted + iteration.moves_out;
    assert_eq!(all, queues.device.len());
    let has = |place: HostDecision| places.contains(&place);
    let is_pipelined = has(HostDecision::FirstBatch) || has(HostDecision::SecondBatch);
    assert_eq!(is_pipelined, iteration.shape == IterationShape::Pipelined, "{policy:?} {places:?}");
    assert!(!has(HostDecision::Deferred) || iteration.shape == IterationShape::Async);
    let may_lag = limits.deferred_rows != DeferredRows::Never;
    assert!(may_lag || iteration.shape != IterationShape::Async, "{policy:?}: no row may lag");
    let may = match policy {
        SchedulingPolicy::GpuOnly => iteration.host_prefills == 0,
        SchedulingPolicy::FastDecode => {
            iteration.device_prefills == 0 && iteration.decodes == 0 && moves_in == 0
        }
        SchedulingPolicy::Neo => iteration.shape != IterationShape::Async,
        SchedulingPolicy::Apex | SchedulingPolicy::Auto => true,
    };
    assert!(may, "{policy:?}: {iteration:?} {places:?}");
    let of = |wanted: &[HostDecision]| -> Vec<u32> {
        let with_host = iteration.with_host(queues).zip(places);
        with_host.filter(|(_, place)| wanted.contains(place)).map(|(one, _)| one.layer).collect()
    };
    let deferred = of(&[HostDecision::Deferred]);
    match limits.deferred_rows {
        DeferredRows::Never => {}
        DeferredRows::SameLayer => assert!(deferred.iter().all(|layer| *layer == deferred[0])),
        // As far as rows permit, all deferred rows advance, and none of them joins another shape.
        DeferredRows::AnyLayer => {
            assert!(
                of(&[HostDecision::FirstBatch, HostDecision::SecondBatch, HostDecision::MovesIn])
                    .iter()
                    .all(|l| *l == 0)
            );
            let waits = of(&[HostDecision::Waits]).iter().any(|layer| *layer > 0);
            let rows = iteration.decodes as u32 + of_host as u32 + prompts;
            assert!(!waits || rows == limits.rows, "{policy:?} {places:?}");
        }
    }
}

fn policies() -> impl Strategy<Value = SchedulingPolicy> {
    (0..POLICIES.len()).prop_map(|index| POLICIES[index])
}

fn deferred_rows() -> impl Strategy<Value = DeferredRows> {
    (0..DeferredRows::ALL.len()).prop_map(|index| DeferredRows::ALL[index])
}

fn limits(device_pages: u32, host_pages: u32, deferred_rows: DeferredRows) -> IterationLimits {
    IterationLimits {
        rows: 200,
        page_positions: 4,
        device_pages,
        host_pages,
        patience: 40,
        deferred_rows,
    }
}

proptest! {
    #[test]
    fn everybody_ends_in_rooms_that_are_kept_to(
        policy in policies(),
        lengths in prop::collection::vec((1u32..60, 1u32..40), 1..40),
        device_pages in 25u32..60,
        host_pages in 50u32..200,
        deferred_rows in deferred_rows(),
    ) {
        let limits = limits(device_pages, host_pages, deferred_rows);
        let waiting = lengths.iter().zip(0..).map(|((prompt, _), id)| queued(id, *prompt));
        let mut server = Server { waiting: waiting.collect(), ..Server::default() };
        let ends = |one: &QueuedSequence| {
            let (prompt, answer) = lengths[one.id as usize];
            one.tokens >= prompt + answer
        };
        let mut iterations = 0;
        while !server.is_idle() {
            let is_late = server.is_late;
            let computed = server.step(policy, &limits, ends);
            prop_assert!(computed || is_late, "nothing is computed");
            iterations += 1;
            prop_assert!(iterations < 40_000, "no end: {server:?}");
        }
        server.ended.sort_unstable();
        prop_assert_eq!(server.ended, (0..lengths.len() as u32).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nobody_starves_however_many_come(
        policy in policies(),
        device_pages in 25u32..40,
        host_pages in 80u32..200,
        prompt in 1u32..20,
        long in 20u32..60,
        seed in 0u32..1000,
        deferred_rows in deferred_rows(),
    ) {
        let limits = limits(device_pages, host_pages, deferred_rows);
        let mut server = Server::default();
        let mut id = 0;
        let mut most_waited = 0;
        for iteration in 0..3000 {
            while server.waiting.len() < 3 {
                // One long prompt among many short ones.
                let tokens = if (id + seed) % 7 == 0 { long } else { prompt };
                server.waiting.push_back(queued(id, tokens));
                id += 1;
            }
            let answer = |one: &QueuedSequence| one.tokens >= 20 + one.id % 13 + long.max(prompt);
            server.step(policy, &limits, answer);
            let waits = server.host.iter().map(|one| one.idle_iterations).max().unwrap_or(0);
            most_waited = most_waited.max(waits);
            // Each of the host's sequences before it may occupy the device alone for its whole
            // answer.
            prop_assert!(most_waited < 1500, "{policy:?} at {iteration}: {server:?}");
        }
        prop_assert!(id > 20, "prompts begin: {id}");
    }
}
