//! Sampling parameters, and the log-probabilities to be reported.

use std::ops::RangeInclusive;
use std::sync::Arc;

use engine_api::request::{Penalties, Sampling};
use engine_api::token_rules::TokenRules;
use serde_json::Value;

use super::values::{
    JsonFields, describe_value, get_non_null, invalid_value, read_count, read_flag, read_number,
    reject_misplaced,
};
use crate::input_line::{Endpoint, Rejection};

/// Maximum of `min_tokens`, larger than any context.
const MAX_MIN_TOKENS: usize = u32::MAX as usize;

/// Maximum number of most likely tokens per position, OpenAI's limit.
const MAX_TOP_LOGPROBS: usize = 20;

/// Reads the sampling parameters; `defaults` has the values of fields that are not given.
/// `top_k`, `min_p`, `repetition_penalty` and `min_tokens` are vLLM's, where a `top_k` of -1 keeps
/// every token; `top_n_sigma` is llama.cpp's, where -1 does.
pub(super) fn read_sampling(
    fields: &JsonFields,
    defaults: Sampling,
) -> Result<Sampling, Rejection> {
    let within = |range: RangeInclusive<f64>| move |number| range.contains(&number);
    let temperature = read_number(fields, "temperature", "between 0 and 2", within(0.0..=2.0))?;
    let top_p = read_number(fields, "top_p", "above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?;
    let min_p = read_number(fields, "min_p", "between 0 and 1", within(0.0..=1.0))?;
    let top_n_sigma =
        read_number(fields, "top_n_sigma", "at least 0, or -1", |n| n >= 0.0 || n == -1.0)?;
    let top_k = match get_non_null(fields, "top_k") {
        None => defaults.top_k,
        Some(value) if value.as_i64() == Some(-1) => 0,
        Some(value) => {
            let wanted = || format!("a non-negative integer, or -1, got {}", describe_value(value));
            let top_k = value.as_u64().ok_or_else(|| invalid_value("top_k", &wanted()))?;
            // Larger than any vocabulary.
            u32::try_from(top_k).unwrap_or(u32::MAX)
        }
    };
    let repetition = read_number(fields, "repetition_penalty", "above 0", |number| number > 0.0)?;
    let penalty = |name: &str| read_number(fields, name, "between -2 and 2", within(-2.0..=2.0));
    let (presence, frequency) = (penalty("presence_penalty")?, penalty("frequency_penalty")?);
    let all = defaults.penalties;
    let min_tokens = read_count(fields, "min_tokens", 0..=MAX_MIN_TOKENS)?;
    Ok(Sampling {
        penalties: Penalties {
            repetition: repetition.unwrap_or(all.repetition),
            presence: presence.unwrap_or(all.presence),
            frequency: frequency.unwrap_or(all.frequency),
        },
        min_tokens: min_tokens.map_or(defaults.min_tokens, |tokens| tokens as u32),
        temperature: temperature.unwrap_or(defaults.temperature),
        top_p: top_p.unwrap_or(defaults.top_p),
        top_k,
        min_p: min_p.unwrap_or(defaults.min_p),
        top_n_sigma: top_n_sigma.unwrap_or(defaults.top_n_sigma).max(0.0),
    })
}

/// Reads OpenAI's `logit_bias` and vLLM's `stop_token_ids`; returns `None` if both are empty.
pub(super) fn read_token_rules(fields: &JsonFields) -> Result<Option<Arc<TokenRules>>, Rejection> {
    let max = TokenRules::LOGIT_BIASES_MAX;
    let wanted = format!("an object of at most {max} token ids and numbers from -100 to 100");
    let wrong = || invalid_value("logit_bias", &wanted);
    let mut logit_bias = Vec::new();
    if let Some(value) = get_non_null(fields, "logit_bias") {
        let biases = value.as_object().filter(|biases| biases.len() <= max).ok_or_else(wrong)?;
        for (token, bias) in biases {
            let bias = bias.as_f64().filter(|bias| bias.abs() <= 100.0).ok_or_else(wrong)?;
            logit_bias.push((token.parse().map_err(|_| wrong())?, bias as f32));
        }
    }
    let max = TokenRules::STOP_TOKENS_MAX;
    let wanted = format!("an array of at most {max} token ids");
    let wrong = || invalid_value("stop_token_ids", &wanted);
    let mut stop_token_ids = Vec::new();
    if let Some(value) = get_non_null(fields, "stop_token_ids") {
        let tokens = value.as_array().filter(|tokens| tokens.len() <= max).ok_or_else(wrong)?;
        for token in tokens {
            let token = token.as_u64().and_then(|token| u32::try_from(token).ok());
            stop_token_ids.push(token.ok_or_else(wrong)?);
        }
    }
    let is_empty = logit_bias.is_empty() && stop_token_ids.is_empty();
    Ok((!is_empty)
        .then(|| Arc::new(TokenRules { logit_bias, stop_token_ids, reasoning_budget: None })))
}

/// Reads the number of most likely tokens whose log-probabilities are reported in addition to each
/// token's own; `None` if none are requested. Completions give the number in `logprobs`; chats set
/// `logprobs` to true and give the number in `top_logprobs`.
pub(super) fn read_logprobs(
    fields: &JsonFields,
    endpoint: Endpoint,
) -> Result<Option<u16>, Rejection> {
    let likely = |name: &str| {
        Ok(read_count(fields, name, 0..=MAX_TOP_LOGPROBS)?.map(|likely| likely as u16))
    };
    match endpoint {
        Endpoint::Completions => {
            reject_misplaced(fields, "top_logprobs", "/v1/completions")?;
            if get_non_null(fields, "logprobs") == Some(&Value::Bool(false)) {
                return Ok(None);
            }
            likely("logprobs")
        }
        Endpoint::ChatCompletions => {
            let is_wanted = read_flag(fields, "logprobs")?;
            let likely = likely("top_logprobs")?.unwrap_or(0);
            if likely > 0 && !is_wanted {
                return Err(invalid_value("logprobs", "true if 'top_logprobs' is specified"));
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
pub(super) fn read_prompt_logprobs(fields: &JsonFields) -> Result<Option<u16>, Rejection> {
    let likely =
        read_count(fields, "prompt_logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|likely| likely as u16);
    if likely.is_some() && read_flag(fields, "stream")? {
        return Err(invalid_value("stream", "false if 'prompt_logprobs' is specified"));
    }
    Ok(likely)
}
