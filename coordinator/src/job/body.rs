//! The body of a request: OpenAI's fields, read into types that cannot be wrong.

use std::ops::RangeInclusive;

use grammar::Grammar;
use serde_json::{Map, Value};

use super::codec::Turn;
use super::engine::Sampling;
use super::fields::{IMPLEMENTED, check_unread};
use super::form;
use super::item::{Endpoint, ErrorCode, Rejection};

/// What a request asks to be continued, before tokenisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RawPrompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<Turn>),
}

/// A body that is well-formed, whatever the model says to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Body {
    /// At least one.
    pub prompts: Vec<RawPrompt>,
    /// At least 1; `None` when not given.
    pub max_tokens: Option<u32>,
    pub sampling: Sampling,
    /// Answers to each prompt, at least 1.
    pub n: usize,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    /// End-of-sequence tokens are tokens like others (an extension that vLLM has too).
    pub ignore_eos: bool,
    /// Log-probabilities of each token: its own and those of so many most likely ones.
    pub logprobs: Option<u16>,
    /// The form that answers must have.
    pub grammar: Option<Grammar>,
}

type Fields = Map<String, Value>;

/// Answers to a prompt, at most, and most likely tokens of a place, as at OpenAI.
const MOST_ANSWERS: usize = 128;
const MOST_LIKELY: usize = 20;

/// Reads a body for `endpoint`.
///
/// # Errors
/// A rejection naming the first field that is wrong, missing or not implemented.
pub fn read_body(fields: &Fields, endpoint: Endpoint) -> Result<Body, Rejection> {
    for (field, value) in fields {
        if !IMPLEMENTED.contains(&field.as_str()) {
            check_unread(field, value)?;
        }
    }
    let prompts = match endpoint {
        Endpoint::Completions => {
            misplaced(fields, "messages", "/v1/completions")?;
            read_prompt(given(fields, "prompt").ok_or_else(|| missing("prompt"))?)?
        }
        Endpoint::ChatCompletions => {
            misplaced(fields, "prompt", "/v1/chat/completions")?;
            let messages = given(fields, "messages").ok_or_else(|| missing("messages"))?;
            vec![RawPrompt::Chat(read_messages(messages)?)]
        }
    };
    Ok(Body {
        prompts,
        max_tokens: read_max_tokens(fields)?,
        sampling: read_sampling(fields)?,
        n: read_count(fields, "n", 1..=MOST_ANSWERS)?.unwrap_or(1),
        seed: read_seed(fields)?,
        stop: read_stop(fields)?,
        ignore_eos: read_flag(fields, "ignore_eos")?,
        logprobs: match endpoint {
            Endpoint::Completions => read_logprobs(fields)?,
            Endpoint::ChatCompletions => read_chat_logprobs(fields)?,
        },
        grammar: read_grammar(fields)?,
    })
}

/// `null` is the same as not given.
fn given<'a>(fields: &'a Fields, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn missing(field: &str) -> Rejection {
    Rejection::new(ErrorCode::MissingField, format!("The field \"{field}\" is missing."))
}

fn invalid(field: &str, wanted: &str) -> Rejection {
    Rejection::new(ErrorCode::InvalidValue, format!("The field \"{field}\" must be {wanted}."))
}

fn misplaced(fields: &Fields, name: &str, url: &str) -> Result<(), Rejection> {
    match given(fields, name) {
        None => Ok(()),
        Some(_) => Err(Rejection::new(
            ErrorCode::UnsupportedField,
            format!("The field \"{name}\" does not belong to {url}; leave it out."),
        )),
    }
}

const PROMPT_FORMS: &str = "a text, a list of token ids, a list of texts or a list of lists of \
                            token ids";

