//! Two batches while they are filled, and the host's remaining time.

use super::costs::LayerCosts;

/// Decode rows for which the host computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionLoad {
    pub sequences: u32,
    /// Positions that they attend to, in total.
    pub positions: u64,
}

impl AttentionLoad {
    pub const fn with(self, tokens: u32) -> AttentionLoad {
        AttentionLoad { sequences: self.sequences + 1, positions: self.positions + tokens as u64 }
    }

    pub fn ms(self, costs: &impl LayerCosts) -> f64 {
        costs.host_decode_ms(self.sequences, self.positions)
    }
}

/// The two batches of an iteration. All prompts, and all decodes of the device, are in the first.
#[derive(Debug)]
pub(super) struct Batches<'a, C> {
    pub(super) costs: &'a C,
    pub(super) rows: [u32; 2],
    /// Attention of all prompts.
    prefill_ms: f64,
    pub(super) device_positions: u64,
    pub(super) host: [AttentionLoad; 2],
    /// Number of sequences that are computed.
    pub(super) requests: u32,
}

impl<C> Clone for Batches<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Batches<'_, C> {}

impl<'a, C: LayerCosts> Batches<'a, C> {
    pub(super) const fn new(costs: &'a C) -> Self {
        Batches {
            costs,
            rows: [0; 2],
            prefill_ms: 0.0,
            device_positions: 0,
            host: [AttentionLoad { sequences: 0, positions: 0 }; 2],
            requests: 0,
        }
    }

    pub(super) fn add_prefill(&mut self, tokens: u32) {
        self.rows[0] += tokens;
        self.prefill_ms += self.costs.prefill_attention_ms(tokens);
        self.requests += 1;
    }

    #[must_use]
    pub(super) fn without_prefill(mut self, tokens: u32) -> Self {
        self.rows[0] -= tokens;
        self.prefill_ms -= self.costs.prefill_attention_ms(tokens);
        self.requests -= 1;
        self
    }

    pub(super) fn add_device_decode(&mut self, tokens: u32) {
        self.rows[0] += 1;
        self.device_positions += u64::from(tokens);
        self.requests += 1;
    }

    #[must_use]
    pub(super) fn with_host_decode(mut self, batch: usize, tokens: u32) -> Self {
        self.rows[batch] += 1;
        self.host[batch] = self.host[batch].with(tokens);
        self.requests += 1;
        self
    }

    /// Returns the batches without the host's sequences in the first.
    #[must_use]
    pub(super) fn without_host(mut self) -> Self {
        let [first, second] = std::mem::take(&mut self.host);
        self.rows = [self.rows[0] - first.sequences, 0];
        self.requests -= first.sequences + second.sequences;
        self
    }

    /// Returns by how much the host finishes a batch's attention before the device finishes its
    /// concurrent work, in ms per layer.
    pub(super) fn slack_ms(&self, batch: usize) -> f64 {
        let linear_ms = self.costs.linear_ms(self.rows[1 - batch]);
        let attention_ms = if batch == 0 { self.device_attention_ms() } else { 0.0 };
        linear_ms + attention_ms - self.host[batch].ms(self.costs) - self.costs.launch_ms()
    }

    /// Returns true if the host finishes before the device for both batches.
    pub(super) fn is_hidden(&self) -> bool {
        self.slack_ms(0) >= 0.0 && self.slack_ms(1) >= 0.0
    }

    fn device_attention_ms(&self) -> f64 {
        self.prefill_ms + self.costs.device_decode_ms(self.device_positions)
    }

    /// Returns the device's time for a layer, in ms.
    pub(super) fn device_ms(&self) -> f64 {
        let linear_ms = self.costs.linear_ms(self.rows[0]) + self.costs.linear_ms(self.rows[1]);
        linear_ms + self.device_attention_ms()
    }

    /// Returns true if this computes more sequences per time than another.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        let (own, others) = (f64::from(self.requests), f64::from(other.requests));
        match other.requests {
            0 => self.requests > 0,
            _ => own * other.device_ms() > others * self.device_ms(),
        }
    }
}
