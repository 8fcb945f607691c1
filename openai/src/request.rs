//! Conversion of bodies into requests that can be run: tokenised, and within the model's context.

use std::cell::Cell;
use std::sync::Arc;

use engine_api::codec::{CodecError, TextCodec};
use engine_api::token_rules::ReasoningBudget;
use grammar::{Calls, CallsOr, Grammar};

use super::body::tools::Tools;
use super::body::{Body, RawPrompt};
use super::chats::ChatRules;
use super::input_line::{CompletionRequest, Endpoint, ErrorCode, Prompt, Rejection};
use super::prompt::{AnswerLength, ModelLimits, fit_prompt, shortened_warning};
use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;
use super::token_rules::resolve_token_rules;
use super::tool_calls::format::{CallFormat, KNOWN_FORMATS, supports_tools};

/// Default maximum number of new tokens of a completion, OpenAI's value.
pub const COMPLETION_MAX_TOKENS: u32 = 16;

/// Warning of an answer whose reasoning cannot be limited.
const UNLIMITED_REASONING: &str = "thinking_token_budget has no effect: the chat template of \
                                   this model shows no reasoning between two single tokens.";

/// Inputs for requests in addition to their bodies.
#[derive(Debug, Clone, Copy)]
pub struct RequestBuilder<'a> {
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
    pub chat_rules: &'a ChatRules,
    pub limits: ModelLimits,
}

