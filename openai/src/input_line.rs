//! Results of reading the lines of the input: requests to answer, and errors that answer them.

use std::sync::Arc;

use engine_api::codec::CodecError;
use engine_api::request::Sampling;
use engine_api::token_rules::TokenRules;
use grammar::Grammar;
use serde_json::{Map, Value};

use super::output_options::OutputOptions;
use super::reasoning::Reasoning;
use super::responses::settings::ResponseSettings;
use super::stop_strings::StopStrings;

/// OpenAI endpoint of a request, which determines the format of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Completions,
    ChatCompletions,
}

impl Endpoint {
    /// Returns the endpoint of a batch line's `url`.
    pub fn from_url(url: &str) -> Option<Endpoint> {
        match url {
            "/v1/completions" => Some(Endpoint::Completions),
            "/v1/chat/completions" => Some(Endpoint::ChatCompletions),
            _ => None,
        }
    }

    /// Returns the `url` of batch lines for this endpoint.
    pub const fn url(self) -> &'static str {
        match self {
            Endpoint::Completions => "/v1/completions",
            Endpoint::ChatCompletions => "/v1/chat/completions",
        }
    }
}

/// Endpoint of the lines of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchEndpoint {
    /// An endpoint that answers prompts.
    Answers(Endpoint),
    /// The Responses API, whose requests are answered like chats.
    Responses,
    Embeddings,
}

impl BatchEndpoint {
    /// All endpoints.
    pub const ALL: [BatchEndpoint; 4] = [
        BatchEndpoint::Answers(Endpoint::ChatCompletions),
        BatchEndpoint::Answers(Endpoint::Completions),
        BatchEndpoint::Responses,
        BatchEndpoint::Embeddings,
    ];

    /// Returns the endpoint of a batch line's `url`.
    pub fn from_url(url: &str) -> Option<BatchEndpoint> {
        BatchEndpoint::ALL.into_iter().find(|endpoint| endpoint.url() == url)
    }

    /// Returns the `url` of batch lines for this endpoint.
    pub const fn url(self) -> &'static str {
        match self {
            BatchEndpoint::Answers(endpoint) => endpoint.url(),
            BatchEndpoint::Responses => "/v1/responses",
            BatchEndpoint::Embeddings => "/v1/embeddings",
        }
    }

    /// Returns the `url` of all endpoints for messages: `a, b or c`, each between two `quote`s.
    pub fn list_urls(quote: char) -> String {
        let urls = BatchEndpoint::ALL.map(|endpoint| format!("{quote}{}{quote}", endpoint.url()));
        let [first @ .., last] = &urls;
        format!("{} or {last}", first.join(", "))
    }
}

/// A prompt of a request, which may have several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, at least one.
    pub tokens: Arc<[u32]>,
    /// Maximum number of new tokens, lowered so that prompt and answer fit the model's context; 0
    /// if only the prompt is evaluated.
    pub max_new: u32,
}

impl Prompt {
    /// Returns the number of new tokens to request from an engine. A prompt of a single token
    /// leaves nothing to evaluate, so at least one token is sampled, even if it is not reported.
    pub fn engine_max_new(&self) -> u32 {
        self.max_new.max(u32::from(self.tokens.len() < 2))
    }
}