fn read_prompt(value: &Value) -> Result<Vec<RawPrompt>, Rejection> {
    match value {
        Value::String(text) => Ok(vec![RawPrompt::Text(text.clone())]),
        Value::Array(list) => match list.first() {
            None => Ok(vec![RawPrompt::Tokens(Vec::new())]),
            Some(Value::Number(_)) => Ok(vec![RawPrompt::Tokens(read_tokens(list)?)]),
            Some(Value::String(_)) => list
                .iter()
                .map(|entry| {
                    let text = entry.as_str().ok_or_else(|| invalid("prompt", PROMPT_FORMS))?;
                    Ok(RawPrompt::Text(text.to_owned()))
                })
                .collect(),
            Some(_) => list
                .iter()
                .map(|entry| {
                    let ids = entry.as_array().ok_or_else(|| invalid("prompt", PROMPT_FORMS))?;
                    Ok(RawPrompt::Tokens(read_tokens(ids)?))
                })
                .collect(),
        },
        _ => Err(invalid("prompt", PROMPT_FORMS)),
    }
}

fn read_tokens(list: &[Value]) -> Result<Vec<u32>, Rejection> {
    list.iter()
        .map(|entry| match entry.as_u64() {
            // Too large for u32 is certainly outside the vocabulary, which is judged later.
            Some(id) => Ok(u32::try_from(id).unwrap_or(u32::MAX)),
            None if entry.is_i64() => Err(Rejection::new(
                ErrorCode::TokenOutOfVocabulary,
                format!("The token id {entry} is negative."),
            )),
            None => Err(invalid("prompt", PROMPT_FORMS)),
        })
        .collect()
}

fn read_messages(value: &Value) -> Result<Vec<Turn>, Rejection> {
    let form = "a list of objects with \"role\" and \"content\"";
    let list = value.as_array().ok_or_else(|| invalid("messages", form))?;
    if list.is_empty() {
        return Err(Rejection::new(ErrorCode::EmptyPrompt, "The list of messages is empty."));
    }
    list.iter()
        .map(|entry| {
            let message = entry.as_object().ok_or_else(|| invalid("messages", form))?;
            let extra = message.iter().find(|(key, value)| {
                !["role", "content"].contains(&key.as_str()) && !value.is_null()
            });
            if let Some((key, _)) = extra {
                return Err(Rejection::new(
                    ErrorCode::UnsupportedField,
                    format!("The field \"{key}\" of a message is not implemented; leave it out."),
                ));
            }
            let role = message.get("role").and_then(Value::as_str);
            let role = role.ok_or_else(|| invalid("messages", form))?.to_owned();
            let content = message.get("content").ok_or_else(|| invalid("messages", form))?;
            Ok(Turn { role, content: read_content(content)? })
        })
        .collect()
}

/// A text, or a list of parts that are all texts.
fn read_content(value: &Value) -> Result<String, Rejection> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let wanted = "a text or a list of parts {\"type\": \"text\", \"text\": ...}";
    let parts = value.as_array().ok_or_else(|| invalid("content", wanted))?;
    parts
        .iter()
        .map(|part| match part["type"].as_str() {
            Some("text") => part["text"].as_str().ok_or_else(|| invalid("content", wanted)),
            Some(other) => Err(Rejection::new(
                ErrorCode::UnsupportedField,
                format!("Message parts of type \"{other}\" are not implemented; only text is."),
            )),
            None => Err(invalid("content", wanted)),
        })
        .collect()
}

fn read_max_tokens(fields: &Fields) -> Result<Option<u32>, Rejection> {
    let read = |name: &str| -> Result<Option<u32>, Rejection> {
        let Some(value) = given(fields, name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| *number >= 1);
        let number = number.ok_or_else(|| invalid(name, "a whole number of at least 1"))?;
        // More than any context; it is cut to fit later.
        Ok(Some(u32::try_from(number).unwrap_or(u32::MAX)))
    };
    match (read("max_tokens")?, read("max_completion_tokens")?) {
        (Some(a), Some(b)) if a != b => Err(Rejection::new(
            ErrorCode::InvalidValue,
            "The fields \"max_tokens\" and \"max_completion_tokens\" differ; give one of them.",
        )),
        (a, b) => Ok(a.or(b)),
    }
}

