//! Parser of an input line: `{"custom_id", "prompt", "continuations": [...]}`, with strings or
//! token IDs.

use engine_api::codec::TextCodec;
use openai::input_line::{ErrorCode, Rejection};
use openai::json::parse_object;
use openai::prompt::ModelLimits;
use serde_json::{Map, Value};

use super::question::ScoreQuestion;
use super::tokens::{PrefixToken, encode_question, missing_prefix};
use crate::input::{ParsedLine, decode_utf8, parse_custom_id};

/// Options that apply to every line.
#[derive(Debug, Clone, Copy)]
pub struct LineOptions<'a> {
    pub limits: ModelLimits,
    pub prefix: PrefixToken,
    /// `None` if the model has no tokenizer.
    pub codec: Option<&'a dyn TextCodec>,
}

/// Parses one line that is not blank.
pub fn parse_line(raw: &[u8], line: usize, options: &LineOptions<'_>) -> ParsedLine<ScoreQuestion> {
    let (mut custom_id, mut is_request) = (None, false);
    let result = (|| {
        let example = "{\"prompt\": \"...\", \"continuations\": [\"...\"]}";
        let fields = parse_object(decode_utf8(raw)?, "line", example)?;
        custom_id = parse_custom_id(&fields)?;
        is_request = true;
        let (prompt, continuations) = read_texts(&fields, options)?;
        let custom_id = String::new();
        let question = ScoreQuestion { line, custom_id, prompt, continuations };
        check_limits(&question, options.limits)?;
        Ok(question)
    })();
    ParsedLine { custom_id, is_request, result }
}

fn read_texts(
    fields: &Map<String, Value>,
    options: &LineOptions<'_>,
) -> Result<(Vec<u32>, Vec<Vec<u32>>), Rejection> {
    let known = ["custom_id", "prompt", "continuations"];
    if let Some((field, _)) = fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        let message = format!(
            "Unknown parameter: '{field}'. Remove it. Supported parameters: custom_id, prompt, \
             continuations."
        );
        return Err(Rejection::new(ErrorCode::UnsupportedField, message));
    }
    let require = |name: &str| {
        let missing = || {
            let message = format!("Missing required parameter: '{name}'.");
            Rejection::new(ErrorCode::MissingField, message)
        };
        fields.get(name).filter(|value| !value.is_null()).ok_or_else(missing)
    };
    let (prompt, list) = (require("prompt")?, require("continuations")?);
    let list = list.as_array().filter(|list| !list.is_empty()).ok_or_else(invalid_continuations)?;
    match prompt {
        Value::String(prompt) => {
            let texts = list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>();
            let codec = options.codec.ok_or_else(|| {
                let message =
                    options.limits.missing_tokenizer_message("; specify arrays of token ids");
                Rejection::new(ErrorCode::NoTokenizer, message)
            })?;
            encode_question(
                prompt,
                &texts.ok_or_else(invalid_continuations)?,
                options.prefix,
                codec,
                options.limits.context,
            )
        }
        Value::Array(prompt) => {
            let mut prompt = read_token_ids(prompt)?;
            if prompt.is_empty() {
                prompt = vec![options.prefix.0.ok_or_else(missing_prefix)?];
            }
            let lists = list
                .iter()
                .map(|entry| read_token_ids(entry.as_array().ok_or_else(invalid_continuations)?));
            Ok((prompt, lists.collect::<Result<_, _>>()?))
        }
        _ => {
            let message = "Invalid value for 'prompt': must be a string or an array of token ids.";
            Err(Rejection::new(ErrorCode::InvalidValue, message))
        }
    }
}

fn invalid_continuations() -> Rejection {
    let message = "Invalid value for 'continuations': must be a non-empty array of strings if the \
                   prompt is a string, or of token id arrays if it is an array of token ids.";
    Rejection::new(ErrorCode::InvalidValue, message)
}

fn read_token_ids(list: &[Value]) -> Result<Vec<u32>, Rejection> {
    let id = |entry: &Value| {
        // An ID too large for u32 is outside the vocabulary, which is checked later.
        let id = entry.as_u64().map(|id| u32::try_from(id).unwrap_or(u32::MAX));
        id.ok_or_else(|| {
            let message = format!("Invalid token id {entry}: must be a non-negative integer.");
            Rejection::new(ErrorCode::InvalidValue, message)
        })
    };
    list.iter().map(id).collect()
}

/// Checks token IDs and lengths against the model's limits.
///
/// # Errors
/// Returns a rejection if a token ID or a length exceeds them, or if a continuation is empty.
pub fn check_limits(question: &ScoreQuestion, limits: ModelLimits) -> Result<(), Rejection> {
    let all = std::iter::once(&question.prompt).chain(&question.continuations);
    let mut tokens = all.flatten();
    if let Some(token) = tokens.find(|token| **token as usize >= limits.vocab_size) {
        let last = limits.vocab_size - 1;
        let message = format!("Token id {token} is out of vocabulary: must be at most {last}.");
        return Err(Rejection::new(ErrorCode::TokenOutOfVocabulary, message));
    }
    for (place, continuation) in question.continuations.iter().enumerate() {
        if continuation.is_empty() {
            let message = format!("Continuation {} adds no tokens to the prompt.", place + 1);
            return Err(Rejection::new(ErrorCode::InvalidValue, message));
        }
        let length = question.prompt.len() + continuation.len();
        if length > limits.context {
            let message = format!(
                "Continuation {} ends at token {length}, but the maximum context length is {} \
                 tokens. Shorten the prompt.",
                place + 1,
                limits.context
            );
            return Err(Rejection::new(ErrorCode::ContextLengthExceeded, message));
        }
    }
    Ok(())
}
