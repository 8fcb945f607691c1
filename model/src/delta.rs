//! Gated DeltaNet: layers that keep a state of fixed size for each sequence instead of a cache.
//!
//! Q, k and v of a row pass a short causal convolution of each channel. Then each value head's
//! state `S` `[key_dim, value_dim]` forgets by a factor, is corrected at k towards v, and is read
//! at q (Yang et al., "Gated Delta Networks", 2024; transformers' `Qwen3NextGatedDeltaNet`).

use serde::{Deserialize, Serialize};

/// Bytes of an element of a state, which is f32 whatever the run's dtype.
const STATE_ELEMENT_BYTES: usize = 4;

/// The sizes of such layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeltaNet {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v and of the state, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Value heads take turns at the heads of q and k; else neighbours share one.
    pub takes_turns: bool,
    /// Elements of a head of q and k.
    pub key_dim: usize,
    /// Elements of a head of v.
    pub value_dim: usize,
    /// Rows that the convolution looks at, its own included.
    pub taps: usize,
}

impl DeltaNet {
    /// Width of q, and of k.
    pub const fn key_size(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of v, and of what the heads compute.
    pub const fn value_size(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q, k and v one behind the other.
    pub const fn channels(&self) -> usize {
        2 * self.key_size() + self.value_size()
    }

    /// Value heads that share a head of q and k.
    pub const fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// The head of q and k of a value head.
    pub const fn key_head(&self, value_head: usize) -> usize {
        if self.takes_turns { value_head % self.key_heads } else { value_head / self.group() }
    }

    /// Elements that a sequence keeps of the convolution's inputs: `[taps - 1, channels]`.
    pub const fn inputs_len(&self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// Elements of a sequence's states: `[value_heads, key_dim, value_dim]`.
    pub const fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Bytes that a sequence keeps of the convolution's inputs.
    pub const fn inputs_bytes(&self) -> usize {
        self.inputs_len() * STATE_ELEMENT_BYTES
    }

    /// Bytes of a sequence's states.
    pub const fn state_bytes(&self) -> usize {
        self.state_len() * STATE_ELEMENT_BYTES
    }
}
