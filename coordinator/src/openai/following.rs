//! Options for processing an answer.

use std::sync::Arc;

use grammar::{Calls, Grammar};

use super::item::Request;
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;
use crate::boundary::codec::TextContext;

/// Properties of a request that determine how its answers are processed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Following {
    /// The answer is streamed.
    pub is_streamed: bool,
    /// Stop strings, none of which is empty; the answer ends before the first of them.
    pub stop: StopStrings,
    /// Number of tokens before which no stop string ends the answer, as in vLLM: a stop string that
    /// one of the first `min_tokens` tokens completes is ignored.
    pub min_tokens: u32,
    /// Context that the answer's text follows.
    pub context: TextContext,
    /// Number of log-probabilities for each token.
    pub width: usize,
    /// Grammar of the answer.
    pub grammar: Option<Arc<Grammar>>,
    /// Reasoning of the answer, if it is separated from the text.
    pub reasoning: Option<Arc<Reasoning>>,
}

impl Following {
    /// Creates the options for one of the answers to a request.
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

    /// Returns the context that the text of one of the answers to a request follows.
    pub fn context(request: &Request, choice: usize) -> TextContext {
        let keeps_space = request.grammar.is_some();
        TextContext { keeps_space, ..TextContext::behind(&request.prompt_of(choice).tokens) }
    }

    /// Returns the tool calls that the answer may contain.
    pub fn calls(&self) -> Option<&Calls> {
        self.grammar.as_deref().and_then(Grammar::calls)
    }
}
