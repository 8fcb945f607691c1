//! Tests of Kimi K2.5's configurations, whose text model is a part of one of text and images.

use model::config::ModelConfig;
use model::config_fields::ConfigError;
use model::config_json;
use serde_json::{Map, Value, json};

/// Returns the fields of a small model as published, with the text model's own `model_type`.
fn published(model_type: &str) -> Value {
    json!({
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "bos_token_id": 1, "eos_token_id": 114, "ignore_index": -100,
        "media_placeholder_token_id": 259, "pad_token_id": 0, "use_unified_vision_chunk": true,
        "video_placeholder": "<|video|>", "tie_word_embeddings": false,
        "vision_config": {"mm_projector_type": "patchmerger", "vt_hidden_size": 16},
        "text_config": {
            "model_type": model_type, "hidden_size": 64, "intermediate_size": 80,
            "moe_intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": 28,
            "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20, "n_group": 1,
            "topk_group": 1, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": true,
            "num_experts_per_tok": 3, "first_k_dense_replace": 1, "routed_scaling_factor": 2.827,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-5,
            "rope_theta": 50000.0, "vocab_size": 260, "max_position_embeddings": 128,
            "bos_token_id": 1, "eos_token_id": 114, "tie_word_embeddings": false,
        },
    })
}

fn parse(fields: &Value) -> Result<ModelConfig, ConfigError> {
    config_json::parse("kimi", fields.as_object().expect("an object"), &Map::new())
}

#[test]
fn the_text_model_is_that_of_kimi_k2() {
    let fields = published("kimi_k2");
    let model = parse(&fields).expect("a model");
    let mut text = fields["text_config"].clone();
    text["architectures"] = json!(["DeepseekV3ForCausalLM"]);
    assert_eq!(model, parse(&text).expect("a model"));
    // As transformers writes it.
    let mut written = published("deepseek_v3");
    written["architectures"] = json!(["Kimi_K25ForConditionalGeneration"]);
    written["projection_hidden_size"] = json!(16);
    assert_eq!(parse(&written).expect("a model"), model);
}

#[test]
fn other_text_models_are_refused() {
    let error = parse(&published("kimi_linear")).expect_err("another model").to_string();
    assert!(error.contains("model_type"), "{error}");
    let mut without = published("kimi_k2");
    without.as_object_mut().expect("an object").remove("text_config");
    let error = parse(&without).expect_err("no text model").to_string();
    assert!(error.contains("text_config"), "{error}");
}