impl RequestBuilder<'_> {
    /// Converts a body into a request, whose id and line are set later.
    ///
    /// # Errors
    /// Returns a rejection if the model cannot process the request.
    pub fn build(&self, endpoint: Endpoint, body: &Body) -> Result<CompletionRequest, Rejection> {
        self.check_tokenizer(body)?;
        let grammar = match (&body.tools, &body.grammar) {
            (None, grammar) => grammar.clone(),
            (Some(tools), Some(grammar)) if !tools.is_required => {
                let (calls, grammar) = (self.build_calls(tools)?, grammar.clone());
                Some(Grammar::CallsOr(Box::new(CallsOr { calls, grammar })))
            }
            (Some(tools), _) => Some(Grammar::Calls(Box::new(self.build_calls(tools)?))),
        };
        let is_chat = body.prompts.iter().any(|prompt| matches!(prompt, RawPrompt::Chat(_)));
        let default = if is_chat { self.chat_max_tokens } else { COMPLETION_MAX_TOKENS };
        let length = AnswerLength {
            max_tokens: body.max_tokens.or(self.max_tokens).unwrap_or(default),
            is_requested: body.max_tokens.is_some(),
            must_fit: grammar.is_some(),
            max_prompt_tokens: body.truncate_prompt_tokens,
        };
        let fit_raw = |raw: &RawPrompt| {
            let raw = &self.chat_rules.with_variables(raw);
            fit_prompt(raw, length, self.codec, self.now_s, self.limits)
        };
        let prompts = body.prompts.iter().map(fit_raw).collect::<Result<Vec<_>, _>>()?;
        let prediction = self.tokenize_prediction(body, &prompts)?;
        let shortened =
            body.max_tokens.and_then(|max| shortened_warning(&prompts, max, self.limits));
        let reasoning = self.codec.zip(self.chat_rules.reasoning.clone()).filter(|_| is_chat);
        let reasoning = reasoning.map(|(codec, syntax)| {
            let is_open = prompts.iter().any(|prompt| syntax.is_open(&prompt.tokens, codec));
            Arc::new(Reasoning { syntax, is_open })
        });
        let grammar = match &reasoning {
            Some(reasoning) => grammar.map(|grammar| reasoning.wrap_grammar(grammar)),
            None => grammar,
        };
        let (budget, unlimited) = limit_reasoning(body, reasoning.as_deref());
        let likely = |likely: u16| usize::from(likely).min(self.limits.vocab_size) as u16;
        Ok(CompletionRequest {
            line: 0,
            custom_id: String::new(),
            endpoint,
            prompts,
            n: body.n,
            sampling: body.sampling,
            token_rules: resolve_token_rules(body, budget, self.codec, self.limits)?,
            seed: body.seed.unwrap_or(self.seed),
            has_own_seed: body.seed.is_some(),
            stop: StopStrings::new(body.stop.clone()),
            ignore_eos: body.ignore_eos,
            logprobs: body.logprobs.map(likely),
            prompt_logprobs: body.prompt_logprobs.map(likely),
            grammar: grammar.map(Arc::new),
            prediction,
            reasoning,
            output: body.output,
            response: None,
            echo: body.echo,
            returns_token_ids: body.returns_token_ids,
            warnings: shortened.into_iter().chain(unlimited).collect(),
            columns: body.columns.clone(),
        })
    }

    /// Returns the tokens of the predicted answer, as many as the longest answer can have.
    fn tokenize_prediction(
        &self,
        body: &Body,
        prompts: &[Prompt],
    ) -> Result<Option<Arc<[u32]>>, Rejection> {
        let mut tokens = match (&body.prediction, self.codec) {
            (Some(RawPrompt::Tokens(tokens)), _) => {
                let checked = self.limits.check_tokens(tokens.iter().copied());
                checked.map_err(|rejection| rejection.with_param("prediction"))?;
                tokens.clone()
            }
            (Some(RawPrompt::Text(text)), Some(codec)) => {
                codec.encode_part(text).map_err(|error| {
                    let what = "The prediction cannot be tokenised";
                    Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what)
                        .with_param("prediction")
                })?
            }
            _ => return Ok(None),
        };
        let longest = prompts.iter().map(|prompt| prompt.max_new as usize).max().unwrap_or(0);
        let is_unknown = |token: &u32| *token as usize >= self.limits.vocab_size;
        let known = tokens.iter().position(is_unknown).unwrap_or(tokens.len());
        tokens.truncate(longest.min(known));
        Ok((!tokens.is_empty()).then(|| tokens.into()))
    }

    /// Checks that the model has a tokenizer if the answer's text is needed.
    fn check_tokenizer(&self, body: &Body) -> Result<(), Rejection> {
        let needs_text = [
            (!body.stop.is_empty(), ", so 'stop' is not supported; remove it"),
            (
                matches!(body.prediction, Some(RawPrompt::Text(_))),
                ", so the text of 'prediction' is not supported; specify it as an array of token \
                 ids",
            ),
            (body.echo, ", so 'echo' is not supported; remove it"),
            (body.grammar.is_some(), ", so response formats are not supported; remove the format"),
            (body.tools.is_some(), ", so tool calls are not supported; remove 'tools'"),
        ];
        match needs_text.iter().find(|(is_needed, _)| *is_needed) {
            Some((_, consequence)) if self.codec.is_none() => {
                let message = self.limits.missing_tokenizer_message(consequence);
                Err(Rejection::new(ErrorCode::NoTokenizer, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns the tool calls that answers may contain, in the syntax of the model.
    fn build_calls(&self, tools: &Tools) -> Result<Calls, Rejection> {
        let refused = |why: &str| {
            let message =
                format!("Unsupported parameter: 'tools' cannot be used with this model: {why}.");
            Rejection::new(ErrorCode::UnsupportedField, message).with_param("tools")
        };
        let codec = self.codec.ok_or_else(|| refused("it has no tokenizer"))?;
        let codec_rejection = |error: &CodecError| {
            let what = "Unsupported parameter: 'tools' cannot be used with this model";
            Rejection::from_codec_error(error, ErrorCode::UnsupportedField, what)
                .with_param("tools")
        };
        let template = codec.tools_template().map_err(|error| codec_rejection(&error))?;
        let template = template.unwrap_or_default();
        if !supports_tools(&template) {
            return Err(refused("its chat template does not render tools"));
        }
        let format = CallFormat::from_template(&template).ok_or_else(|| {
            refused(&format!(
                "the tool call format of its chat template is unknown; known formats are those of \
                 {KNOWN_FORMATS}"
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
            Some(error) => codec_rejection(&error),
            None => refused(&reason),
        });
        Ok(Calls {
            syntax: syntax?,
            functions: tools.functions.clone(),
            is_required: tools.is_required,
            are_several: tools.allows_parallel && format.supports_parallel_calls(),
        })
    }
}

/// Returns the requested limit on the reasoning, or a warning if this model's cannot be limited.
fn limit_reasoning(
    body: &Body,
    reasoning: Option<&Reasoning>,
) -> (Option<ReasoningBudget>, Option<String>) {
    let Some(max_tokens) = body.thinking_token_budget else { return (None, None) };
    let budget = reasoning.and_then(|reasoning| reasoning.budget(max_tokens));
    (budget, budget.is_none().then(|| UNLIMITED_REASONING.to_owned()))
}
