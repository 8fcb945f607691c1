//! Parses the bytes of a request into submissions to the engine.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use engine_api::codec::TextCodec;
use engine_api::serving::{AnswerGrammar, GenerationRequest, Logprob, PreparedGrammar};
use openai::body::{Body, BodyOrigin, BodyRules, JsonFields, RawPrompt, StreamOptions, read_body};
use openai::bounded_json::{JsonBounds, parse_bounded_object};
use openai::echo::{EchoedPrompt, PromptOutput};
use openai::generation::generation_request;
use openai::input_line::{CompletionRequest, Endpoint, ErrorCode, Rejection};
use openai::messages;
use openai::output::Provenance;
use openai::request::RequestBuilder;
use openai::responses::response::ResponseHead;
use openai::responses::settings::ResponseSettings;
use openai::responses::truncation::build_truncated;
use serde_json::{Map, Value};

use super::admission::AdmissionPermit;
use super::answer_memory::{AnswerMemory, AnswerMemoryPermit};
use super::config::ModelCard;
use super::conversation;
use super::error::ApiError;
use super::request_api::RequestApi;
use super::state::ServerState;

/// Approximate number of bytes of text per token, from which tokens are estimated before
/// tokenisation.
pub(super) const BYTES_PER_TOKEN: usize = 4;

/// A parsed request.
#[derive(Debug)]
pub struct ParsedRequest {
    pub request: Arc<CompletionRequest>,
    pub api: RequestApi,
    /// Options of a streamed answer; `None` if the answer is not streamed.
    pub stream: Option<StreamOptions>,
    /// Texts of the prompts if answers begin with them; otherwise empty.
    pub echoed_prompts: Vec<EchoedPrompt>,
    /// The request's grammar, prepared for the engine once it was checked.
    prepared: Option<Arc<PreparedGrammar>>,
}

/// Byte order mark, with which some editors begin a text.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Parses the fields of a body.
///
/// # Errors
/// The bytes are not a JSON object.
pub fn parse_fields(
    bytes: &[u8],
    is_skipped: fn(&str) -> bool,
    shared: &ServerState,
) -> Result<Map<String, Value>, ApiError> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to() + 1;
        let message = format!("The request body is not valid UTF-8 (byte {place}).");
        Rejection::new(ErrorCode::InvalidUtf8, message)
    })?;
    let bounds = JsonBounds { max_values: shared.max_json_values(), is_skipped };
    let example = "{\"prompt\": \"...\"} or {\"messages\": [...]}";
    Ok(parse_bounded_object(text, "body", example, bounds)?)
}

/// Checks that a request is for the served model.
///
/// # Errors
/// The request names another model.
pub fn check_model(fields: &Map<String, Value>, shared: &ServerState) -> Result<(), ApiError> {
    match fields.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(name)) if shared.model.names.contains(name) => Ok(()),
        Some(Value::String(name)) => Err(ApiError::no_such_model(name, shared.model.name())),
        Some(_) => {
            let message = "Invalid value for 'model': must be a string.";
            Err(Rejection::new(ErrorCode::InvalidValue, message).with_param("model").into())
        }
    }
}

/// Parses a request, and counts its answers and tokens on `permit`.
///
/// # Errors
/// The request is invalid, or the admission limits do not permit it.
pub fn parse(
    bytes: &[u8],
    api: RequestApi,
    shared: &ServerState,
    permit: &mut AdmissionPermit,
) -> Result<ParsedRequest, ApiError> {
    let fields = parse_fields(bytes, api.skipped_fields(), shared)?;
    check_model(&fields, shared)?;
    let (fields, settings) = convert_fields(fields, api, shared)?;
    parse_converted(fields, api, settings, shared, permit)
        .map_err(|error| error.with_renamed_fields(api.renamed_fields()))
}

/// Converts the fields of a body to those of the API's endpoint.
///
/// # Errors
/// A field is unknown, unsupported or malformed, or names a response that is not stored.
pub fn convert_fields(
    fields: JsonFields,
    api: RequestApi,
    shared: &ServerState,
) -> Result<(JsonFields, Option<ResponseSettings>), ApiError> {
    let fields = match api {
        RequestApi::Completions | RequestApi::ChatCompletions => fields,
        RequestApi::Messages => messages::request::into_chat_fields(fields, &shared.unread)?,
        RequestApi::Responses => {
            let (fields, settings) = conversation::convert_fields(fields, shared)?;
            return Ok((fields, Some(settings)));
        }
    };
    Ok((fields, None))
}

/// Parses a request whose fields are those of the API's endpoint.
fn parse_converted(
    fields: JsonFields,
    api: RequestApi,
    settings: Option<ResponseSettings>,
    shared: &ServerState,
    permit: &mut AdmissionPermit,
) -> Result<ParsedRequest, ApiError> {
    let unknown_fields = &shared.unread;
    let endpoint = api.endpoint();
    let rules =
        BodyRules { origin: BodyOrigin::Client, sampling: shared.model.sampling, unknown_fields };
    let mut body = read_body(&fields, endpoint, &rules)?;
    drop(fields);
    let answers = (body.prompts.len() * body.n) as u64;
    let count = |permit: &mut AdmissionPermit, tokens: u64| {
        permit.set_counts(answers, tokens).map_err(|full| shared.admission_error(full))
    };
    count(permit, body.prompts.iter().chain(&body.prediction).map(estimated_tokens).sum())?;
    let build = |body: &Body| build_request(body, endpoint, shared);
    let request = if settings.as_ref().is_some_and(|settings| settings.truncates) {
        let code = ErrorCode::ContextLengthExceeded.name();
        build_truncated(&mut body, build, |error: &ApiError| error.code() == code)?
    } else {
        build(&body)?
    };
    let custom_id = match api {
        RequestApi::Responses => shared.next_secret_id(),
        _ => shared.next_id(),
    };
    let request = CompletionRequest { custom_id, response: settings.map(Arc::new), ..request };
    drop(body.prompts);
    count(permit, request.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum())?;
    let echoed_prompts = if body.echo { echo_prompts(&request, shared)? } else { Vec::new() };
    let (request, stream) = (Arc::new(request), body.stream);
    Ok(ParsedRequest { request, api, stream, echoed_prompts, prepared: None })
}

