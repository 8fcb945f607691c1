//! Parser of an input line: an OpenAI batch line, a short line, or a raw prompt.
//!
//! No error in here ends the job: an invalid line becomes an error line of the output, and the
//! other lines run.

use std::path::Path;
use std::sync::Arc;

use engine_api::codec::{ChatTurn, Conversation, TextCodec};
use engine_api::request::Sampling;
use openai::body::defaults::Defaults;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::body::{Body, BodyOrigin, BodyRules, RawPrompt, read_body};
use openai::chats::ChatRules;
use openai::input_line::{BatchEndpoint, CompletionRequest, Endpoint, ErrorCode, Rejection};
use openai::json::parse_object;
use openai::prompt::ModelLimits;
use openai::request::RequestBuilder;
use openai::responses::request::{ConversationContext, RENAMED_FIELDS, into_chat_fields};
use openai::responses::settings::ResponseSettings;
use openai::responses::truncation::build_truncated;
use serde_json::{Map, Value};

use super::line_bounds::LineBounds;
use super::sink::IoTarget;

/// Maximum number of new tokens of a chat without `max_tokens`. OpenAI allows the rest of the
/// context; here memory for all of them is reserved before the first token.
pub const CHAT_MAX_TOKENS: u32 = 1024;

/// Line in batch format, for messages.
pub(crate) const BATCH_LINE_EXAMPLE: &str =
    "{\"custom_id\": \"...\", \"method\": \"POST\", \"url\": \"...\", \"body\": {...}}";

/// Format of an input's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFormat {
    /// One JSON object per line (stdin, and any file name that does not end in `.txt`).
    JsonLines,
    /// One raw prompt per line (`.txt`).
    Text,
}

impl InputFormat {
    /// Returns [`InputFormat::Text`] for `.txt` files, and [`InputFormat::JsonLines`] for anything
    /// else, stdin included.
    pub fn from_target(target: &IoTarget) -> InputFormat {
        let is_text = |path: &Path| path.extension().is_some_and(|extension| extension == "txt");
        match target {
            IoTarget::File(path) if is_text(path) => InputFormat::Text,
            _ => InputFormat::JsonLines,
        }
    }
}

/// Options that apply to every line.
#[derive(Debug, Clone, Copy)]
pub struct InputOptions<'a> {
    pub format: InputFormat,
    /// Turns each raw prompt into one user message.
    pub chat: bool,
    pub chat_rules: &'a ChatRules,
    /// Limit of requests that give neither `max_tokens` nor `max_completion_tokens`, at least 1;
    /// `None` for the default of their endpoint.
    pub max_tokens: Option<u32>,
    /// Seed of requests without `seed`.
    pub seed: u64,
    /// Date that chat templates see, in seconds since 1970.
    pub now_s: u64,
    /// Defaults for raw prompts and short lines.
    pub defaults: &'a Defaults,
    /// Treatment of fields that are not implemented.
    pub unknown_fields: &'a UnknownFieldPolicy,
    /// `None` if the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
    pub limits: ModelLimits,
    /// Bounds on every line; `None` for an input of the user.
    pub bounds: Option<&'a LineBounds>,
}

impl<'a> InputOptions<'a> {
    fn rules(&self, origin: BodyOrigin) -> BodyRules<'a> {
        BodyRules { origin, sampling: Sampling::GREEDY, unknown_fields: self.unknown_fields }
    }

    fn request_builder(&self) -> RequestBuilder<'a> {
        RequestBuilder {
            max_tokens: self.max_tokens,
            chat_max_tokens: CHAT_MAX_TOKENS,
            seed: self.seed,
            now_s: self.now_s,
            codec: self.codec,
            chat_rules: self.chat_rules,
            limits: self.limits,
        }
    }
}

/// Result of parsing one line on its own.
#[derive(Debug)]
pub struct ParsedLine<R> {
    /// The `custom_id` of the line; `None` if it has none or cannot be parsed up to there.
    pub custom_id: Option<String>,
    /// True for a request. A malformed line gets an ID, but does not reserve it.
    pub is_request: bool,
    /// The request, whose ID is set when all lines are joined.
    pub result: Result<R, Rejection>,
}

