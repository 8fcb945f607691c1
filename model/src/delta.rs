//! Gated DeltaNet: layers that keep a state of fixed size per sequence instead of a cache.
//!
//! q, k and v of a row pass through a short causal convolution per channel. Then the state `S`
//! `[key_dim, value_dim]` of each value head decays by a factor, is corrected at k towards v, and
//! is read at q (Yang et al., "Gated Delta Networks", 2024; transformers'
//! `Qwen3NextGatedDeltaNet`). In Kimi delta attention each element of a head's key has a factor of
//! its own, and the gate of the output is a sigmoid (Kimi Team, "Kimi Linear", 2025; transformers'
//! `KimiLinearDeltaAttention`).

use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::state_slot::{slot_len, stored_inputs};

/// Factors by which states decay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateDecay {
    /// One factor for each value head (Gated DeltaNet).
    #[default]
    PerHead,
    /// One factor for each element of a value head's key (Kimi delta attention). It is computed by
    /// two linears with `rank` elements between them; so is the gate of the output.
    PerChannel { rank: usize },
}

/// Sizes of layers that keep a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeltaNet {
    /// Number of heads of q and k.
    pub key_heads: usize,
    /// Number of heads of v and of the state, a multiple of `key_heads`.
    pub value_heads: usize,
    /// True if value heads are assigned to the heads of q and k in turn, false if consecutive value
    /// heads share one.
    pub takes_turns: bool,
    /// Number of elements in a head of q and k.
    pub key_dim: usize,
    /// Number of elements in a head of v.
    pub value_dim: usize,
    /// Number of rows that the convolution covers, including the current one.
    pub taps: usize,
    #[serde(default)]
    pub decay: StateDecay,
}

/// Prints `decay` only if it differs from the default, since keys of stored data are derived from
/// this text.
impl Debug for DeltaNet {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let DeltaNet { key_heads, value_heads, takes_turns, key_dim, value_dim, taps, decay } =
            self;
        let mut fields = f.debug_struct("DeltaNet");
        fields.field("key_heads", key_heads).field("value_heads", value_heads);
        fields.field("takes_turns", takes_turns).field("key_dim", key_dim);
        fields.field("value_dim", value_dim).field("taps", taps);
        if *decay != StateDecay::PerHead {
            fields.field("decay", decay);
        }
        fields.finish()
    }
}

impl DeltaNet {
    /// Returns the sizes of Kimi delta attention, whose linears have as many elements between them
    /// as a head.
    pub const fn by_channel(heads: usize, head_dim: usize, taps: usize) -> DeltaNet {
        DeltaNet {
            key_heads: heads,
            value_heads: heads,
            takes_turns: false,
            key_dim: head_dim,
            value_dim: head_dim,
            taps,
            decay: StateDecay::PerChannel { rank: head_dim },
        }
    }

    /// Returns the width of q, which is also that of k.
    pub const fn key_size(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Returns the width of v, which is also that of the heads' output.
    pub const fn value_size(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Returns the number of channels of the convolution: q, k and v, concatenated.
    pub const fn channels(&self) -> usize {
        2 * self.key_size() + self.value_size()
    }

    /// Returns the number of value heads that share a head of q and k.
    pub const fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Returns the head of q and k that a value head uses.
    pub const fn key_head(&self, value_head: usize) -> usize {
        if self.takes_turns { value_head % self.key_heads } else { value_head / self.group() }
    }

    /// Returns the number of elements between the two linears of the decay, and of the gate; `None`
    /// if both are computed by one linear.
    pub const fn decay_rank(&self) -> Option<usize> {
        match self.decay {
            StateDecay::PerHead => None,
            StateDecay::PerChannel { rank } => Some(rank),
        }
    }

    /// Returns the number of factors by which a row's states decay.
    pub const fn decays_len(&self) -> usize {
        match self.decay {
            StateDecay::PerHead => self.value_heads,
            StateDecay::PerChannel { .. } => self.value_heads * self.key_dim,
        }
    }

    /// Returns the number of elements of a row of b and, with a decay per head, a.
    pub const fn rates_size(&self) -> usize {
        match self.decay {
            StateDecay::PerHead => 2 * self.value_heads,
            StateDecay::PerChannel { .. } => self.value_heads,
        }
    }

    /// Returns the number of convolution inputs stored per sequence: `[taps - 1 + draft_positions,
    /// channels]`.
    pub const fn inputs_len(&self, draft_positions: usize) -> usize {
        stored_inputs(self.taps, draft_positions) * self.channels()
    }

    /// Returns the number of elements of a sequence's states: `[value_heads, key_dim, value_dim]`.
    pub const fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Returns the number of elements of a row that states take in: q, k and v after the
    /// convolution, b and a.
    pub const fn state_row_len(&self) -> usize {
        let by_channel = match self.decay {
            StateDecay::PerHead => 0,
            StateDecay::PerChannel { .. } => self.decays_len(),
        };
        self.channels() + self.rates_size() + by_channel
    }

    /// Returns the number of elements of a slot, which contains a sequence's states and the rows of
    /// its drafts.
    pub const fn slot_len(&self, draft_positions: usize) -> usize {
        slot_len(self.state_len(), self.state_row_len(), draft_positions)
    }
}