/// Returns an estimate of the number of tokens of a prompt, at least 1.
pub(super) fn estimated_tokens(prompt: &RawPrompt) -> u64 {
    let tokens = match prompt {
        RawPrompt::Tokens(tokens) => tokens.len(),
        RawPrompt::Text(text) => text.len() / BYTES_PER_TOKEN,
        RawPrompt::Chat(chat) => chat.size_bytes() / BYTES_PER_TOKEN,
    };
    tokens.max(1) as u64
}

fn build_request(
    body: &Body,
    endpoint: Endpoint,
    shared: &ServerState,
) -> Result<CompletionRequest, ApiError> {
    let codec = shared.model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
    shared.prompt_bounds.check_body(body, codec)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let builder = RequestBuilder {
        max_tokens: shared.options.max_tokens,
        // Limited by the rest of the context.
        chat_max_tokens: u32::MAX,
        seed: shared.options.seed,
        now_s: now.map_or(0, |since| since.as_secs()),
        codec,
        chat_rules: &shared.chats,
        limits: shared.prompt_limits(),
    };
    let request = builder.build(endpoint, body)?;
    let max_logprobs = shared.engine.limits().logprobs;
    if request.logprobs_per_token().max(request.logprobs_per_prompt_token()) > max_logprobs {
        let message = format!(
            "This server returns log-probabilities of at most {} top tokens per position.",
            max_logprobs.saturating_sub(1)
        );
        return Err(Rejection::new(ErrorCode::InvalidValue, message).into());
    }
    Ok(request)
}

fn echo_prompts(
    request: &CompletionRequest,
    shared: &ServerState,
) -> Result<Vec<EchoedPrompt>, Rejection> {
    let Some(codec) = shared.model.codec.as_deref() else {
        let message = "This model has no tokenizer, so 'echo' is not supported; remove it.";
        return Err(Rejection::new(ErrorCode::NoTokenizer, message));
    };
    let echoed = |tokens: &[u32]| {
        EchoedPrompt::new(tokens, codec).map_err(|error| {
            let what = "The prompt could not be decoded";
            Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what)
        })
    };
    request.prompts.iter().map(|prompt| echoed(&prompt.tokens)).collect()
}

impl ParsedRequest {
    /// Returns the request with its grammar checked and prepared for the engine. Requests with the
    /// same grammar share it.
    ///
    /// # Errors
    /// No answer can follow the grammar.
    pub fn with_grammar(mut self, shared: &ServerState) -> Result<ParsedRequest, ApiError> {
        let request = Arc::unwrap_or_clone(self.request);
        let request = shared.grammars.check_request(request)?;
        let prepare = |grammar| Arc::new(shared.engine.prepare(grammar));
        self.prepared = request.grammar.clone().map(prepare);
        self.request = Arc::new(request);
        Ok(self)
    }

    /// Returns what all response objects of a request to `/v1/responses` have in common.
    pub fn response_head(&self, provenance: Provenance) -> ResponseHead {
        let settings = self.request.response.clone().unwrap_or_default();
        ResponseHead { request: Arc::clone(&self.request), settings, provenance }
    }

    /// Reserves the memory that the answers may need.
    ///
    /// # Errors
    /// The memory is not available.
    pub fn acquire_memory(&self, shared: &ServerState) -> Result<AnswerMemoryPermit, ApiError> {
        let free_bytes = AnswerMemory::min_bytes(shared.context() as u64);
        let (is_streamed, retry) = (self.stream.is_some(), shared.admission.retry_after_s());
        let response = self.request.response.as_ref();
        let stored_bytes = response.map_or(0, |settings| settings.items.len() as u64);
        let memory = &shared.answer_memory;
        memory.acquire(&self.request, is_streamed, stored_bytes, free_bytes, retry)
    }

    /// Returns the submission for one of the answers.
    pub fn generation_request(&self, choice: usize) -> GenerationRequest {
        let prepared = self.prepared.clone();
        let grammar = prepared.map_or(AnswerGrammar::None, AnswerGrammar::Prepared);
        generation_request(&self.request, choice, grammar)
    }

    /// Returns true if an answer consists of its prompt alone, without new tokens.
    pub fn is_prompt_only(&self, choice: usize) -> bool {
        self.request.prompt_of(choice).max_new == 0
    }

    /// Returns what an answer reports about its prompt, for the log-probabilities that the engine
    /// found.
    pub fn prompt_output<'p>(
        &'p self,
        choice: usize,
        logprobs: &'p [Logprob],
        model: &'p ModelCard,
    ) -> PromptOutput<'p> {
        let codec = model.codec.as_deref().map(|codec| codec as &dyn TextCodec);
        PromptOutput { request: &self.request, echoed: self.echoed_prompt(choice), logprobs, codec }
    }

    /// Returns the prompt that an answer begins with, if it is echoed.
    pub fn echoed_prompt(&self, choice: usize) -> Option<&EchoedPrompt> {
        self.echoed_prompts.get(choice / self.request.n)
    }
}
