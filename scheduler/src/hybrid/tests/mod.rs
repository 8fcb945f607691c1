//! Tests of the policies against brute force, and of properties that all policies have.

mod by_hand;
mod neo_by_search;
mod properties;
mod times;

use super::{
    HostDecision, Iteration, IterationLimits, LayerCosts, LinkCosts, QueuedSequence, Queues,
    SchedulingPolicy, next_iteration,
};

/// Costs whose sums are exact in any order, since all are multiples of 1/64.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExactCosts {
    pub(super) weights_ms: f64,
    pub(super) host_position_ms: f64,
    pub(super) launch_ms: f64,
    pub(super) link: LinkCosts,
}

impl ExactCosts {
    pub(super) const PLAIN: ExactCosts = ExactCosts {
        weights_ms: 4.0,
        host_position_ms: 0.125,
        launch_ms: 0.5,
        link: LinkCosts {
            weights_ms: 0.0,
            row_out_ms: 0.0,
            row_back_ms: 0.0,
            position_out_ms: 0.0,
            position_in_ms: 0.0,
            memory: super::MemoryShares { attention: 0.0, to_device: 0.0, to_host: 0.0 },
        },
    };
}

impl LayerCosts for ExactCosts {
    fn layers(&self) -> u32 {
        4
    }

    fn linear_ms(&self, rows: u32) -> f64 {
        if rows == 0 { 0.0 } else { self.weights_ms + f64::from(rows) / 4.0 }
    }

    fn prefill_attention_ms(&self, tokens: u32) -> f64 {
        f64::from(tokens * tokens) / 64.0
    }

    fn device_decode_ms(&self, positions: u64) -> f64 {
        positions as f64 / 32.0
    }

    fn host_decode_ms(&self, sequences: u32, positions: u64) -> f64 {
        f64::from(sequences) / 2.0 + positions as f64 * self.host_position_ms
    }

    fn launch_ms(&self) -> f64 {
        self.launch_ms
    }

    fn ends_ms(&self, _rows: u32, samples: u32) -> f64 {
        f64::from(samples) / 16.0
    }

    fn link(&self) -> LinkCosts {
        self.link
    }
}

/// Generator of small seeded random integers.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + (self.0 >> 33) as u32 % (high - low + 1)
    }
}

pub(super) fn queued(id: u32, tokens: u32) -> QueuedSequence {
    QueuedSequence { id, tokens, layer: 0, idle_iterations: 0 }
}

/// Returns an iteration and the places of the sequences with the host.
pub(super) fn decided(
    policy: SchedulingPolicy,
    queues: &Queues<'_>,
    limits: &IterationLimits,
    costs: &impl LayerCosts,
) -> (Iteration, Vec<HostDecision>) {
    // More entries than needed, with values that differ from the default.
    let mut places = vec![HostDecision::Deferred; queues.device.len() + queues.host.len() + 3];
    let iteration = next_iteration(policy, queues, limits, costs, &mut places);
    places.truncate(iteration.host_sequences(queues));
    (iteration, places)
}
