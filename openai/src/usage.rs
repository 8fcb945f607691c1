//! Token counts of a request.

use serde::{Deserialize, Serialize};

/// Token counts over all choices of a request, by OpenAI's definition: generated tokens count even
/// if they are not part of the answer (a stop string, the end-of-sequence token).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    /// Details of the prompts' tokens, which only a server reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptDetails>,
    /// Details of the generated tokens, which only a server reports: for models whose reasoning is
    /// separated from answers, and if tokens were drafted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionDetails>,
}

/// Details of the tokens of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptDetails {
    /// Number of tokens whose keys and values were cached.
    pub cached_tokens: u64,
}

/// Details of generated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionDetails {
    /// Number of tokens that belong to the reasoning, markers included.
    pub reasoning_tokens: u64,
    /// Number of drafted tokens that are part of answers, if any were drafted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_prediction_tokens: Option<u64>,
    /// Number of drafted tokens at whose positions others were drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected_prediction_tokens: Option<u64>,
}

impl Usage {
    /// Creates the counts without details.
    pub fn new(prompt_tokens: u64, completion_tokens: u64) -> Usage {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: None,
            completion_tokens_details: None,
        }
    }

    /// Adds the number of tokens of the reasoning.
    #[must_use]
    pub fn with_reasoning(self, reasoning_tokens: u64) -> Usage {
        let details = self.completion_tokens_details.unwrap_or_default();
        let details = CompletionDetails { reasoning_tokens, ..details };
        Usage { completion_tokens_details: Some(details), ..self }
    }

    /// Adds the numbers of drafted tokens.
    #[must_use]
    pub fn with_drafts(self, accepted: u64, rejected: u64) -> Usage {
        let details = CompletionDetails {
            accepted_prediction_tokens: Some(accepted),
            rejected_prediction_tokens: Some(rejected),
            ..self.completion_tokens_details.unwrap_or_default()
        };
        Usage { completion_tokens_details: Some(details), ..self }
    }

    /// Adds the number of prompt tokens that were cached.
    #[must_use]
    pub fn with_cached(self, cached_tokens: u64) -> Usage {
        Usage { prompt_tokens_details: Some(PromptDetails { cached_tokens }), ..self }
    }
}
