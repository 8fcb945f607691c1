//! Rows that experts read and write, which may have a width of their own.

use crate::config::ModelConfig;

impl ModelConfig {
    /// Returns true if the outputs of experts are summed apart from the residual.
    pub fn sums_experts(&self) -> bool {
        self.has_parallel_experts() || self.features.streams.is_some() || self.has_expert_latent()
    }

    /// Returns true if experts compute rows of another width than the hidden state's.
    pub fn has_expert_latent(&self) -> bool {
        self.experts.is_some_and(|experts| experts.latent_size.is_some())
    }

    /// Returns the width of the rows that experts read and write, in elements.
    pub fn expert_row_size(&self) -> usize {
        self.experts.and_then(|experts| experts.latent_size).unwrap_or(self.hidden_size)
    }
}