/// Parses one line that is not blank.
pub(super) fn parse_line(
    raw: &[u8],
    line: usize,
    options: &InputOptions<'_>,
) -> ParsedLine<CompletionRequest> {
    let (mut custom_id, mut is_request) = (None, false);
    let result = (|| {
        let text = decode_utf8(raw)?;
        let parsed = match options.format {
            InputFormat::Text => {
                is_request = true;
                parse_short_line(options.defaults.prompt_fields(text), options)?
            }
            InputFormat::JsonLines => {
                let example = "{\"prompt\": \"...\"}";
                let fields = match options.bounds {
                    Some(bounds) => bounds.parse_object(text, BATCH_LINE_EXAMPLE)?,
                    None => parse_object(text, "line", example)?,
                };
                custom_id = parse_custom_id(&fields)?;
                is_request = true;
                parse_envelope(fields, options)?
            }
        };
        Ok(CompletionRequest { line, ..parsed.build(options)? })
    })();
    ParsedLine { custom_id, is_request, result }
}

/// Decodes a line.
///
/// # Errors
/// Returns a rejection if the line is not UTF-8.
pub fn decode_utf8(raw: &[u8]) -> Result<&str, Rejection> {
    std::str::from_utf8(raw).map_err(|error| {
        let byte = error.valid_up_to() + 1;
        let message = format!("The line is not valid UTF-8 (byte {byte}). Save the file as UTF-8.");
        Rejection::new(ErrorCode::InvalidUtf8, message)
    })
}

/// A body that is read, and the API that it is for.
struct ParsedBody {
    endpoint: Endpoint,
    body: Body,
    /// Settings of a request to the Responses API; `None` for other APIs.
    response: Option<ResponseSettings>,
}

impl ParsedBody {
    /// Tokenises the body.
    ///
    /// # Errors
    /// Returns a rejection if the model cannot process the request, or if it exceeds a bound.
    fn build(mut self, options: &InputOptions<'_>) -> Result<CompletionRequest, Rejection> {
        let endpoint = self.endpoint;
        let build = |body: &Body| {
            options.bounds.map_or(Ok(()), |bounds| bounds.check_body(body, options.codec))?;
            options.request_builder().build(endpoint, body)
        };
        let renamed: &[_] = if self.response.is_some() { &RENAMED_FIELDS } else { &[] };
        let request = if self.response.as_ref().is_some_and(|settings| settings.truncates) {
            let is_too_long = |error: &Rejection| error.code == ErrorCode::ContextLengthExceeded;
            build_truncated(&mut self.body, build, is_too_long)
        } else {
            build(&self.body)
        };
        let request = request.and_then(|request| {
            options.bounds.map_or(Ok(()), |bounds| bounds.check_request(&request))?;
            Ok(CompletionRequest { response: self.response.map(Arc::new), ..request })
        });
        request.map_err(|rejection| rejection.with_renamed_fields(renamed))
    }
}

/// Parses a line that holds the body's fields itself; `messages` among them make it a chat request.
fn parse_short_line(
    mut fields: Map<String, Value>,
    options: &InputOptions<'_>,
) -> Result<ParsedBody, Rejection> {
    fields.shift_remove("custom_id");
    options.defaults.add_to(&mut fields);
    let chat = fields.get("messages").is_some_and(|messages| !messages.is_null());
    let endpoint = if chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
    let mut body = read_body(&fields, endpoint, &options.rules(BodyOrigin::ShortLine))?;
    wrap_as_chat(options.chat, endpoint, &mut body);
    options.defaults.add_system_message(&mut body)?;
    Ok(ParsedBody { endpoint, body, response: None })
}

/// Turns raw text into one user message if `chat` is set. The answer keeps the format of its
/// endpoint.
fn wrap_as_chat(chat: bool, endpoint: Endpoint, body: &mut Body) {
    if !chat || endpoint != Endpoint::Completions {
        return;
    }
    for prompt in &mut body.prompts {
        match prompt {
            RawPrompt::Text(text) if !text.is_empty() => {
                let content = std::mem::take(text);
                *prompt = RawPrompt::Chat(Conversation::new(vec![ChatTurn::new("user", content)]));
            }
            _ => {}
        }
    }
}

/// Returns the `custom_id` of a line.
///
/// # Errors
/// Returns a rejection if it is not a non-empty string.
pub fn parse_custom_id(fields: &Map<String, Value>) -> Result<Option<String>, Rejection> {
    match fields.get("custom_id") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if !id.is_empty() => Ok(Some(id.clone())),
        Some(_) => Err(Rejection::new(
            ErrorCode::InvalidValue,
            "Invalid value for 'custom_id': must be a non-empty string.",
        )),
    }
}

