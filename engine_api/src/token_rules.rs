//! Rules of a request about single tokens.

/// Rules of a request about single tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenRules {
    /// Tokens and what is added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that end the answer, in addition to those of the model.
    pub stop_token_ids: Vec<u32>,
    /// Limit on the reasoning before the answer; `None` if there is none.
    pub reasoning_budget: Option<ReasoningBudget>,
}

/// Limit on the tokens between the markers of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningBudget {
    /// Number of tokens within the first reasoning after which the closing marker is forced.
    pub max_tokens: u32,
    /// Opening marker; `None` if the prompt ends within reasoning.
    pub open: Option<u32>,
    /// Closing marker.
    pub close: u32,
}

impl TokenRules {
    /// Maximum number of tokens with a bias.
    pub const LOGIT_BIASES_MAX: usize = 1024;
    /// Maximum number of tokens that end an answer.
    pub const STOP_TOKENS_MAX: usize = 128;
}
