//! How an answer is followed.

use std::sync::Arc;

use grammar::{Calls, Grammar};

use super::item::Request;
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;
use crate::boundary::codec::TextContext;

/// What of a request decides how its answers are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Following {
    /// It is told while it grows.
    pub is_streamed: bool,
    /// It ends before the first of these; none is empty.
    pub stop: StopStrings,
    /// Tokens before which no stop string ends it, as in vLLM: what is complete with one of the
    /// first `min_tokens` is not looked at.
    pub min_tokens: u32,
    /// What its text stands behind.
    pub context: TextContext,
    /// Log-probabilities of each token.
    pub width: usize,
    /// The form that it must have.
    pub grammar: Option<Arc<Grammar>>,
    /// How it thinks first, where that is told apart.
    pub reasoning: Option<Arc<Reasoning>>,
}

impl Following {
    /// Of one of the answers to a request.
    pub fn new(request: &Request, choice: usize, is_streamed: bool) -> Following {
        Following {
            is_streamed,
            stop: request.stop.clone(),
            min_tokens: request.sampling.min_tokens,
            context: Following::context(request, choice),
            width: usize::from(request.logprobs_of_token()),
            grammar: request.grammar.clone(),
            reasoning: request.reasoning.clone(),
        }
    }

    /// What the text of one of the answers to a request stands behind.
    pub fn context(request: &Request, choice: usize) -> TextContext {
        let keeps_space = request.grammar.is_some();
        TextContext { keeps_space, ..TextContext::behind(&request.prompt_of(choice).tokens) }
    }

    /// The calls that it may have.
    pub fn calls(&self) -> Option<&Calls> {
        self.grammar.as_deref().and_then(Grammar::calls)
    }
}
