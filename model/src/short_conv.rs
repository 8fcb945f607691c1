//! Short gated convolutions: layers that keep the last inputs of a causal convolution instead of a
//! cache (LFM2).
//!
//! A linear of a row gives B, C and x. The convolution runs over the products of B and x, and its
//! result is multiplied by C (transformers' `Lfm2ShortConv`).

use crate::state_slot::stored_inputs;

/// Sizes of layers with a short convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConv {
    /// Width of B, of C and of x.
    pub channels: usize,
    /// Number of rows that the convolution covers, including the current one.
    pub taps: usize,
}

impl ShortConv {
    /// Returns the width of B, C and x, concatenated.
    pub const fn input_size(&self) -> usize {
        3 * self.channels
    }

    /// Returns the number of products stored per sequence: `[taps - 1 + draft_positions,
    /// channels]`.
    pub const fn inputs_len(&self, draft_positions: usize) -> usize {
        stored_inputs(self.taps, draft_positions) * self.channels
    }
}
