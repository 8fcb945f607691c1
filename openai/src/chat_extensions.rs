//! Fields of chat completions that other APIs accept as well, although they do not define them.

/// Sampling parameters and constraints that requests of other APIs may use under the same name.
const CHAT_EXTENSIONS: [&str; 24] = [
    "seed",
    "top_k",
    "min_p",
    "top_n_sigma",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "logit_bias",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "ignore_eos",
    "structured_outputs",
    "chat_template_kwargs",
    "reasoning_effort",
    "include_reasoning",
    "thinking_token_budget",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
    "skip_special_tokens",
    "priority",
    "cache_prompt",
    "request_id",
];

/// Returns true if requests of other APIs may use this field of chat completions.
pub fn is_chat_extension(name: &str) -> bool {
    CHAT_EXTENSIONS.contains(&name)
}
