//! Endpoints that tokenise and detokenise texts, compatible with vLLM's and llama.cpp's.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine_api::codec::{TextCodec, TextContext};
use openai::body::unknown_fields::is_without_effect;
use openai::body::{JsonFields, RawPrompt, read_prompts};
use openai::input_line::{ErrorCode, Rejection};
use openai::prompt::{ModelLimits, tokenize_prompt};
use serde::Serialize;
use serde_json::Value;

use super::activity::{Activity, ConnectionPhase};
use super::error::ApiError;
use super::parsed_request::{check_model, convert_fields, parse_fields};
use super::reply::json;
use super::request_api::RequestApi;
use super::state::ServerState;

/// Maximum size of a text that is tokenised, in bytes, unless the context permits a longer one.
const MAX_TOKENIZED_BYTES: usize = 2 << 20;
/// Bytes of text per position of the context; see [`check_size`].
const BYTES_PER_TOKEN: usize = 16;

#[derive(Serialize)]
struct TokenizeResponse {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    /// Text of each token, if requested.
    token_strs: Option<Vec<String>>,
}

/// Number of tokens of a request's prompt.
#[derive(Serialize)]
struct TokenCount {
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'static str>,
    input_tokens: usize,
}

#[derive(Serialize)]
struct DetokenizeResponse {
    prompt: String,
    /// Copy of the text under the name that llama.cpp uses.
    content: String,
}

/// Handles `/tokenize`.
pub async fn tokenize(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    handle(&shared, request, |fields, codec, shared| {
        if let Some(content) = fields.shift_remove("content") {
            return llama_tokens(content, fields, codec, shared);
        }
        let tokens = tokens_of(fields, codec, shared)?;
        let token_text = |token: &u32| String::from_utf8_lossy(&codec.bytes(*token)).into_owned();
        let returns_strings = is_set(fields, "return_token_strs", false)?;
        let token_strs = returns_strings.then(|| tokens.iter().map(token_text).collect());
        let max_model_len = shared.context();
        let body = TokenizeResponse { count: tokens.len(), max_model_len, tokens, token_strs };
        Ok(json(StatusCode::OK, &body))
    })
    .await
}

/// Tokens in llama.cpp's format.
#[derive(Serialize)]
struct LlamaTokens {
    tokens: Vec<LlamaToken>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum LlamaToken {
    Id(u32),
    /// Token with its text, or its bytes if they are a part of a character.
    Text {
        id: u32,
        piece: String,
    },
    Bytes {
        id: u32,
        piece: Vec<u8>,
    },
}

/// Tokenises `content` as llama.cpp does, without special tokens unless `add_special` is true.
fn llama_tokens(
    content: Value,
    fields: &JsonFields,
    codec: &dyn TextCodec,
    shared: &ServerState,
) -> Result<Response, ApiError> {
    let Value::String(content) = content else {
        let message = "Invalid value for 'content': must be a string.";
        return Err(Rejection::new(ErrorCode::InvalidValue, message).with_param("content").into());
    };
    let mut prompt = JsonFields::from_iter([("prompt".to_owned(), Value::from(content))]);
    let adds_special = is_set(fields, "add_special", false)?;
    prompt.insert("add_special_tokens".to_owned(), adds_special.into());
    let with_pieces = is_set(fields, "with_pieces", false)?;
    let convert = |id: u32| {
        if !with_pieces {
            return LlamaToken::Id(id);
        }
        match String::from_utf8(codec.bytes(id)) {
            Ok(piece) => LlamaToken::Text { id, piece },
            Err(error) => LlamaToken::Bytes { id, piece: error.into_bytes() },
        }
    };
    let tokens = tokens_of(&mut prompt, codec, shared)?.into_iter().map(convert).collect();
    Ok(json(StatusCode::OK, &LlamaTokens { tokens }))
}

/// Handles `/v1/messages/count_tokens`.
pub async fn count_message_tokens(
    State(shared): State<Arc<ServerState>>,
    request: Request,
) -> Response {
    count_tokens(&shared, RequestApi::Messages, None, request).await
}

/// Handles `/v1/responses/input_tokens`.
pub async fn count_response_tokens(
    State(shared): State<Arc<ServerState>>,
    request: Request,
) -> Response {
    count_tokens(&shared, RequestApi::Responses, Some("response.input_tokens"), request).await
}

/// Counts the tokens of the prompt of a request.
async fn count_tokens(
    shared: &Arc<ServerState>,
    api: RequestApi,
    object: Option<&'static str>,
    request: Request,
) -> Response {
    handle(shared, request, move |fields, codec, shared| {
        let (mut fields, _) = convert_fields(std::mem::take(fields), api, shared)?;
        let tokens = tokens_of(&mut fields, codec, shared)
            .map_err(|error| error.with_renamed_fields(api.renamed_fields()))?;
        Ok(json(StatusCode::OK, &TokenCount { object, input_tokens: tokens.len() }))
    })
    .await
}

/// Handles `/detokenize`.
pub async fn detokenize(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    handle(&shared, request, |fields, codec, _| {
        let tokens = fields.get("tokens").and_then(Value::as_array);
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let tokens: Option<Vec<u32>> = tokens.and_then(|tokens| tokens.iter().map(id).collect());
        let tokens = tokens.ok_or_else(|| {
            let message = "Invalid value for 'tokens': must be an array of token ids.";
            Rejection::new(ErrorCode::InvalidValue, message).with_param("tokens")
        })?;
        let pieces = codec.pieces(&TextContext::default(), &tokens).map_err(|error| {
            let what = "The tokens could not be decoded";
            Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what)
        })?;
        let text = pieces.concat();
        Ok(json(StatusCode::OK, &DetokenizeResponse { prompt: text.clone(), content: text }))
    })
    .await
}

