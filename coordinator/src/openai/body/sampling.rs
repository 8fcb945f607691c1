//! Sampling parameters, and the log-probabilities to be reported.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::values::{Fields, count, flag, given, invalid, misplaced, number, shown};
use crate::boundary::engine::{Penalties, Sampling};
use crate::openai::item::{Endpoint, Rejection};

/// Maximum of `min_tokens`, larger than any context.
const MIN_TOKENS_MAX: usize = u32::MAX as usize;

/// Maximum number of most likely tokens per position, OpenAI's limit.
const MOST_LIKELY: usize = 20;

/// Reads the sampling parameters; `unless_given` has the values of fields that are not given.
/// `top_k`, `min_p`, `repetition_penalty` and `min_tokens` are vLLM's, where a `top_k` of -1 keeps
/// every token.
pub(super) fn sampling(fields: &Fields, unless_given: Sampling) -> Result<Sampling, Rejection> {
    let within = |range: RangeInclusive<f64>| move |number| range.contains(&number);
    let temperature = number(fields, "temperature", "between 0 and 2", within(0.0..=2.0))?;
    let top_p = number(fields, "top_p", "above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?;
    let min_p = number(fields, "min_p", "between 0 and 1", within(0.0..=1.0))?;
    let top_k = match given(fields, "top_k") {
        None => unless_given.top_k,
        Some(value) if value.as_i64() == Some(-1) => 0,
        Some(value) => {
            let wanted = || format!("a non-negative integer, or -1, got {}", shown(value));
            let most = value.as_u64().ok_or_else(|| invalid("top_k", &wanted()))?;
            // Larger than any vocabulary.
            u32::try_from(most).unwrap_or(u32::MAX)
        }
    };
    let repetition = number(fields, "repetition_penalty", "above 0", |number| number > 0.0)?;
    let less = |name: &str| number(fields, name, "between -2 and 2", within(-2.0..=2.0));
    let (presence, frequency) = (less("presence_penalty")?, less("frequency_penalty")?);
    let all = unless_given.penalties;
    let min_tokens = count(fields, "min_tokens", 0..=MIN_TOKENS_MAX)?;
    Ok(Sampling {
        penalties: Penalties {
            repetition: repetition.unwrap_or(all.repetition),
            presence: presence.unwrap_or(all.presence),
            frequency: frequency.unwrap_or(all.frequency),
        },
        min_tokens: min_tokens.map_or(unless_given.min_tokens, |tokens| tokens as u32),
        temperature: temperature.unwrap_or(unless_given.temperature),
        top_p: top_p.unwrap_or(unless_given.top_p),
        top_k,
        min_p: min_p.unwrap_or(unless_given.min_p),
    })
}

/// Reads the number of most likely tokens whose log-probabilities are reported in addition to each
/// token's own; `None` if none are requested. Completions give the number in `logprobs`; chats set
/// `logprobs` to true and give the number in `top_logprobs`.
pub(super) fn logprobs(fields: &Fields, endpoint: Endpoint) -> Result<Option<u16>, Rejection> {
    let likely = |name: &str| Ok(count(fields, name, 0..=MOST_LIKELY)?.map(|likely| likely as u16));
    match endpoint {
        Endpoint::Completions => {
            misplaced(fields, "top_logprobs", "/v1/completions")?;
            if given(fields, "logprobs") == Some(&Value::Bool(false)) {
                return Ok(None);
            }
            likely("logprobs")
        }
        Endpoint::ChatCompletions => {
            let is_wanted = flag(fields, "logprobs")?;
            let likely = likely("top_logprobs")?.unwrap_or(0);
            if likely > 0 && !is_wanted {
                return Err(invalid("logprobs", "true if 'top_logprobs' is specified"));
            }
            Ok(is_wanted.then_some(likely))
        }
    }
}

/// Reads vLLM's `prompt_logprobs`.
///
/// # Errors
/// Returns a rejection that states what was expected. Streams are rejected, since their events
/// cannot contain log-probabilities of the prompt.
pub(super) fn prompt_logprobs(fields: &Fields) -> Result<Option<u16>, Rejection> {
    let likely = count(fields, "prompt_logprobs", 0..=MOST_LIKELY)?.map(|likely| likely as u16);
    if likely.is_some() && flag(fields, "stream")? {
        return Err(invalid("stream", "false if 'prompt_logprobs' is specified"));
    }
    Ok(likely)
}
