//! Hidden states that enter or leave a model, for multi-token prediction.

use serde::{Deserialize, Serialize};

/// Hidden states that a model exchanges with another one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenStates {
    /// None.
    #[default]
    Internal,
    /// `Sample` also reads the residual stream of all rows, for a model that predicts from it.
    Sampled,
    /// The model is this layer of the files of another one, whose hidden states are joined with the
    /// embeddings of its rows. `Sample` reads those of its own rows, which are joined with the
    /// embeddings of predicted tokens.
    Joined { layer: usize },
}

impl HiddenStates {
    /// Returns true if `Sample` also reads the residual stream of all rows.
    pub const fn are_sampled(self) -> bool {
        !matches!(self, HiddenStates::Internal)
    }

    /// Returns true if hidden states of another model are joined with the embeddings.
    pub const fn are_joined(self) -> bool {
        matches!(self, HiddenStates::Joined { .. })
    }
}