/// Parses a line. One with `body`, `url` or `method` is in batch format.
fn parse_envelope(
    fields: Map<String, Value>,
    options: &InputOptions<'_>,
) -> Result<ParsedBody, Rejection> {
    let is_batch_line = ["body", "url", "method"].iter().any(|key| fields.contains_key(*key));
    if !is_batch_line && options.bounds.is_none() {
        return parse_short_line(fields, options);
    }
    let BatchLineParts { target, body } = read_batch_line(&fields)?;
    options.bounds.map_or(Ok(()), |bounds| bounds.check_target(target, body))?;
    let endpoint = match target {
        BatchEndpoint::Answers(endpoint) => endpoint,
        BatchEndpoint::Responses => return parse_response_body(body, options),
        BatchEndpoint::Embeddings => {
            let message = "Invalid value for 'url': \"/v1/embeddings\" must be that of all lines, \
                           or of none. Put requests of embeddings into a file of their own.";
            return Err(Rejection::new(ErrorCode::UnsupportedUrl, message));
        }
    };
    let mut body = read_body(body, endpoint, &options.rules(BodyOrigin::BatchLine))?;
    wrap_as_chat(options.chat, endpoint, &mut body);
    Ok(ParsedBody { endpoint, body, response: None })
}

/// Parses the body of a request to the Responses API. Responses of a job are not stored, so that it
/// cannot continue others.
fn parse_response_body(
    fields: &Map<String, Value>,
    options: &InputOptions<'_>,
) -> Result<ParsedBody, Rejection> {
    if fields.get("previous_response_id").is_some_and(|id| !id.is_null()) {
        let message = "Unsupported parameter: 'previous_response_id' is not supported in a batch. \
                       Put the items of the conversation into 'input'.";
        let rejection = Rejection::new(ErrorCode::UnsupportedField, message);
        return Err(rejection.with_param("previous_response_id"));
    }
    let context = ConversationContext { previous: Vec::new(), can_store: false };
    let (fields, settings) = into_chat_fields(fields.clone(), context, options.unknown_fields)?;
    let endpoint = Endpoint::ChatCompletions;
    let body = read_body(&fields, endpoint, &options.rules(BodyOrigin::BatchLine))
        .map_err(|rejection| rejection.with_renamed_fields(&RENAMED_FIELDS))?;
    Ok(ParsedBody { endpoint, body, response: Some(settings) })
}

/// Parts of a line in batch format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchLineParts<'f> {
    pub(crate) target: BatchEndpoint,
    pub(crate) body: &'f Map<String, Value>,
}

/// Reads the fields of a line in batch format.
pub(crate) fn read_batch_line(
    fields: &Map<String, Value>,
) -> Result<BatchLineParts<'_>, Rejection> {
    let require = |name: &str| {
        fields.get(name).ok_or_else(|| {
            Rejection::new(
                ErrorCode::MissingField,
                format!(
                    "Missing required parameter: '{name}'. A batch line has custom_id, method, \
                     url and body."
                ),
            )
        })
    };
    if !["body", "url", "method"].iter().any(|key| fields.contains_key(*key)) {
        require("body")?;
    }
    let known = ["custom_id", "method", "url", "body"];
    if let Some((field, _)) = fields.iter().find(|(key, _)| !known.contains(&key.as_str())) {
        return Err(Rejection::new(
            ErrorCode::UnsupportedField,
            format!("Unknown parameter: '{field}' next to 'body'. Move it into 'body'."),
        ));
    }
    let method = require("method")?;
    if method != "POST" {
        return Err(Rejection::new(
            ErrorCode::UnsupportedMethod,
            format!("Invalid value for 'method': must be \"POST\", got {method}."),
        ));
    }
    let url = require("url")?;
    let target = url.as_str().and_then(BatchEndpoint::from_url).ok_or_else(|| {
        let urls = BatchEndpoint::list_urls('"');
        let message = format!("Invalid value for 'url': must be {urls}, got {url}.");
        Rejection::new(ErrorCode::UnsupportedUrl, message)
    })?;
    let body = require("body")?.as_object().ok_or_else(|| {
        Rejection::new(ErrorCode::InvalidValue, "Invalid value for 'body': must be an object.")
    })?;
    Ok(BatchLineParts { target, body })
}
