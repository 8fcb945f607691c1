//! The architectures that are supported, by the names that files give them; `family` says what they
//! mean.

/// The values of `architectures` in `config.json` that are supported.
pub const ARCHITECTURES: [&str; 4] =
    ["LlamaForCausalLM", "MistralForCausalLM", "OPTForCausalLM", "Qwen2ForCausalLM"];

/// The architecture of a `model_type`, for files that name only that.
pub fn architecture_of_type(model_type: &str) -> Option<&'static str> {
    match model_type {
        "llama" => Some("LlamaForCausalLM"),
        "mistral" => Some("MistralForCausalLM"),
        "opt" => Some("OPTForCausalLM"),
        "qwen2" => Some("Qwen2ForCausalLM"),
        _ => None,
    }
}
