//! Request bodies: OpenAI's fields, parsed into types that admit no invalid values.

mod arguments;
pub mod defaults;
mod form;
mod known_fields;
mod origin;
mod prompts;
mod rules;
mod sampling;
mod stream;
pub mod tools;
pub mod unread;
mod values;

use grammar::Grammar;
use serde_json::Value;

use super::item::{Endpoint, ErrorCode, Rejection};
use super::stop_strings::{MAX_STOP_BYTES, MAX_STOP_STRINGS};
use crate::boundary::engine::Sampling;
pub use origin::Origin;
pub use prompts::{RawPrompt, template_variables};
pub use rules::Rules;
pub use stream::StreamOptions;
use tools::Tools;
use unread::Unread;
pub use values::Fields;
use values::{count, flag, given, invalid, shown};

/// Maximum number of answers per prompt, OpenAI's limit.
const MOST_ANSWERS: usize = 128;

/// A well-formed body, not yet checked against the model's limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Body {
    /// Prompts to continue, at least one.
    pub prompts: Vec<RawPrompt>,
    /// Maximum number of new tokens; `None` if not given. It can be 0 only if `echo` or
    /// `prompt_logprobs` is requested.
    pub max_tokens: Option<u32>,
    pub sampling: Sampling,
    /// Number of answers per prompt, at least 1.
    pub n: usize,
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    /// End-of-sequence tokens do not end the answer (an extension that vLLM has as well).
    pub ignore_eos: bool,
    /// Number of most likely tokens whose log-probabilities are reported for each token of the
    /// answers, in addition to the token's own; `None` if none are requested.
    pub logprobs: Option<u16>,
    /// Number of most likely tokens whose log-probabilities are reported for each token of the
    /// prompts, in addition to the token's own; `None` if none are requested.
    pub prompt_logprobs: Option<u16>,
    /// Grammar of answers that call no function.
    pub grammar: Option<Grammar>,
    /// Functions that answers may call.
    pub tools: Option<Tools>,
    /// The answer begins with the prompt.
    pub echo: bool,
    /// The answer includes the token ids of the prompt (a vLLM extension).
    pub returns_token_ids: bool,
    /// Streaming options; `None` if the answer is returned as a whole. Only clients of the server
    /// can request a stream.
    pub stream: Option<StreamOptions>,
    /// Unknown fields of a short line, which are copied to the output.
    pub columns: Fields,
}

/// Reads a body for `endpoint`.
///
/// # Errors
/// Returns a rejection that names the first field that is invalid, missing or not implemented.
pub fn read_body(
    fields: &Fields,
    endpoint: Endpoint,
    rules: &Rules<'_>,
) -> Result<Body, Rejection> {
    let columns = rules.unread.check(fields, rules.origin)?;
    let is_client = rules.origin == Origin::Client;
    let echo = read_echo(fields, endpoint)?;
    let prompt_logprobs = sampling::prompt_logprobs(fields)?;
    let grammar = form::read(fields, rules)?;
    let tools = tools::read(fields, endpoint)?;
    check_together(fields, tools.as_ref())?;
    let sampling = sampling::sampling(fields, rules.sampling)?;
    let max_tokens = read_max_tokens(fields, echo || prompt_logprobs.is_some())?;
    check_min_tokens(sampling.min_tokens, max_tokens, grammar.is_some() || tools.is_some())?;
    let mut prompts = prompts::read(fields, endpoint, rules)?;
    tell_of(&mut prompts, tools.as_ref());
    Ok(Body {
        columns,
        prompts,
        max_tokens,
        sampling,
        n: count(fields, "n", 1..=MOST_ANSWERS)?.unwrap_or(1),
        seed: read_seed(fields)?,
        stop: read_stop(fields)?,
        ignore_eos: flag(fields, "ignore_eos")?,
        logprobs: sampling::logprobs(fields, endpoint)?,
        prompt_logprobs,
        grammar,
        tools,
        echo,
        returns_token_ids: flag(fields, "return_token_ids")?,
        stream: if is_client { stream::read(fields, rules)? } else { None },
    })
}

