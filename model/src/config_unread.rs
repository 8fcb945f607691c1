//! What a `config.json` says beyond what is read of it: fields that change nothing in an answer,
//! and everything else, which is refused by name.

use serde_json::Value;

use crate::config_fields::{ConfigError, Fields};

/// Fields that are for training, for other tasks, for how others run a model, or say what its
/// tensors and tokenizer say themselves.
const WITHOUT_EFFECT: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_experts_implementation",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "activation_dropout",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dropout",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "init_std",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "layerdrop",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_return_dict",
];

/// Fields that change nothing while they are false.
const OFF: &[&str] = &["add_cross_attention", "is_decoder", "is_encoder_decoder", "use_mrope"];

/// Refuses a field that nobody has read and that may change what the model computes.
///
/// # Errors
/// The first one in the alphabet.
pub(crate) fn refuse(fields: &Fields<'_>) -> Result<(), ConfigError> {
    let is_harmless = |name: &str, value: &Value| {
        WITHOUT_EFFECT.contains(&name) || (OFF.contains(&name) && *value == Value::Bool(false))
    };
    match fields.unread().find(|(name, value)| !is_harmless(name, value)) {
        None => Ok(()),
        Some((name, value)) => {
            let mut value = value.to_string();
            if value.chars().count() > 60 {
                value = value.chars().take(60).chain(['.', '.', '.']).collect();
            }
            Err(ConfigError::UnknownField { field: name.clone(), value })
        }
    }
}
