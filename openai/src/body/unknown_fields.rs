//! Fields of a request that are not read: those without effect here, those that are harmless with
//! their default value, and unknown ones.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};

use super::origin::BodyOrigin;
use super::values::{JsonFields, get_non_null};
use crate::input_line::{ErrorCode, Rejection};

/// Fields that do not affect an answer here: they identify the sender, classify the request for a
/// hosted service, or control what a server retains.
const IGNORED_FIELDS: [&str; 10] = [
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

/// Returns true for fields that have no effect here and are not read at all.
pub fn is_without_effect(name: &str) -> bool {
    // A server checks the model's name.
    name != "model" && IGNORED_FIELDS.contains(&name)
}

/// Fields that are implemented for all requests.
pub const IMPLEMENTED_FIELDS: [&str; 41] = [
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "top_n_sigma",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "logit_bias",
    "stop_token_ids",
    "n",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "return_token_ids",
    "seed",
    "stop",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "truncate_prompt_tokens",
    "include_stop_str_in_output",
    "return_tokens_as_token_ids",
    "include_reasoning",
    "thinking_token_budget",
    "response_format",
    "structured_outputs",
    "prediction",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "continue_final_message",
    "add_generation_prompt",
];

/// Fields that are read only from clients of the server.
pub const CLIENT_FIELDS: [&str; 2] = ["stream", "stream_options"];

/// Fields of clients without effect: the name under which vLLM logs a request.
const IGNORED_CLIENT_FIELDS: [&str; 1] = ["request_id"];

/// Returns true if `value` is the default that OpenAI, vLLM or llama.cpp document for an
/// unimplemented `field`, and `None` if the field is unknown. `null` means "not given" everywhere.
fn is_default(fields: &JsonFields, field: &str, value: &Value) -> Option<bool> {
    let empty_list = || value.as_array().is_some_and(Vec::is_empty);
    let empty_object = || value.as_object().is_some_and(Map::is_empty);
    let is = |number: f64| value.as_f64() == Some(number);
    Some(match field {
        // If the number equals that of the answers, there is nothing to choose.
        "best_of" => is(get_non_null(fields, "n").and_then(Value::as_f64).unwrap_or(1.0)),
        "stream" => value == &Value::Bool(false),
        "functions" => empty_list(),
        // Without functions, both values mean that no function is called.
        "function_call" => value == "none" || value == "auto",
        "suffix" => value == "",
        "modalities" => value == &serde_json::json!(["text"]),
        "verbosity" => value == "medium",
        "stream_options" | "audio" | "web_search_options" => false,
        // Fields of vLLM.
        "length_penalty" => is(1.0),
        "skip_special_tokens" | "spaces_between_special_tokens" | "detokenize" => {
            value == &Value::Bool(true)
        }
        "use_beam_search" | "early_stopping" => value == &Value::Bool(false),
        "documents" => empty_list(),
        "mm_processor_kwargs" => empty_object(),
        "guided_json" | "guided_regex" | "guided_choice" | "guided_grammar" | "chat_template" => {
            false
        }
        // Fields of llama.cpp.
        "repeat_penalty" | "typical_p" | "tfs_z" => is(1.0),
        "mirostat" | "dry_multiplier" | "xtc_probability" | "dynatemp_range" => is(0.0),
        "n_predict" | "n_probs" | "grammar" | "json_schema" => false,
        _ => return None,
    })
}

/// Policy for fields that are not read, and a record of those that were encountered.
#[derive(Debug, Default)]
pub struct UnknownFieldPolicy {
    /// Set by `--ignore-unknown-fields`: unaccepted fields are ignored and recorded.
    ignores_unknown: bool,
    ignored: Mutex<BTreeSet<String>>,
    copied: Mutex<BTreeSet<String>>,
    /// Names of the model that answers. If there are none, requests may name any model.
    model_names: Vec<String>,
    other_models: Mutex<BTreeSet<String>>,
}

impl UnknownFieldPolicy {
    /// Creates a policy that rejects unaccepted fields, or ignores them if `ignores_unknown` is
    /// true.
    pub fn new(ignores_unknown: bool) -> UnknownFieldPolicy {
        UnknownFieldPolicy { ignores_unknown, ..UnknownFieldPolicy::default() }
    }

    /// Sets the names of the model, the first of which is its own; requests that name another model
    /// are recorded.
    #[must_use]
    pub fn with_model_names(self, names: Vec<String>) -> UnknownFieldPolicy {
        UnknownFieldPolicy { model_names: names, ..self }
    }

    /// Records and ignores the field if the policy ignores unaccepted fields.
    ///
    /// # Errors
    /// Returns `rejection` if the policy rejects them.
    pub(crate) fn ignore_or_reject(
        &self,
        name: &str,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        if !self.ignores_unknown {
            return Err(rejection);
        }
        record_name(&self.ignored, name);
        Ok(())
    }

    /// Checks that a field of another API's body is known.
    ///
    /// # Errors
    /// Returns a rejection that names the field, unless unknown fields are ignored.
    pub fn check_known(&self, name: &str, is_known: bool) -> Result<(), Rejection> {
        if is_known {
            return Ok(());
        }
        let message = format!("Unrecognized request argument supplied: {name}. Remove it.");
        let rejection = Rejection::new(ErrorCode::UnsupportedField, message).with_param(name);
        self.ignore_or_reject(name, rejection)
    }

    /// Checks the fields of a body that are not read. Returns the unknown fields of a short line:
    /// they are columns of its author, and are copied to the output.
    ///
    /// # Errors
    /// Returns a rejection that names the first field that is not accepted.
    pub(super) fn check(
        &self,
        fields: &JsonFields,
        origin: BodyOrigin,
    ) -> Result<JsonFields, Rejection> {
        let mut columns = Map::new();
        let is_client = origin == BodyOrigin::Client;
        for (field, value) in fields {
            let name = field.as_str();
            if name == "model" {
                self.check_model(value);
            }
            if value.is_null()
                || IMPLEMENTED_FIELDS.contains(&name)
                || IGNORED_FIELDS.contains(&name)
            {
                continue;
            }
            if is_client && (CLIENT_FIELDS.contains(&name) || IGNORED_CLIENT_FIELDS.contains(&name))
            {
                continue;
            }
            let reason = match is_default(fields, name, value) {
                Some(true) => continue,
                None if origin == BodyOrigin::ShortLine => {
                    record_name(&self.copied, name);
                    columns.insert(field.clone(), value.clone());
                    continue;
                }
                Some(false) => {
                    format!("Unsupported value: '{field}' is only supported with its default value")
                }
                None => format!("Unrecognized request argument supplied: {field}"),
            };
            // A client cannot change the arguments of the server.
            let or = if is_client { "" } else { ", or pass --ignore-unknown-fields" };
            let message = format!("{reason}. Remove it{or}.");
            let rejection = Rejection::new(ErrorCode::UnsupportedField, message);
            self.ignore_or_reject(name, rejection.with_param(field))?;
        }
        Ok(columns)
    }

    fn check_model(&self, value: &Value) {
        let Some(name) = value.as_str() else { return };
        if !self.model_names.is_empty() && self.model_names.iter().all(|known| known != name) {
            record_name(&self.other_models, name);
        }
    }

    /// Returns a summary of the recorded names, one sentence per kind.
    pub fn notes(&self) -> Vec<String> {
        let model_name = self.model_names.first().map_or("", String::as_str);
        let answers = format!(
            "{} answers all requests, including those for other models",
            printable(model_name)
        );
        let kinds = [
            (&self.ignored, "Unsupported fields were ignored (--ignore-unknown-fields)"),
            (&self.copied, "Unknown fields are copied to the output's \"columns\""),
            (&self.other_models, &*answers),
        ];
        let named = |names: &Mutex<BTreeSet<String>>| {
            let names = names.lock().unwrap_or_else(PoisonError::into_inner);
            let names: Vec<String> = names.iter().map(|name| printable(name)).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let kinds = kinds.into_iter().filter_map(|(names, heading)| Some((named(names)?, heading)));
        kinds.map(|(names, heading)| format!("{heading}: {names}.")).collect()
    }
}

/// Maximum number of names that are recorded per kind: a file may have a new name in every line.
const MAX_NAMES: usize = 20;

/// Maximum number of characters of a name that are printed.
const MAX_NAME_CHARS: usize = 100;

/// Returns a name that is safe to print to a terminal: truncated, and without control characters.
fn printable(name: &str) -> String {
    let chars = name.chars().take(MAX_NAME_CHARS);
    chars.map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

fn record_name(names: &Mutex<BTreeSet<String>>, name: &str) {
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() < MAX_NAMES && !names.contains(name) {
        names.insert(name.to_owned());
    }
}