/// Reads the prompts that a client asks to have tokenised: a `prompt`, or `messages`.
///
/// # Errors
/// Returns a rejection of a missing or malformed field.
pub fn read_prompts(fields: &mut Fields) -> Result<Vec<RawPrompt>, Rejection> {
    let is_chat = given(fields, "messages").is_some();
    let endpoint = if is_chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
    let unread = Unread::default();
    let rules = Rules { origin: Origin::Client, sampling: Sampling::GREEDY, unread: &unread };
    let mut prompts = prompts::read_to_tokenize(fields, endpoint, &rules)?;
    let tools = tools::read(fields, endpoint)?;
    tell_of(&mut prompts, tools.as_ref());
    Ok(prompts)
}

/// Adds the functions to chats, so that their templates describe them to the model.
fn tell_of(prompts: &mut [RawPrompt], tools: Option<&Tools>) {
    for prompt in prompts {
        if let (RawPrompt::Chat(chat), Some(tools)) = (prompt, tools) {
            chat.tools.clone_from(&tools.told);
        }
    }
}

/// Checks fields that exclude each other: a call ends an answer, so `ignore_eos` cannot apply.
fn check_together(fields: &Fields, tools: Option<&Tools>) -> Result<(), Rejection> {
    if tools.is_some() && flag(fields, "ignore_eos")? {
        return Err(invalid("ignore_eos", "false for a request with tools"));
    }
    Ok(())
}

/// Checks that `min_tokens` does not exceed `max_tokens`, and that it is 0 with `has_form`: such an
/// answer ends where its grammar ends.
fn check_min_tokens(least: u32, max_tokens: Option<u32>, has_form: bool) -> Result<(), Rejection> {
    if least > 0 && has_form {
        return Err(invalid("min_tokens", "0 for a request with a response format or tools"));
    }
    if max_tokens.is_some_and(|most| most < least) {
        return Err(invalid("min_tokens", "at most 'max_tokens'"));
    }
    Ok(())
}

fn read_echo(fields: &Fields, endpoint: Endpoint) -> Result<bool, Rejection> {
    let echo = flag(fields, "echo")?;
    if echo && endpoint == Endpoint::ChatCompletions {
        return Err(invalid("echo", "false for /v1/chat/completions"));
    }
    Ok(echo)
}

/// Reads `max_tokens` or `max_completion_tokens`, which can be 0 if `looks_at_prompt` is true.
fn read_max_tokens(fields: &Fields, looks_at_prompt: bool) -> Result<Option<u32>, Rejection> {
    let least = u64::from(!looks_at_prompt);
    let read = |name: &str| -> Result<Option<u32>, Rejection> {
        let Some(value) = given(fields, name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| *number >= least);
        let form = || format!("an integer of at least {least}, got {}", shown(value));
        let number = number.ok_or_else(|| invalid(name, &form()))?;
        // Larger than any context; it is lowered to fit later.
        Ok(Some(u32::try_from(number).unwrap_or(u32::MAX)))
    };
    match (read("max_tokens")?, read("max_completion_tokens")?) {
        (Some(a), Some(b)) if a != b => Err(Rejection::new(
            ErrorCode::InvalidValue,
            "Invalid value for 'max_tokens': it differs from 'max_completion_tokens'. Specify only \
             one of them.",
        )
        .with_param("max_tokens")),
        (a, b) => Ok(a.or(b)),
    }
}

fn read_seed(fields: &Fields) -> Result<Option<u64>, Rejection> {
    let Some(value) = given(fields, "seed") else { return Ok(None) };
    // OpenAI accepts negative seeds; their bits are equally good as a key.
    let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
    let wanted = || format!("an integer, got {}", shown(value));
    seed.map(Some).ok_or_else(|| invalid("seed", &wanted()))
}

fn read_stop(fields: &Fields) -> Result<Vec<String>, Rejection> {
    let wanted = "a non-empty string or an array of non-empty strings";
    let stop = match given(fields, "stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list
            .iter()
            // One string more than the maximum is enough to detect that there are too many.
            .take(MAX_STOP_STRINGS + 1)
            .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(|| invalid("stop", wanted)))
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid("stop", wanted)),
    };
    if stop.iter().any(String::is_empty) {
        return Err(invalid("stop", wanted));
    }
    if stop.len() > MAX_STOP_STRINGS {
        return Err(invalid("stop", &format!("at most {MAX_STOP_STRINGS} strings")));
    }
    if stop.iter().map(String::len).sum::<usize>() > MAX_STOP_BYTES {
        return Err(invalid("stop", &format!("at most {MAX_STOP_BYTES} bytes in total")));
    }
    Ok(stop)
}