/// `top_k` and `min_p` are vLLM's, where -1 keeps every token.
fn read_sampling(fields: &Fields) -> Result<Sampling, Rejection> {
    let within = |range: RangeInclusive<f64>| move |number| range.contains(&number);
    let temperature = read_number(fields, "temperature", "from 0 to 2", within(0.0..=2.0))?;
    let top_p = read_number(fields, "top_p", "above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?;
    let min_p = read_number(fields, "min_p", "from 0 to 1", within(0.0..=1.0))?;
    let top_k = match given(fields, "top_k") {
        None => 0,
        Some(value) if value.as_i64() == Some(-1) => 0,
        Some(value) => {
            let number = value.as_u64();
            let number = number.ok_or_else(|| invalid("top_k", "a whole number, or -1"))?;
            // More than any vocabulary has.
            u32::try_from(number).unwrap_or(u32::MAX)
        }
    };
    let greedy = Sampling::GREEDY;
    Ok(Sampling {
        temperature: temperature.unwrap_or(greedy.temperature),
        top_p: top_p.unwrap_or(greedy.top_p),
        top_k,
        min_p: min_p.unwrap_or(greedy.min_p),
    })
}

fn read_count(
    fields: &Fields,
    name: &str,
    range: RangeInclusive<usize>,
) -> Result<Option<usize>, Rejection> {
    let Some(value) = given(fields, name) else { return Ok(None) };
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    let wanted = || format!("a whole number from {} to {}", range.start(), range.end());
    let number = number.filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| invalid(name, &wanted()))
}

/// Completions name a number of tokens.
fn read_logprobs(fields: &Fields) -> Result<Option<u16>, Rejection> {
    misplaced(fields, "top_logprobs", "/v1/completions")?;
    if given(fields, "logprobs") == Some(&Value::Bool(false)) {
        return Ok(None);
    }
    let likely = read_count(fields, "logprobs", 0..=MOST_LIKELY)?;
    Ok(likely.map(|likely| likely as u16))
}

/// Chats say whether, and how many beside.
fn read_chat_logprobs(fields: &Fields) -> Result<Option<u16>, Rejection> {
    let asked = read_flag(fields, "logprobs")?;
    let likely = read_count(fields, "top_logprobs", 0..=MOST_LIKELY)?.unwrap_or(0);
    if likely > 0 && !asked {
        return Err(invalid("logprobs", "true where \"top_logprobs\" is given"));
    }
    Ok(asked.then_some(likely as u16))
}

fn read_number(
    fields: &Fields,
    name: &str,
    range: &str,
    accept: impl Fn(f64) -> bool,
) -> Result<Option<f32>, Rejection> {
    let Some(value) = given(fields, name) else { return Ok(None) };
    let number = value.as_f64().filter(|number| accept(*number));
    let number = number.ok_or_else(|| invalid(name, &format!("a number {range}")))?;
    // A tiny top_p must not become 0, which would leave no token to choose.
    let narrow = number as f32;
    Ok(Some(if number > 0.0 { narrow.max(f32::MIN_POSITIVE) } else { narrow }))
}

fn read_seed(fields: &Fields) -> Result<Option<u64>, Rejection> {
    let Some(value) = given(fields, "seed") else { return Ok(None) };
    // A negative seed is legal at OpenAI; its bits are as good a key as any.
    let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
    seed.map(Some).ok_or_else(|| invalid("seed", "a whole number"))
}

fn read_flag(fields: &Fields, name: &str) -> Result<bool, Rejection> {
    let Some(value) = given(fields, name) else { return Ok(false) };
    value.as_bool().ok_or_else(|| invalid(name, "true or false"))
}

/// An answer that must have a form ends with it.
fn read_grammar(fields: &Fields) -> Result<Option<Grammar>, Rejection> {
    let [response, structured] =
        ["response_format", "structured_outputs"].map(|n| given(fields, n));
    let grammar = form::read(response, structured)?;
    if grammar.is_some() && read_flag(fields, "ignore_eos")? {
        return Err(invalid("ignore_eos", "false where the answer must have a form"));
    }
    Ok(grammar)
}

fn read_stop(fields: &Fields) -> Result<Vec<String>, Rejection> {
    let wanted = "a text or a list of texts, none of them empty";
    let stop = match given(fields, "stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(|| invalid("stop", wanted)))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid("stop", wanted)),
    };
    if stop.iter().any(String::is_empty) {
        return Err(invalid("stop", wanted));
    }
    Ok(stop)
}
