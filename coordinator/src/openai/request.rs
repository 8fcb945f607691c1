//! From a body to a request that can be run: tokenised, within the model's context.

use std::sync::Arc;

use grammar::{Calls, Grammar};

use super::body::tools::Tools;
use super::body::{Body, RawPrompt};
use super::calls::format::{CallFormat, KNOWN, takes_tools};
use super::chats::ChatRules;
use super::item::{Endpoint, ErrorCode, Rejection, Request};
use super::prompt::{Limits, fit};
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;
use crate::boundary::codec::TextCodec;

/// New tokens of a completion that does not say, as at OpenAI.
pub const COMPLETION_MAX_TOKENS: u32 = 16;

/// What requests are made with.
#[derive(Debug, Clone, Copy)]
pub struct Building<'a> {
    /// For requests that give neither `max_tokens` nor `max_completion_tokens`, at least 1; without
    /// it [`COMPLETION_MAX_TOKENS`] and `chat_max_tokens`.
    pub max_tokens: Option<u32>,
    /// At least 1.
    pub chat_max_tokens: u32,
    /// For requests that give no `seed`.
    pub seed: u64,
    /// What a chat template that asks for the date is told, seconds since 1970.
    pub now_s: u64,
    /// `None` when the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
    pub chats: &'a ChatRules,
    pub limits: Limits,
}

impl Building<'_> {
    /// Makes a request of a body, whose id and line it is given later.
    ///
    /// # Errors
    /// What the model cannot take.
    pub fn build(&self, endpoint: Endpoint, body: &Body) -> Result<Request, Rejection> {
        let needs_text = [
            (!body.stop.is_empty(), "so \"stop\" cannot be looked for"),
            (body.echo, "so \"echo\" has no text"),
            (body.grammar.is_some(), "so its answers cannot have a form"),
            (body.tools.is_some(), "so its answers cannot call functions"),
        ];
        for (_, consequence) in needs_text.iter().filter(|(is_needed, _)| *is_needed) {
            if self.codec.is_none() {
                return Err(Rejection::new(
                    ErrorCode::NoTokenizer,
                    format!("This model has no tokenizer, {consequence}; leave it out."),
                ));
            }
        }
        let grammar = match &body.tools {
            Some(tools) => Some(Grammar::Calls(Box::new(self.calls(tools)?))),
            None => body.grammar.clone(),
        };
        let is_chat = body.prompts.iter().any(|prompt| matches!(prompt, RawPrompt::Chat(_)));
        let default = if is_chat { self.chat_max_tokens } else { COMPLETION_MAX_TOKENS };
        let most = body.max_tokens.or(self.max_tokens).unwrap_or(default);
        let fitted = |raw: &RawPrompt| {
            fit(&self.chats.with_variables(raw), most, self.codec, self.now_s, self.limits)
        };
        let prompts = body.prompts.iter().map(fitted).collect::<Result<Vec<_>, _>>()?;
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
            columns: body.columns.clone(),
        })
    }

    /// How the model calls functions.
    fn calls(&self, tools: &Tools) -> Result<Calls, Rejection> {
        let refused = |why: &str| {
            let message = format!("The field \"tools\" cannot be followed: {why}.");
            Rejection::new(ErrorCode::UnsupportedField, message)
        };
        let codec = self.codec.ok_or_else(|| refused("this model has no tokenizer"))?;
        let template = codec.tools_template().map_err(|reason| refused(&reason))?;
        let template = template.unwrap_or_default();
        if !takes_tools(&template) {
            return Err(refused("this model's chat template tells it of no functions"));
        }
        let format = CallFormat::of_template(&template).ok_or_else(|| {
            refused(&format!(
                "how this model's chat template writes calls is not known here; known is how \
                 those of {KNOWN} do"
            ))
        })?;
        let syntax = format.syntax(&|text| codec.special_token(text));
        Ok(Calls {
            syntax: syntax.map_err(|reason| refused(&reason))?,
            functions: tools.functions.clone(),
            is_required: tools.is_required,
            are_several: tools.are_several && format.takes_several(),
        })
    }
}