/// A request that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// Line of the input, from 1; 0 if there is no file.
    pub line: usize,
    /// Identifier that is unique among the requests of a job or a server.
    pub custom_id: String,
    pub endpoint: Endpoint,
    /// Prompts to continue, at least one.
    pub prompts: Vec<Prompt>,
    /// Number of answers to each prompt, at least one.
    pub n: usize,
    pub sampling: Sampling,
    /// Rules about single tokens; `None` if there are none.
    pub token_rules: Option<Arc<TokenRules>>,
    pub seed: u64,
    /// The request specifies its seed: equal requests then have equal answers, whatever their ids.
    pub has_own_seed: bool,
    /// Stop strings, none of which is empty; an answer ends before the first of them.
    pub stop: StopStrings,
    /// End-of-sequence tokens do not end the answer.
    pub ignore_eos: bool,
    /// Number of most likely tokens whose log-probabilities are reported for each token of the
    /// answers, in addition to the token's own; `None` if none are requested.
    pub logprobs: Option<u16>,
    /// Number of most likely tokens whose log-probabilities are reported for each token of the
    /// prompts, in addition to the token's own; `None` if none are requested.
    pub prompt_logprobs: Option<u16>,
    /// Grammar of the answers; requests of a job share equal ones.
    pub grammar: Option<Arc<Grammar>>,
    /// Tokens of the predicted answer, which change no answer; `None` without a prediction.
    pub prediction: Option<Arc<[u32]>>,
    /// Reasoning of the answers, if it is separated from their texts.
    pub reasoning: Option<Arc<Reasoning>>,
    pub output: OutputOptions,
    /// Settings of a request to the Responses API, which determine the format of the answer; `None`
    /// for other APIs.
    pub response: Option<Arc<ResponseSettings>>,
    /// The answers begin with their prompts.
    pub echo: bool,
    /// The answers include the token ids of their prompts.
    pub returns_token_ids: bool,
    /// Deviations from the request, as sentences for the client.
    pub warnings: Vec<String>,
    /// Unknown fields of a short line, which are copied to the output.
    pub columns: Map<String, Value>,
}

impl CompletionRequest {
    /// Returns the number of answers.
    pub fn choice_count(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// Returns the prompt of an answer; answers to the first prompt come first.
    pub fn prompt_of(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.n]
    }

    /// Returns the number of log-probabilities that an engine must report for each token of an
    /// answer.
    pub fn logprobs_per_token(&self) -> u16 {
        self.logprobs.map_or(0, |likely| likely + 1)
    }

    /// Returns the number of log-probabilities that an engine must report for each token of a
    /// prompt but its first.
    pub fn logprobs_per_prompt_token(&self) -> u16 {
        let echoed = if self.echo { self.logprobs_per_token() } else { 0 };
        self.prompt_logprobs.map_or(echoed, |likely| echoed.max(likely + 1))
    }
}

/// Error of a request, which has a name in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The time window of a batch ended before the request was computed.
    BatchExpired,
    ChatTemplate,
    ContextLengthExceeded,
    DuplicateCustomId,
    EmptyPrompt,
    /// The server is at fault, not the request.
    InternalError,
    InvalidJson,
    InvalidUtf8,
    InvalidValue,
    MissingField,
    ModelNotFound,
    NoTokenizer,
    NotFinite,
    TokenOutOfVocabulary,
    Tokenizer,
    UnsupportedField,
    UnsupportedMethod,
    UnsupportedUrl,
}

impl ErrorCode {
    /// All error codes, for the test of the documentation.
    pub const ALL: [ErrorCode; 18] = [
        ErrorCode::BatchExpired,
        ErrorCode::ChatTemplate,
        ErrorCode::ContextLengthExceeded,
        ErrorCode::DuplicateCustomId,
        ErrorCode::EmptyPrompt,
        ErrorCode::InternalError,
        ErrorCode::InvalidJson,
        ErrorCode::InvalidUtf8,
        ErrorCode::InvalidValue,
        ErrorCode::MissingField,
        ErrorCode::ModelNotFound,
        ErrorCode::NoTokenizer,
        ErrorCode::NotFinite,
        ErrorCode::TokenOutOfVocabulary,
        ErrorCode::Tokenizer,
        ErrorCode::UnsupportedField,
        ErrorCode::UnsupportedMethod,
        ErrorCode::UnsupportedUrl,
    ];

    /// Returns the name of the code in an error line.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorCode::BatchExpired => "batch_expired",
            ErrorCode::ChatTemplate => "chat_template",
            ErrorCode::ContextLengthExceeded => "context_length_exceeded",
            ErrorCode::DuplicateCustomId => "duplicate_custom_id",
            ErrorCode::EmptyPrompt => "empty_prompt",
            ErrorCode::InternalError => "internal_error",
            ErrorCode::InvalidJson => "invalid_json",
            ErrorCode::InvalidUtf8 => "invalid_utf8",
            ErrorCode::InvalidValue => "invalid_value",
            ErrorCode::MissingField => "missing_field",
            ErrorCode::ModelNotFound => "model_not_found",
            ErrorCode::NoTokenizer => "no_tokenizer",
            ErrorCode::NotFinite => "not_finite",
            ErrorCode::TokenOutOfVocabulary => "token_out_of_vocabulary",
            ErrorCode::Tokenizer => "tokenizer",
            ErrorCode::UnsupportedField => "unsupported_field",
            ErrorCode::UnsupportedMethod => "unsupported_method",
            ErrorCode::UnsupportedUrl => "unsupported_url",
        }
    }
}