fn is_set(fields: &JsonFields, name: &str, default: bool) -> Result<bool, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => {
            let message = format!("Invalid value for '{name}': must be a boolean.");
            Err(Rejection::new(ErrorCode::InvalidValue, message).with_param(name).into())
        }
    }
}

fn tokens_of(
    fields: &mut JsonFields,
    codec: &dyn TextCodec,
    shared: &ServerState,
) -> Result<Vec<u32>, ApiError> {
    let mut prompts = read_prompts(fields)?;
    let (Some(prompt), true) = (prompts.pop(), prompts.is_empty()) else {
        let message = "Invalid value for 'prompt': must be a single prompt.";
        return Err(Rejection::new(ErrorCode::InvalidValue, message).with_param("prompt").into());
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now.map_or(0, |since| since.as_secs());
    check_size(&prompt, shared.context())?;
    match &*shared.chats.with_variables(&prompt) {
        RawPrompt::Text(text) if !is_set(fields, "add_special_tokens", true)? => {
            codec.encode_part(text).map_err(|error| {
                let what = "The prompt cannot be tokenised";
                Rejection::from_codec_error(&error, ErrorCode::Tokenizer, what).into()
            })
        }
        // A text that is tokenised for counting may exceed the context.
        prompt => {
            let limits = ModelLimits { context: usize::MAX, ..shared.prompt_limits() };
            Ok(tokenize_prompt(prompt, Some(codec), now_s, limits)?)
        }
    }
}

/// Refuses a text whose tokenisation would need too much memory. The limit is above the size of any
/// text that is useful as a prompt.
fn check_size(prompt: &RawPrompt, context: usize) -> Result<(), Rejection> {
    let (field, size_bytes) = match prompt {
        RawPrompt::Text(text) => ("prompt", text.len()),
        RawPrompt::Chat(chat) => ("messages", chat.size_bytes()),
        RawPrompt::Tokens(_) => return Ok(()),
    };
    let max_bytes = MAX_TOKENIZED_BYTES.max(context.saturating_mul(BYTES_PER_TOKEN));
    if size_bytes <= max_bytes {
        return Ok(());
    }
    let message = format!(
        "Invalid value for '{field}': must have at most {max_bytes} bytes, got {size_bytes}. Split \
         the text into several requests."
    );
    Err(Rejection::new(ErrorCode::InvalidValue, message).with_param(field))
}

/// Reads a body and answers it on a thread that may wait for a tokenizer.
async fn handle(
    shared: &Arc<ServerState>,
    request: Request,
    answer: impl FnOnce(&mut JsonFields, &dyn TextCodec, &ServerState) -> Result<Response, ApiError>
    + Send
    + 'static,
) -> Response {
    let activity = request.extensions().get::<Arc<Activity>>().cloned();
    let (parts, body) = request.into_parts();
    let reader = Arc::clone(shared);
    let answered = async {
        // Shares the admission limits with completions, since both use the same memory.
        shared.admission.check_capacity().map_err(|full| shared.admission_error(full))?;
        let mut body = shared.body_reader.read(&parts.headers, body).await?;
        if let Some(activity) = activity {
            activity.set_phase(ConnectionPhase::Answering);
        }
        let permit = shared.admission.admit().map_err(|full| shared.admission_error(full))?;
        let size_bytes = body.size_bytes();
        let answered = shared.blocking_pools.parse_body(size_bytes, move || {
            let _ticket = permit;
            let mut fields = parse_fields(body.bytes(), is_without_effect, &reader)?;
            check_model(&fields, &reader)?;
            let codec = reader.model.codec.as_deref().ok_or_else(|| {
                let message = reader.prompt_limits().missing_tokenizer_message("");
                Rejection::new(ErrorCode::NoTokenizer, message)
            })?;
            answer(&mut fields, codec, &reader)
        });
        answered.await
    };
    answered.await.unwrap_or_else(|error: ApiError| {
        shared.metrics.count_refused(error.code());
        error.into_response()
    })
}
