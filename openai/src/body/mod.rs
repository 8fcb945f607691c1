//! Request bodies: OpenAI's fields, parsed into types that admit no invalid values.

pub(crate) mod arguments;
pub mod defaults;
pub(crate) mod known_fields;
mod origin;
mod output_options;
mod prediction;
mod prompts;
mod response_format;
mod rules;
mod sampling;
mod stream;
mod token_lists;
pub mod tools;
pub mod unknown_fields;
pub(crate) mod values;

use grammar::Grammar;
use serde_json::Value;

use super::input_line::{Endpoint, ErrorCode, Rejection};
use super::output_options::OutputOptions;
use super::stop_strings::{MAX_STOP_BYTES, MAX_STOP_STRINGS};
use std::sync::Arc;

use engine_api::request::Sampling;
use engine_api::token_rules::TokenRules;
pub use origin::BodyOrigin;
pub use prompts::{RawPrompt, template_variables};
pub use rules::BodyRules;
pub use stream::StreamOptions;
use tools::Tools;
use unknown_fields::UnknownFieldPolicy;
pub use values::JsonFields;
use values::{describe_value, get_non_null, invalid_value, read_count, read_flag};

/// Maximum number of answers per prompt, OpenAI's limit.
const MAX_ANSWERS: usize = 128;

/// A well-formed body, not yet checked against the model's limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Body {
    /// Prompts to continue, at least one.
    pub prompts: Vec<RawPrompt>,
    /// Maximum number of new tokens; `None` if not given. It can be 0 only if `echo` or
    /// `prompt_logprobs` is requested.
    pub max_tokens: Option<u32>,
    pub sampling: Sampling,
    /// Rules about single tokens; `None` if there are none.
    pub token_rules: Option<Arc<TokenRules>>,
    /// Tokens of which answers consist; empty if all are permitted.
    pub allowed_token_ids: Vec<u32>,
    /// Words that answers may not contain, none of which is empty.
    pub bad_words: Vec<String>,
    /// Maximum number of tokens of the reasoning before an answer; `None` if not given.
    pub thinking_token_budget: Option<u32>,
    /// Maximum number of tokens of a prompt, whose last tokens are kept; `None` if not given.
    pub truncate_prompt_tokens: Option<usize>,
    pub output: OutputOptions,
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
    /// Predicted answer, as a text or as tokens; `None` without a prediction.
    pub prediction: Option<RawPrompt>,
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
    pub columns: JsonFields,
}

/// Reads a body for `endpoint`.
///
/// # Errors
/// Returns a rejection that names the first field that is invalid, missing or not implemented.
pub fn read_body(
    fields: &JsonFields,
    endpoint: Endpoint,
    rules: &BodyRules<'_>,
) -> Result<Body, Rejection> {
    let columns = rules.unknown_fields.check(fields, rules.origin)?;
    let is_client = rules.origin == BodyOrigin::Client;
    let echo = read_echo(fields, endpoint)?;
    let prompt_logprobs = sampling::read_prompt_logprobs(fields)?;
    let grammar = response_format::read_grammar(fields, rules)?;
    let tools = tools::read_tools(fields, endpoint)?;
    check_exclusive_fields(fields, tools.as_ref())?;
    let sampling = sampling::read_sampling(fields, rules.sampling)?;
    let max_tokens = read_max_tokens(fields, echo || prompt_logprobs.is_some())?;
    check_min_tokens(sampling.min_tokens, max_tokens, grammar.is_some() || tools.is_some())?;
    let mut prompts = prompts::read(fields, endpoint, rules)?;
    add_tool_definitions(&mut prompts, tools.as_ref());
    Ok(Body {
        columns,
        prompts,
        max_tokens,
        sampling,
        token_rules: sampling::read_token_rules(fields)?,
        allowed_token_ids: token_lists::read_allowed_token_ids(fields)?,
        bad_words: token_lists::read_bad_words(fields)?,
        thinking_token_budget: token_lists::read_thinking_budget(fields)?,
        truncate_prompt_tokens: token_lists::read_truncation(fields)?,
        output: output_options::read_output_options(fields)?,
        n: read_count(fields, "n", 1..=MAX_ANSWERS)?.unwrap_or(1),
        seed: read_seed(fields)?,
        stop: read_stop(fields)?,
        ignore_eos: read_flag(fields, "ignore_eos")?,
        logprobs: sampling::read_logprobs(fields, endpoint)?,
        prompt_logprobs,
        grammar,
        prediction: prediction::read_prediction(fields, rules)?,
        tools,
        echo,
        returns_token_ids: read_flag(fields, "return_token_ids")?,
        stream: if is_client { stream::read_stream_options(fields, rules)? } else { None },
    })
}

