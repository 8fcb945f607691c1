//! A prompt to continue, as engines and workers see it.

use std::sync::Arc;

use grammar::{EncodedGrammar, Grammar};
pub use kernels::{Penalties, Sampling};

use super::token_rules::TokenRules;

/// Priority of a request in an engine that serves. It never changes an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// Computed in the order of arrival, before all requests of lower priority.
    #[default]
    Interactive,
    /// Computed in slots that no interactive request needs. If one waits, the sequence leaves its
    /// slot and continues later.
    Background,
}

/// Reduction of the hidden states of a prompt after the final norm to one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Hidden state of the last token.
    LastToken,
    /// Mean over all tokens, summed in f32 in the order of their positions.
    Mean,
}

/// A prompt to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    /// Token ids, at least one.
    pub prompt: Arc<[u32]>,
    /// Maximum number of new tokens; together with the prompt never more than the engine's context.
    /// If 0, only the prompt is evaluated, except its last token, which is not computed; it then
    /// has at least two tokens.
    pub max_new: u32,
    pub sampling: Sampling,
    /// Rules about single tokens; `None` if there are none.
    pub token_rules: Option<Arc<TokenRules>>,
    pub seed: u64,
    /// Key of sampling, together with `seed` and the position, so that an answer does not depend on
    /// what else is answered.
    pub id_hash: u64,
    /// End-of-sequence tokens are treated like any other token.
    pub ignore_eos: bool,
    /// Logits that are not finite do not end the sequence. Used by measurements.
    pub any_logits: bool,
    /// Number of log-probabilities reported for each new token: its own, followed by those of the
    /// most likely tokens; at most as many as the engine was started for.
    pub logprobs: u16,
    /// Number of log-probabilities reported for each token of the prompt from position
    /// `prompt_logprobs_from` on; 0 for none. Only an engine that serves reports them.
    pub prompt_logprobs: u16,
    /// Position of the first prompt token with log-probabilities, at least 1, since the first token
    /// has none. Positions before it may come from caches.
    pub prompt_logprobs_from: u32,
    /// Pooling of the prompt's hidden states, which are reported before the first token; `None` if
    /// they are not requested. It requires a new token, since the last token of the prompt is
    /// computed only for one. Only an engine that serves reports them.
    pub pooling: Option<Pooling>,
    pub grammar: AnswerGrammar,
    /// Tokens of the vocabulary that the answer probably consists of, which an engine that serves
    /// may verify instead of drawing them one by one; `None` without a prediction. They change no
    /// answer.
    pub prediction: Option<Arc<[u32]>>,
    pub priority: Priority,
}

impl GenerationRequest {
    /// Returns a greedy request that no token and no logit ends early.
    pub fn greedy(prompt: Vec<u32>, max_new: u32) -> GenerationRequest {
        GenerationRequest {
            prompt: prompt.into(),
            max_new,
            sampling: Sampling::GREEDY,
            token_rules: None,
            seed: 0,
            id_hash: 0,
            ignore_eos: true,
            any_logits: true,
            logprobs: 0,
            prompt_logprobs: 0,
            prompt_logprobs_from: 1,
            pooling: None,
            grammar: AnswerGrammar::None,
            prediction: None,
            priority: Priority::Interactive,
        }
    }
}

/// Grammar that an answer follows.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum AnswerGrammar {
    #[default]
    None,
    /// Number of a grammar that the engine knows, counted from 1.
    Number(u32),
    /// A grammar for an engine to which grammars come with requests, from
    /// [`Engine::prepare`](crate::serving::Engine::prepare).
    Prepared(Arc<PreparedGrammar>),
}

impl AnswerGrammar {
    /// Returns the number by which the engine knows the grammar; 0 without one.
    pub const fn number(&self) -> u32 {
        match self {
            AnswerGrammar::Number(number) => *number,
            AnswerGrammar::None | AnswerGrammar::Prepared(_) => 0,
        }
    }
}

/// A grammar as an engine needs it, shared by all submissions of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedGrammar {
    pub grammar: Arc<Grammar>,
    /// The grammar over the model's tokens; `None` from an engine that does not need it or does not
    /// support grammars.
    pub compiled: Option<EncodedGrammar>,
}
