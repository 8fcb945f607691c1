//! Mamba2: layers that keep a state of fixed size per sequence instead of a cache.
//!
//! A linear of a row gives z, x, B, C and dt. x, B and C pass through a short causal convolution
//! per channel. Then the state `S` `[head_dim, state_dim]` of each head decays by a factor that
//! depends on dt, takes in the outer product of x and B, and is read at C. The result is multiplied
//! by the SiLU of z, and normalised in groups (Dao and Gu, "Transformers are SSMs", 2024;
//! transformers' `GraniteMoeHybridMambaLayer` and `NemotronHMamba2Mixer`).

use serde::{Deserialize, Serialize};

use crate::state_slot::{slot_len, stored_inputs};

/// Sizes of layers with Mamba2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mamba {
    /// Number of heads of x and of the state.
    pub heads: usize,
    /// Number of elements in a head of x.
    pub head_dim: usize,
    /// Number of groups, a divisor of `heads`: consecutive heads share the B and C of their group,
    /// and the norm covers each group separately.
    pub groups: usize,
    /// Number of elements of B and of C in a group.
    pub state_dim: usize,
    /// Number of rows that the convolution covers, including the current one.
    pub taps: usize,
    /// The convolution has a bias.
    pub conv_bias: bool,
    /// Lower limit of the time step.
    pub min_step: f32,
    /// Upper limit of the time step; `None` for none.
    pub max_step: Option<f32>,
}

impl Mamba {
    /// Returns the width of x, which is also that of z and of the heads' output.
    pub const fn inner_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the number of channels of the convolution: x, B and C, concatenated.
    pub const fn channels(&self) -> usize {
        self.inner_size() + 2 * self.groups * self.state_dim
    }

    /// Returns the width of z, x, B, C and dt, concatenated.
    pub const fn input_size(&self) -> usize {
        self.inner_size() + self.channels() + self.heads
    }

    /// Returns the group whose B and C a head uses.
    pub const fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }

    /// Returns the number of convolution inputs stored per sequence: `[taps - 1 + draft_positions,
    /// channels]`.
    pub const fn inputs_len(&self, draft_positions: usize) -> usize {
        stored_inputs(self.taps, draft_positions) * self.channels()
    }

    /// Returns the number of elements of a head's state, which is stored as `[state_dim,
    /// head_dim]`.
    pub const fn head_state_len(&self) -> usize {
        self.state_dim * self.head_dim
    }

    /// Returns the number of elements of a sequence's states: `[heads, state_dim, head_dim]`.
    pub const fn state_len(&self) -> usize {
        self.heads * self.head_state_len()
    }

    /// Returns the number of elements of a row that states take in: x, B and C after the
    /// convolution, and dt.
    pub const fn state_row_len(&self) -> usize {
        self.channels() + self.heads
    }

    /// Returns the number of elements of a slot, which contains a sequence's states and the rows of
    /// its drafts.
    pub const fn slot_len(&self, draft_positions: usize) -> usize {
        slot_len(self.state_len(), self.state_row_len(), draft_positions)
    }

    /// Limits a time step.
    pub fn limit(&self, step: f32) -> f32 {
        let step = step.max(self.min_step);
        self.max_step.map_or(step, |max| step.min(max))
    }
}
