//! Options for the contents of answers.

/// Options for the contents of answers, which vLLM has as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputOptions {
    /// A text that a stop string ends includes the stop string.
    pub includes_stop: bool,
    /// Tokens in log-probabilities are represented by their ids.
    pub spells_token_ids: bool,
    /// Answers have no reasoning.
    pub omits_reasoning: bool,
}