/// Reads the prompts that a client asks to have tokenised: a `prompt`, or `messages`.
///
/// # Errors
/// Returns a rejection of a missing or malformed field.
pub fn read_prompts(fields: &mut JsonFields) -> Result<Vec<RawPrompt>, Rejection> {
    let is_chat = get_non_null(fields, "messages").is_some();
    let endpoint = if is_chat { Endpoint::ChatCompletions } else { Endpoint::Completions };
    let unknown_fields = UnknownFieldPolicy::default();
    let rules = BodyRules {
        origin: BodyOrigin::Client,
        sampling: Sampling::GREEDY,
        unknown_fields: &unknown_fields,
    };
    let mut prompts = prompts::read_to_tokenize(fields, endpoint, &rules)?;
    let tools = tools::read_tools(fields, endpoint)?;
    add_tool_definitions(&mut prompts, tools.as_ref());
    Ok(prompts)
}

/// Adds the functions to chats, so that their templates describe them to the model.
fn add_tool_definitions(prompts: &mut [RawPrompt], tools: Option<&Tools>) {
    for prompt in prompts {
        if let (RawPrompt::Chat(chat), Some(tools)) = (prompt, tools) {
            chat.tools.clone_from(&tools.definitions);
        }
    }
}

/// Checks fields that exclude each other: a call ends an answer, so `ignore_eos` cannot apply.
fn check_exclusive_fields(fields: &JsonFields, tools: Option<&Tools>) -> Result<(), Rejection> {
    if tools.is_some() && read_flag(fields, "ignore_eos")? {
        return Err(invalid_value("ignore_eos", "false for a request with tools"));
    }
    Ok(())
}

/// Checks that `min_tokens` does not exceed `max_tokens`, and that it is 0 with `has_grammar`: such
/// an answer ends where its grammar ends.
fn check_min_tokens(
    min_tokens: u32,
    max_tokens: Option<u32>,
    has_grammar: bool,
) -> Result<(), Rejection> {
    if min_tokens > 0 && has_grammar {
        return Err(invalid_value("min_tokens", "0 for a request with a response format or tools"));
    }
    if max_tokens.is_some_and(|max| max < min_tokens) {
        return Err(invalid_value("min_tokens", "at most 'max_tokens'"));
    }
    Ok(())
}

fn read_echo(fields: &JsonFields, endpoint: Endpoint) -> Result<bool, Rejection> {
    let echo = read_flag(fields, "echo")?;
    if echo && endpoint == Endpoint::ChatCompletions {
        return Err(invalid_value("echo", "false for /v1/chat/completions"));
    }
    Ok(echo)
}

/// Reads `max_tokens` or `max_completion_tokens`, which can be 0 if `evaluates_prompt` is true.
fn read_max_tokens(fields: &JsonFields, evaluates_prompt: bool) -> Result<Option<u32>, Rejection> {
    let least = u64::from(!evaluates_prompt);
    let read = |name: &str| -> Result<Option<u32>, Rejection> {
        let Some(value) = get_non_null(fields, name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| *number >= least);
        let expected = || format!("an integer of at least {least}, got {}", describe_value(value));
        let number = number.ok_or_else(|| invalid_value(name, &expected()))?;
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

fn read_seed(fields: &JsonFields) -> Result<Option<u64>, Rejection> {
    let Some(value) = get_non_null(fields, "seed") else { return Ok(None) };
    // OpenAI accepts negative seeds; their bits are equally good as a key.
    let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
    let wanted = || format!("an integer, got {}", describe_value(value));
    seed.map(Some).ok_or_else(|| invalid_value("seed", &wanted()))
}

fn read_stop(fields: &JsonFields) -> Result<Vec<String>, Rejection> {
    let wanted = "a non-empty string or an array of non-empty strings";
    let stop = match get_non_null(fields, "stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list
            .iter()
            // One string more than the maximum is enough to detect that there are too many.
            .take(MAX_STOP_STRINGS + 1)
            .map(|entry| {
                entry.as_str().map(str::to_owned).ok_or_else(|| invalid_value("stop", wanted))
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err(invalid_value("stop", wanted)),
    };
    if stop.iter().any(String::is_empty) {
        return Err(invalid_value("stop", wanted));
    }
    if stop.len() > MAX_STOP_STRINGS {
        return Err(invalid_value("stop", &format!("at most {MAX_STOP_STRINGS} strings")));
    }
    if stop.iter().map(String::len).sum::<usize>() > MAX_STOP_BYTES {
        return Err(invalid_value("stop", &format!("at most {MAX_STOP_BYTES} bytes in total")));
    }
    Ok(stop)
}
