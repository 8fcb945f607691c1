//! The body of a request: OpenAI's fields, read into types that cannot be wrong.

pub mod defaults;
mod form;
mod prompts;
mod sampling;
pub mod unread;
mod values;

use grammar::Grammar;
use serde_json::Value;

use super::item::{Endpoint, ErrorCode, Rejection};
use crate::boundary::engine::Sampling;
pub use prompts::RawPrompt;
use unread::Unread;
pub use values::Fields;
use values::{count, flag, given, invalid};

/// Answers to a prompt, at most, as at OpenAI.
const MOST_ANSWERS: usize = 128;

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
    /// Other fields of a short line, for the output.
    pub columns: Fields,
}

/// Reads a body for `endpoint`, of a batch line or a short one.
///
/// # Errors
/// A rejection naming the first field that is wrong, missing or not implemented.
pub fn read_body(
    fields: &Fields,
    endpoint: Endpoint,
    is_short: bool,
    unread: &Unread,
) -> Result<Body, Rejection> {
    let columns = unread.check(fields, is_short)?;
    Ok(Body {
        columns,
        prompts: prompts::read(fields, endpoint, unread)?,
        max_tokens: read_max_tokens(fields)?,
        sampling: sampling::sampling(fields)?,
        n: count(fields, "n", 1..=MOST_ANSWERS)?.unwrap_or(1),
        seed: read_seed(fields)?,
        stop: read_stop(fields)?,
        ignore_eos: flag(fields, "ignore_eos")?,
        logprobs: sampling::logprobs(fields, endpoint)?,
        grammar: form::read(fields)?,
    })
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

fn read_seed(fields: &Fields) -> Result<Option<u64>, Rejection> {
    let Some(value) = given(fields, "seed") else { return Ok(None) };
    // A negative seed is legal at OpenAI; its bits are as good a key as any.
    let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
    seed.map(Some).ok_or_else(|| invalid("seed", "a whole number"))
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
