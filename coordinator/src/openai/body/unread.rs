//! Fields of a request that the job does not read: those without effect here, those that are
//! harmless while they have their default, and those that nobody knows.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

use super::origin::Origin;
use super::values::{Fields, given};
use crate::openai::item::{ErrorCode, Rejection};

/// Fields that change nothing in an answer here: who asks, how a hosted service would file it, and
/// what a server would keep.
const IGNORED: [&str; 10] = [
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "priority",
];

/// Returns true for fields that change nothing here and are not even read.
pub fn is_without_effect(name: &str) -> bool {
    // A server looks at the model's name.
    name != "model" && IGNORED.contains(&name)
}

/// Fields that the job reads itself.
pub const IMPLEMENTED: [&str; 29] = [
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "n",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "seed",
    "stop",
    "ignore_eos",
    "response_format",
    "structured_outputs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "continue_final_message",
    "add_generation_prompt",
];

/// Fields that are read of a client of the server alone.
pub const OF_CLIENTS: [&str; 2] = ["stream", "stream_options"];

/// Fields of a client that change nothing: how vLLM would show tokens that every answer shows.
const IGNORED_OF_CLIENTS: [&str; 2] = ["return_token_ids", "request_id"];

/// Whether `value` is what OpenAI, vLLM or llama.cpp document as the default of an unimplemented
/// `field`; `None` for a field we have never heard of. `null` means "not given" everywhere.
fn is_default(fields: &Fields, field: &str, value: &Value) -> Option<bool> {
    let empty_list = || value.as_array().is_some_and(Vec::is_empty);
    let empty_object = || value.as_object().is_some_and(Map::is_empty);
    let is = |number: f64| value.as_f64() == Some(number);
    Some(match field {
        // As many as are asked for: there is nothing to choose.
        "best_of" => is(given(fields, "n").and_then(Value::as_f64).unwrap_or(1.0)),
        "stream" => value == &Value::Bool(false),
        "logit_bias" => empty_object(),
        "functions" => empty_list(),
        // With no functions both mean that none is called.
        "function_call" => value == "none" || value == "auto",
        "suffix" => value == "",
        "modalities" => value == &serde_json::json!(["text"]),
        "stream_options" | "audio" | "prediction" | "verbosity" | "web_search_options" => false,
        // vLLM's.
        "length_penalty" => is(1.0),
        "skip_special_tokens"
        | "spaces_between_special_tokens"
        | "detokenize"
        | "include_reasoning" => value == &Value::Bool(true),
        "include_stop_str_in_output" | "use_beam_search" | "early_stopping" => {
            value == &Value::Bool(false)
        }
        "stop_token_ids" | "bad_words" | "documents" => empty_list(),
        "mm_processor_kwargs" => empty_object(),
        "guided_json"
        | "guided_regex"
        | "guided_choice"
        | "guided_grammar"
        | "truncate_prompt_tokens"
        | "allowed_token_ids"
        | "chat_template" => false,
        // llama.cpp's.
        "repeat_penalty" | "typical_p" | "tfs_z" => is(1.0),
        "mirostat" | "dry_multiplier" | "xtc_probability" | "dynatemp_range" => is(0.0),
        "n_predict" | "n_probs" | "grammar" | "json_schema" => false,
        _ => return None,
    })
}

/// What becomes of fields that the job does not read.
#[derive(Debug, Default)]
pub struct Unread {
    /// `--ignore-unknown-fields`: they are left out and named.
    ignores: bool,
    ignored: Mutex<BTreeSet<String>>,
    passed: Mutex<BTreeSet<String>>,
}

impl Unread {
    /// Refuses them, or leaves them out.
    pub fn new(ignores: bool) -> Unread {
        Unread { ignores, ..Unread::default() }
    }

    /// Leaves the field out, where that was asked for.
    ///
    /// # Errors
    /// The rejection, where it was not.
    pub(super) fn ignore_or(&self, name: &str, rejection: Rejection) -> Result<(), Rejection> {
        if !self.ignores {
            return Err(rejection);
        }
        note(&self.ignored, name);
        Ok(())
    }

    /// Checks a body's fields that the job does not read. Those of a short line that no server
    /// knows are columns of whoever wrote it: they are told, for the output.
    ///
    /// # Errors
    /// A rejection that names the first field that is not accepted.
    pub(super) fn check(&self, fields: &Fields, origin: Origin) -> Result<Fields, Rejection> {
        let mut columns = Map::new();
        let is_client = origin == Origin::Client;
        for (field, value) in fields {
            let name = field.as_str();
            if value.is_null() || IMPLEMENTED.contains(&name) || IGNORED.contains(&name) {
                continue;
            }
            if is_client && (OF_CLIENTS.contains(&name) || IGNORED_OF_CLIENTS.contains(&name)) {
                continue;
            }
            let reason = match is_default(fields, name, value) {
                Some(true) => continue,
                None if origin == Origin::ShortLine => {
                    note(&self.passed, name);
                    columns.insert(field.clone(), value.clone());
                    continue;
                }
                Some(false) => {
                    format!("The field \"{field}\" is only implemented with its default value")
                }
                None => format!("The field \"{field}\" is not known here"),
            };
            // A client has no say in how the server was started.
            let or = if is_client { "" } else { ", or give --ignore-unknown-fields" };
            let message = format!("{reason}; leave it out{or}.");
            self.ignore_or(name, Rejection::new(ErrorCode::UnsupportedField, message))?;
        }
        Ok(columns)
    }

    /// What was done with fields, a sentence for each kind.
    pub fn notes(&self) -> Vec<String> {
        let kinds = [
            (
                &self.ignored,
                "Fields that are not implemented were left out (--ignore-unknown-fields)",
            ),
            (&self.passed, "Fields that are not known go into the output's \"columns\""),
        ];
        let named = |names: &Mutex<BTreeSet<String>>| {
            let names = names.lock().unwrap_or_else(PoisonError::into_inner);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let kinds = kinds.into_iter().filter_map(|(names, heading)| Some((named(names)?, heading)));
        kinds.map(|(names, heading)| format!("{heading}: {names}.")).collect()
    }
}

/// Names kept at most: a file may have as many as it has lines.
const NAMES_MAX: usize = 20;

fn note(names: &Mutex<BTreeSet<String>>, name: &str) {
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() < NAMES_MAX && !names.contains(name) {
        names.insert(name.to_owned());
    }
}