/// Reason for which a request is answered with an error line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub code: ErrorCode,
    /// Sentence without the line number, which the output adds.
    pub message: String,
    /// Invalid field; `None` if no field is invalid.
    pub param: Option<String>,
}

impl Rejection {
    /// Creates a rejection that names no field.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Rejection {
        Rejection { code, message: message.into(), param: None }
    }

    /// Sets the invalid field.
    #[must_use]
    pub fn with_param(self, param: impl Into<String>) -> Rejection {
        Rejection { param: Some(param.into()), ..self }
    }

    /// Replaces the names of fields, each given with its replacement.
    #[must_use]
    pub fn with_renamed_fields(mut self, names: &[(&str, &str)]) -> Rejection {
        rename_fields(&mut self.message, &mut self.param, names);
        self
    }

    /// Returns the rejection of a text that the tokenizer cannot process; `what` begins its
    /// message, and `code` applies if the request is at fault.
    pub fn from_codec_error(error: &CodecError, code: ErrorCode, what: &str) -> Rejection {
        let code = match error {
            CodecError::Refused(_) => code,
            CodecError::TooLong { .. } => ErrorCode::ContextLengthExceeded,
            CodecError::Unavailable(_) => ErrorCode::InternalError,
        };
        Rejection::new(code, format!("{what}: {error}."))
    }
}

/// Replaces the names of fields in a message and in the name of an invalid field, each given with
/// its replacement.
pub fn rename_fields(message: &mut String, param: &mut Option<String>, names: &[(&str, &str)]) {
    for (from, to) in names {
        *message = message.replace(&format!("'{from}'"), &format!("'{to}'"));
        if param.as_deref() == Some(*from) {
            *param = Some((*to).to_owned());
        }
    }
}

/// A line of the input that is answered with an error line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// Line of the input, from 1.
    pub line: usize,
    pub custom_id: String,
    pub rejection: Rejection,
}

/// Summarises the errors of `lines` lines: their number and the first message, so that a user need
/// not open the output to learn why a request has no answer. Returns `None` if there are no errors.
pub fn summarize_errors<'a>(
    errors: impl IntoIterator<Item = &'a LineError>,
    lines: usize,
) -> Option<String> {
    let mut errors = errors.into_iter();
    let first = errors.next()?;
    let sentence = format!("line {}: {}", first.line, first.rejection.message);
    Some(match 1 + errors.count() {
        1 => sentence,
        count => format!("{count} of {lines} lines have errors; the first error is in {sentence}"),
    })
}

/// Summarises the warnings of `items`: the number of requests that have any, and the first warning.
/// Returns `None` if there are none.
pub fn summarize_warnings(items: &[InputLine]) -> Option<String> {
    let requests = items.iter().filter_map(InputLine::request);
    let mut warned = requests.filter_map(|request| Some((request.line, request.warnings.first()?)));
    let (line, warning) = warned.next()?;
    let sentence = format!("line {line}: {warning}");
    Some(match 1 + warned.count() {
        1 => sentence,
        count => format!(
            "{count} of {} lines have warnings, which are part of their answers; the first warning \
             is in {sentence}",
            items.len()
        ),
    })
}

/// A line of the input that is not blank.
#[derive(Debug, Clone, PartialEq)]
pub enum InputLine<R = CompletionRequest> {
    Request(R),
    Error(LineError),
}

impl<R> InputLine<R> {
    /// Returns the request; `None` for an error.
    pub fn request(&self) -> Option<&R> {
        match self {
            InputLine::Request(request) => Some(request),
            InputLine::Error(_) => None,
        }
    }

    /// Returns the error; `None` for a request.
    pub fn error(&self) -> Option<&LineError> {
        match self {
            InputLine::Request(_) => None,
            InputLine::Error(error) => Some(error),
        }
    }
}
