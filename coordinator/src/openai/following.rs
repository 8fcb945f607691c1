//! How an answer is followed.

use std::sync::Arc;

use grammar::{Calls, Grammar};

use super::item::Request;
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;

/// What of a request decides how its answers are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Following {
    /// It is told while it grows.
    pub is_streamed: bool,
    /// It ends before the first of these; none is empty.
    pub stop: StopStrings,
    /// Log-probabilities of each token.
    pub width: usize,
    /// The form that it must have.
    pub grammar: Option<Arc<Grammar>>,
    /// How it thinks first, where that is told apart.
    pub reasoning: Option<Arc<Reasoning>>,
}

impl Following {
    /// Of an answer to a request.
    pub fn new(request: &Request, is_streamed: bool) -> Following {
        Following {
            is_streamed,
            stop: request.stop.clone(),
            width: usize::from(request.logprobs_of_token()),
            grammar: request.grammar.clone(),
            reasoning: request.reasoning.clone(),
        }
    }

    /// The calls that it may have.
    pub fn calls(&self) -> Option<&Calls> {
        self.grammar.as_deref().and_then(Grammar::calls)
    }
}
