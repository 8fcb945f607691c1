//! Rules of a request about single tokens.

/// Rules of a request about single tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenRules {
    /// Tokens and what is added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that end the answer, in addition to those of the model.
    pub stop_token_ids: Vec<u32>,
}

impl TokenRules {
    /// Maximum number of tokens with a bias.
    pub const LOGIT_BIASES_MAX: usize = 1024;
    /// Maximum number of tokens that end an answer.
    pub const STOP_TOKENS_MAX: usize = 128;
}
