//! Tests of the configurations of Mistral Small 4 and Ministral 3: the factor of queries by their
//! position, the router, and the tensors of a text model within a multimodal one.

use model::config::{Family, ModelConfig};
use model::config_json::parse;
use model::experts::{ExcludedExperts, ExpertScoring, GroupScore};
use model::family::layouts;
use model::ops::Op;
use model::rope::{AttentionTemperature, RopeScaling};
use model::source::{TensorId, TensorPart};
use serde_json::{Map, Value, json};

fn rope_parameters() -> Value {
    json!({
        "rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
        "original_max_position_embeddings": 16, "max_position_embeddings": 128,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        "partial_rotary_factor": 0.4
    })
}

/// Returns the text model's fields of a small Mistral 4.
fn text() -> Value {
    json!({
        "model_type": "mistral4", "architectures": ["Mistral4ForCausalLM"],
        "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
        "q_lora_rank": 28, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 20, "max_position_embeddings": 128, "vocab_size": 100,
        "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 3,
        "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
        "rope_interleave": true, "rope_parameters": rope_parameters()
    })
}

fn read(config: &Value) -> Result<ModelConfig, String> {
    let config = config.as_object().expect("an object");
    parse("m", config, &Map::new()).map_err(|error| error.to_string())
}

fn with_rope(field: &str, value: Value) -> Value {
    let mut config = text();
    config["rope_parameters"][field] = value;
    config
}

#[test]
fn a_text_model_is_read_alone_and_within_a_multimodal_one() {
    let alone = read(&text()).expect("valid");
    assert_eq!(alone.family, Family::Mistral4);
    let rope = alone.layers.kind(0).rope.clone().expect("a rope");
    assert_eq!(rope.rotary_dim(alone.head_dim), 8);
    assert_eq!(rope.temperature, Some(AttentionTemperature { beta: 0.1, interval: 16 }));
    assert!(matches!(rope.scaling, RopeScaling::Yarn { attention_factor: 1.0, .. }));
    let of_context = 0.1 * 8f32.ln() + 1.0;
    let expected = of_context * of_context / 20f32.sqrt();
    assert!((alone.attention_scale() / expected - 1.0).abs() < 1e-6);
    let experts = alone.experts.expect("experts");
    assert_eq!(experts.scoring, ExpertScoring::SoftmaxTopK { renormalise: true });
    assert!(!experts.selection.bias && !experts.selection.is_f32);
    let groups = experts.selection.groups.expect("groups");
    let rules = (groups.score, groups.excluded);
    assert_eq!(rules, (GroupScore::SumOfTwo, ExcludedExperts::ZeroInSelection));
    assert_eq!(experts.dense, None);

    let within = read(&json!({
        "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
        "vision_config": {"hidden_size": 16}, "text_config": text()
    }));
    let within = within.expect("valid");
    assert_eq!(within, alone);
    let id = |op| TensorId::Layer { layer: 1, op, part: TensorPart::Matrix };
    for (op, tensor, index) in [
        (Op::QDown, "self_attn.q_a_proj.weight", 0),
        (Op::ExpertGate, "mlp.experts.gate_up_proj", 1),
    ] {
        let names = &layouts(&within, id(op))[index][0].names;
        for start in ["model", "language_model.model", "model.language_model"] {
            let name = format!("{start}.layers.1.{tensor}");
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }
}

#[test]
fn values_that_no_model_has_are_refused_by_name() {
    for (field, value) in [
        ("partial_rotary_factor", json!(0.5)),
        ("llama_4_scaling_beta", Value::Null),
        ("llama_4_scaling_beta", json!(-0.1)),
        ("original_max_position_embeddings", json!(0)),
        ("some_scaling", json!(2.0)),
    ] {
        let refusal = read(&with_rope(field, value.clone())).expect_err(field);
        assert!(refusal.contains(field), "{field} = {value}: {refusal}");
    }
    let none = read(&with_rope("llama_4_scaling_beta", json!(0.0))).expect("valid");
    assert_eq!(none.layers.kind(0).rope.as_ref().and_then(|rope| rope.temperature), None);
}

#[test]
fn queries_of_ministral_have_a_factor_and_those_of_other_families_do_not() {
    let mut rope_parameters = rope_parameters();
    rope_parameters["partial_rotary_factor"] = Value::Null;
    let mut config = json!({
        "model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"],
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 128, "vocab_size": 100, "sliding_window": null,
        "rope_parameters": rope_parameters
    });
    let ministral = read(&config).expect("valid");
    assert_eq!(ministral.family, Family::Mistral);
    let kind = ministral.layers.kind(0);
    let temperature = kind.rope.as_ref().and_then(|rope| rope.temperature);
    assert_eq!(temperature, Some(AttentionTemperature { beta: 0.1, interval: 16 }));
    assert_eq!((kind.window, ministral.head_dim), (None, 8));

    config["architectures"] = json!(["MistralForCausalLM"]);
    config["rope_parameters"]["max_position_embeddings"] = Value::Null;
    let refusal = read(&config).expect_err("no such model");
    assert!(refusal.contains("llama_4_scaling_beta"), "{refusal}");
}
