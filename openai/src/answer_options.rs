//! Options for processing an answer.

use std::sync::Arc;

use engine_api::codec::TextContext;
use grammar::{Calls, Grammar};

use super::input_line::CompletionRequest;
use super::output_options::OutputOptions;
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;

/// Properties of a request that determine how its answers are processed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerOptions {
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
    pub logprobs_per_token: usize,
    pub output: OutputOptions,
    /// Grammar of the answer.
    pub grammar: Option<Arc<Grammar>>,
    /// Reasoning of the answer, if it is separated from the text.
    pub reasoning: Option<Arc<Reasoning>>,
}

impl AnswerOptions {
    /// Creates the options for one of the answers to a request.
    pub fn new(request: &CompletionRequest, choice: usize, is_streamed: bool) -> AnswerOptions {
        AnswerOptions {
            is_streamed,
            stop: request.stop.clone(),
            min_tokens: request.sampling.min_tokens,
            context: AnswerOptions::text_context(request, choice),
            logprobs_per_token: usize::from(request.logprobs_per_token()),
            output: request.output,
            grammar: request.grammar.clone(),
            reasoning: request.reasoning.clone(),
        }
    }

    /// Returns the context that the text of one of the answers to a request follows.
    pub fn text_context(request: &CompletionRequest, choice: usize) -> TextContext {
        let keeps_leading_space = request.grammar.is_some();
        TextContext {
            keeps_leading_space,
            ..TextContext::after_prompt(&request.prompt_of(choice).tokens)
        }
    }

    /// Returns the tool calls that the answer may contain.
    pub fn calls(&self) -> Option<&Calls> {
        self.grammar.as_deref().and_then(Grammar::calls)
    }
}
