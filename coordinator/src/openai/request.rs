//! Conversion of bodies into requests that can be run: tokenised, and within the model's context.

use std::cell::Cell;
use std::sync::Arc;

use grammar::{Calls, CallsOr, Grammar};

use super::body::tools::Tools;
use super::body::{Body, RawPrompt};
use super::calls::format::{CallFormat, KNOWN, takes_tools};
use super::chats::ChatRules;
use super::item::{Endpoint, ErrorCode, Rejection, Request};
use super::prompt::{AnswerLength, Limits, fit, shortened};
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;
use crate::boundary::codec::{CodecError, TextCodec};

/// Default maximum number of new tokens of a completion, OpenAI's value.
pub const COMPLETION_MAX_TOKENS: u32 = 16;

/// Inputs for requests in addition to their bodies.
#[derive(Debug, Clone, Copy)]
pub struct Building<'a> {
    /// Maximum number of new tokens, at least 1, for requests that specify neither `max_tokens` nor
    /// `max_completion_tokens`; if `None`, [`COMPLETION_MAX_TOKENS`] and `chat_max_tokens` apply.
    pub max_tokens: Option<u32>,
    /// Default maximum number of new tokens of a chat, at least 1.
    pub chat_max_tokens: u32,
    /// Seed for requests that specify none.
    pub seed: u64,
    /// Time for chat templates that ask for the date, in seconds since 1970.
    pub now_s: u64,
    /// `None` if the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
    pub chats: &'a ChatRules,
    pub limits: Limits,
}

impl Building<'_> {
    /// Converts a body into a request, whose id and line are set later.
    ///
    /// # Errors
    /// Returns a rejection if the model cannot process the request.
    pub fn build(&self, endpoint: Endpoint, body: &Body) -> Result<Request, Rejection> {
        let needs_text = [
            (!body.stop.is_empty(), ", so 'stop' is not supported; remove it"),
            (body.echo, ", so 'echo' is not supported; remove it"),
            (body.grammar.is_some(), ", so response formats are not supported; remove the format"),
            (body.tools.is_some(), ", so tool calls are not supported; remove 'tools'"),
        ];
        for (_, consequence) in needs_text.iter().filter(|(is_needed, _)| *is_needed) {
            if self.codec.is_none() {
                let message = self.limits.no_tokenizer(consequence);
                return Err(Rejection::new(ErrorCode::NoTokenizer, message));
            }
        }
        let grammar = match (&body.tools, &body.grammar) {
            (None, grammar) => grammar.clone(),
            (Some(tools), Some(grammar)) if !tools.is_required => {
                let (calls, grammar) = (self.calls(tools)?, grammar.clone());
                Some(Grammar::CallsOr(Box::new(CallsOr { calls, grammar })))
            }
            (Some(tools), _) => Some(Grammar::Calls(Box::new(self.calls(tools)?))),
        };
        let is_chat = body.prompts.iter().any(|prompt| matches!(prompt, RawPrompt::Chat(_)));
        let default = if is_chat { self.chat_max_tokens } else { COMPLETION_MAX_TOKENS };
        let length = AnswerLength {
            max_tokens: body.max_tokens.or(self.max_tokens).unwrap_or(default),
            is_requested: body.max_tokens.is_some(),
            must_fit: grammar.is_some(),
        };
        let fitted = |raw: &RawPrompt| {
            fit(&self.chats.with_variables(raw), length, self.codec, self.now_s, self.limits)
        };
        let prompts = body.prompts.iter().map(fitted).collect::<Result<Vec<_>, _>>()?;
        let warnings = body.max_tokens.and_then(|most| shortened(&prompts, most, self.limits));
        let reasoning = self.codec.zip(self.chats.reasoning.clone()).filter(|_| is_chat);
        let reasoning = reasoning.map(|(codec, syntax)| {
            let is_open = prompts.iter().any(|prompt| syntax.is_open(&prompt.tokens, codec));
            Arc::new(Reasoning { syntax, is_open })
        });
        let grammar = match &reasoning {
            Some(reasoning) => grammar.map(|grammar| reasoning.before(grammar)),
            None => grammar,
        };
        let likely = |likely: u16| usize::from(likely).min(self.limits.vocab_size) as u16;
        Ok(Request {
            line: 0,
            custom_id: String::new(),
            endpoint,
            prompts,
            n: body.n,
            sampling: body.sampling,
            seed: body.seed.unwrap_or(self.seed),
            names_seed: body.seed.is_some(),
            stop: StopStrings::new(body.stop.clone()),
            ignore_eos: body.ignore_eos,
            logprobs: body.logprobs.map(likely),
            prompt_logprobs: body.prompt_logprobs.map(likely),
            grammar: grammar.map(Arc::new),
            reasoning,
            echo: body.echo,
            returns_token_ids: body.returns_token_ids,
            warnings: warnings.into_iter().collect(),
            columns: body.columns.clone(),
        })
    }

    /// Returns the tool calls that answers may contain, in the syntax of the model.
    fn calls(&self, tools: &Tools) -> Result<Calls, Rejection> {
        let refused = |why: &str| {
            let message =
                format!("Unsupported parameter: 'tools' cannot be used with this model: {why}.");
            Rejection::new(ErrorCode::UnsupportedField, message).with_param("tools")
        };
        let codec = self.codec.ok_or_else(|| refused("it has no tokenizer"))?;
        let lost = |error: &CodecError| {
            let what = "Unsupported parameter: 'tools' cannot be used with this model";
            Rejection::of_codec(error, ErrorCode::UnsupportedField, what).with_param("tools")
        };
        let template = codec.tools_template().map_err(|error| lost(&error))?;
        let template = template.unwrap_or_default();
        if !takes_tools(&template) {
            return Err(refused("its chat template does not render tools"));
        }
        let format = CallFormat::of_template(&template).ok_or_else(|| {
            refused(&format!(
                "the tool call format of its chat template is unknown; known formats are those of \
                 {KNOWN}"
            ))
        })?;
        let failure = Cell::new(None);
        let syntax = format.syntax(&|text| {
            codec.special_token(text).map_err(|error| {
                let reason = error.to_string();
                failure.set(Some(error));
                reason
            })
        });
        let syntax = syntax.map_err(|reason| match failure.take() {
            Some(error) => lost(&error),
            None => refused(&reason),
        });
        Ok(Calls {
            syntax: syntax?,
            functions: tools.functions.clone(),
            is_required: tools.is_required,
            are_several: tools.are_several && format.takes_several(),
        })
    }
}
