//! What a line of the input became: a request to answer, or the error that answers it.

use std::sync::Arc;

use grammar::Grammar;
use serde_json::{Map, Value};

use super::reasoning::Reasoning;
use super::stop_strings::StopStrings;
use crate::boundary::codec::CodecError;
use crate::boundary::engine::Sampling;

/// Which of the two OpenAI endpoints a request names; it decides the shape of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    Completions,
    ChatCompletions,
}

impl Endpoint {
    /// The endpoint of a batch line's `url`.
    pub fn from_url(url: &str) -> Option<Endpoint> {
        match url {
            "/v1/completions" => Some(Endpoint::Completions),
            "/v1/chat/completions" => Some(Endpoint::ChatCompletions),
            _ => None,
        }
    }
}

/// One prompt of a request; a request with a list of prompts has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// At least one.
    pub tokens: Vec<u32>,
    /// Already cut so that prompt and answer fit the model's context; 0 where only the prompt is
    /// looked at.
    pub max_new: u32,
}

impl Prompt {
    /// New tokens that an engine is asked for: of a prompt of one token alone there is nothing to
    /// look at, so one is drawn that nobody is told of.
    pub fn drawn(&self) -> u32 {
        self.max_new.max(u32::from(self.tokens.len() < 2))
    }
}

/// A request that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Line of the input, from 1; 0 where there is no file.
    pub line: usize,
    /// Unique among the requests of a job, or of a server.
    pub custom_id: String,
    pub endpoint: Endpoint,
    /// At least one.
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt, at least one.
    pub n: usize,
    pub sampling: Sampling,
    pub seed: u64,
    /// The request names its seed: then equal requests have equal answers, whatever their ids.
    pub names_seed: bool,
    /// The answer ends before the first of these; none is empty.
    pub stop: StopStrings,
    /// End-of-sequence tokens do not end the answer.
    pub ignore_eos: bool,
    /// Log-probabilities of each token of the answers: its own and those of so many most likely
    /// ones.
    pub logprobs: Option<u16>,
    /// The same of each token of the prompts.
    pub prompt_logprobs: Option<u16>,
    /// The form that the answers must have; requests of a job share equal ones.
    pub grammar: Option<Arc<Grammar>>,
    /// How the answers think first, where that is told apart.
    pub reasoning: Option<Arc<Reasoning>>,
    /// The answers begin with their prompts.
    pub echo: bool,
    /// The answers have the token ids of their prompts.
    pub returns_token_ids: bool,
    /// Sentences for the client about what of the request is not done as requested.
    pub warnings: Vec<String>,
    /// Other fields of a short line, which go into the output as they are.
    pub columns: Map<String, Value>,
}

impl Request {
    /// How many answers there are.
    pub fn choices(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// The prompt of an answer: those to the first prompt come first.
    pub fn prompt_of(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.n]
    }

    /// Log-probabilities that an engine must tell of each token.
    pub fn logprobs_of_token(&self) -> u16 {
        self.logprobs.map_or(0, |likely| likely + 1)
    }

    /// The same of each token of a prompt but its first.
    pub fn logprobs_of_prompt_token(&self) -> u16 {
        let echoed = if self.echo { self.logprobs_of_token() } else { 0 };
        self.prompt_logprobs.map_or(echoed, |likely| echoed.max(likely + 1))
    }
}

/// What is wrong with a request; the name in an error line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
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
    NoTokenizer,
    NotFinite,
    TokenOutOfVocabulary,
    Tokenizer,
    UnsupportedField,
    UnsupportedMethod,
    UnsupportedUrl,
}

impl ErrorCode {
    /// All of them, for the documentation's test.
    pub const ALL: [ErrorCode; 16] = [
        ErrorCode::ChatTemplate,
        ErrorCode::ContextLengthExceeded,
        ErrorCode::DuplicateCustomId,
        ErrorCode::EmptyPrompt,
        ErrorCode::InternalError,
        ErrorCode::InvalidJson,
        ErrorCode::InvalidUtf8,
        ErrorCode::InvalidValue,
        ErrorCode::MissingField,
        ErrorCode::NoTokenizer,
        ErrorCode::NotFinite,
        ErrorCode::TokenOutOfVocabulary,
        ErrorCode::Tokenizer,
        ErrorCode::UnsupportedField,
        ErrorCode::UnsupportedMethod,
        ErrorCode::UnsupportedUrl,
    ];

    /// `code` of an error line.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorCode::ChatTemplate => "chat_template",
            ErrorCode::ContextLengthExceeded => "context_length_exceeded",
            ErrorCode::DuplicateCustomId => "duplicate_custom_id",
            ErrorCode::EmptyPrompt => "empty_prompt",
            ErrorCode::InternalError => "internal_error",
            ErrorCode::InvalidJson => "invalid_json",
            ErrorCode::InvalidUtf8 => "invalid_utf8",
            ErrorCode::InvalidValue => "invalid_value",
            ErrorCode::MissingField => "missing_field",
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

/// A reason to answer a request with an error line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub code: ErrorCode,
    /// A sentence without the line number, which the output adds.
    pub message: String,
    /// Field at fault; `None` where the message itself names it, or no field is at fault.
    pub param: Option<&'static str>,
}

impl Rejection {
    /// A rejection with its sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Rejection {
        Rejection { code, message: message.into(), param: None }
    }

    /// Names the field at fault.
    #[must_use]
    pub fn with_param(self, param: &'static str) -> Rejection {
        Rejection { param: Some(param), ..self }
    }

    /// Returns the rejection of a text that the tokenizer does not answer; `what` begins its
    /// sentence, and `code` is that of a request at fault.
    pub fn of_codec(error: &CodecError, code: ErrorCode, what: &str) -> Rejection {
        let code = match error {
            CodecError::Refused(_) => code,
            CodecError::TooLong { .. } => ErrorCode::ContextLengthExceeded,
            CodecError::Unavailable(_) => ErrorCode::InternalError,
        };
        Rejection::new(code, format!("{what}: {error}."))
    }
}

/// A line of the input that gets an error line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// Line of the input, from 1.
    pub line: usize,
    pub custom_id: String,
    pub rejection: Rejection,
}

/// How many of `lines` lines have errors, and the first of their sentences, so that a user need not
/// open the output to learn why something is not answered. `None` where there are none.
pub fn errors_of<'a>(
    errors: impl IntoIterator<Item = &'a LineError>,
    lines: usize,
) -> Option<String> {
    let mut errors = errors.into_iter();
    let first = errors.next()?;
    let sentence = format!("line {}: {}", first.line, first.rejection.message);
    Some(match 1 + errors.count() {
        1 => sentence,
        count => format!("{count} of {lines} lines have errors; the first, {sentence}"),
    })
}

/// Number of requests of `items` that have warnings, and the first warning. `None` if there are
/// none.
pub fn warnings_of(items: &[Item]) -> Option<String> {
    let mut warned = items.iter().filter_map(|item| match item {
        Item::Request(request) => Some((request.line, request.warnings.first()?)),
        Item::Error(_) => None,
    });
    let (line, warning) = warned.next()?;
    let sentence = format!("line {line}: {warning}");
    Some(match 1 + warned.count() {
        1 => sentence,
        count => format!(
            "{count} of {} lines have warnings, which stand in their answers; the first, \
             {sentence}",
            items.len()
        ),
    })
}

/// A line of the input that is not blank.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    Request(Request),
    Error(LineError),
}

impl Item {
    /// Line of the input, from 1.
    pub fn line(&self) -> usize {
        match self {
            Item::Request(request) => request.line,
            Item::Error(error) => error.line,
        }
    }
}
