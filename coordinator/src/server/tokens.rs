//! Endpoints that tokenise and detokenise texts, compatible with vLLM's.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use super::activity::{Activity, Phase};
use super::error::ApiError;
use super::order::{check_model, fields};
use super::reply::json;
use super::shared::Shared;
use crate::boundary::codec::{TextCodec, TextContext};
use crate::openai::body::{Fields, RawPrompt, read_prompts};
use crate::openai::item::{ErrorCode, Rejection};
use crate::openai::prompt::{Limits, tokenise};

/// Maximum size of a text that is tokenised, in bytes, unless the context permits a longer one.
const MAX_TOKENIZED_BYTES: usize = 2 << 20;
/// Bytes of text per position of the context; see [`check_size`].
const BYTES_PER_TOKEN: usize = 16;

#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    /// Text of each token, if requested.
    token_strs: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Detokenized {
    prompt: String,
}

/// Handles `/tokenize`.
pub async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(&shared, request, |fields, codec, shared| {
        let tokens = tokens_of(fields, codec, shared)?;
        let spelled = |token: &u32| String::from_utf8_lossy(&codec.bytes(*token)).into_owned();
        let shows = is_set(fields, "return_token_strs", false)?;
        let token_strs = shows.then(|| tokens.iter().map(spelled).collect());
        let max_model_len = shared.context();
        let body = Tokenized { count: tokens.len(), max_model_len, tokens, token_strs };
        Ok(json(StatusCode::OK, &body))
    })
    .await
}

/// Handles `/detokenize`.
pub async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    respond(&shared, request, |fields, codec, _| {
        let tokens = fields.get("tokens").and_then(Value::as_array);
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let tokens: Option<Vec<u32>> = tokens.and_then(|tokens| tokens.iter().map(id).collect());
        let tokens = tokens.ok_or_else(|| {
            let message = "Invalid value for 'tokens': must be an array of token ids.";
            Rejection::new(ErrorCode::InvalidValue, message).with_param("tokens")
        })?;
        let pieces = codec.pieces(&TextContext::default(), &tokens).map_err(|error| {
            let what = "The tokens could not be decoded";
            Rejection::of_codec(&error, ErrorCode::Tokenizer, what)
        })?;
        Ok(json(StatusCode::OK, &Detokenized { prompt: pieces.concat() }))
    })
    .await
}

fn is_set(fields: &Fields, name: &str, unless_given: bool) -> Result<bool, ApiError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(unless_given),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => {
            let message = format!("Invalid value for '{name}': must be a boolean.");
            Err(Rejection::new(ErrorCode::InvalidValue, message).with_param(name).into())
        }
    }
}

fn tokens_of(
    fields: &mut Fields,
    codec: &dyn TextCodec,
    shared: &Shared,
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
                Rejection::of_codec(&error, ErrorCode::Tokenizer, what).into()
            })
        }
        // A text that is tokenised for counting may exceed the context.
        prompt => {
            let limits = Limits { context: usize::MAX, ..shared.prompt_limits() };
            Ok(tokenise(prompt, Some(codec), now_s, limits)?)
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
async fn respond(
    shared: &Arc<Shared>,
    request: Request,
    answer: impl FnOnce(&mut Fields, &dyn TextCodec, &Shared) -> Result<Response, ApiError>
    + Send
    + 'static,
) -> Response {
    let activity = request.extensions().get::<Arc<Activity>>().cloned();
    let (parts, body) = request.into_parts();
    let reader = Arc::clone(shared);
    let answered = async {
        // Shares the admission limits with completions, since both use the same memory.
        shared.admission.check_room().map_err(|full| shared.full(full))?;
        let body = shared.inbound.read(&parts.headers, body).await?;
        if let Some(activity) = activity {
            activity.set(Phase::Answering);
        }
        let ticket = shared.admission.enter().map_err(|full| shared.full(full))?;
        let answered = shared.blocking.reading.run(move || {
            let _ticket = ticket;
            let mut fields = fields(&body.bytes, &reader)?;
            check_model(&fields, &reader)?;
            let codec = reader.model.codec.as_deref().ok_or_else(|| {
                let message = reader.prompt_limits().no_tokenizer("");
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
