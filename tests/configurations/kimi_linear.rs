//! Tests of Kimi Linear's configurations.

use model::config::{Dtype, ModelConfig};
use model::config_fields::ConfigError;
use model::config_json;
use model::delta::StateDecay;
use model::experts::ExpertGroups;
use model::family::layouts;
use model::known::find_known;
use model::layers::{FeedForward, TokenMixer};
use model::ops::{Kv, Op, Value as OpValue};
use model::source::{TensorId, TensorPart};
use serde_json::{Map, Value, json};

/// Parses the configuration of a small model with changed fields.
fn kimi(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = json!({
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
        "hidden_size": 32, "intermediate_size": 80, "moe_intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
        "q_lora_rank": null, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 20, "mla_use_nope": true, "model_max_length": 128, "vocab_size": 260,
        "linear_attn_config": {
            "kda_layers": [1, 3], "full_attn_layers": [2], "num_heads": 3, "head_dim": 12,
            "short_conv_kernel_size": 4,
        },
        "num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 2,
        "num_expert_group": 2, "topk_group": 1, "moe_renormalize": true,
        "moe_router_activation_func": "sigmoid", "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5, "rope_theta": 10000.0, "tie_word_embeddings": false,
    });
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("kimi", fields.as_object().expect("an object"), &Map::new())
}

/// Returns `linear_attn_config` with a changed field.
fn states(field: &str, value: Value) -> Value {
    let mut states = json!({
        "kda_layers": [1, 3], "full_attn_layers": [2], "num_heads": 3, "head_dim": 12,
        "short_conv_kernel_size": 4,
    });
    states[field] = value;
    states
}

fn have_states(model: &ModelConfig) -> Vec<bool> {
    let has_state = |layer| model.layers.kind(layer).mixing == TokenMixer::Delta;
    (0..model.num_layers).map(has_state).collect()
}

#[test]
fn layers_keep_states_that_decay_by_channel_or_have_latent_attention() {
    let model = kimi(&[]).expect("valid");
    assert_eq!(have_states(&model), [true, false, true]);
    assert_eq!((model.max_positions, model.num_kv_heads, model.head_dim), (128, 1, 32));
    let delta = model.delta.expect("states");
    assert_eq!(delta.decay, StateDecay::PerChannel { rank: 12 });
    assert_eq!((delta.value_heads, delta.channels(), delta.decays_len()), (3, 3 * 36, 36));
    let first_half = [
        Op::Norm0,
        Op::DeltaQkv,
        Op::DeltaBa,
        Op::DeltaDecayDown,
        Op::DeltaDecay,
        Op::DeltaConv,
        Op::Delta,
        Op::DeltaGateDown,
        Op::DeltaGate,
        Op::DeltaOut,
        Op::Norm1,
    ];
    assert_eq!(model.layer_ops(0)[..11], first_half);
    assert!(
        first_half[1..10]
            .iter()
            .all(|op| { model.leading_ops().contains(&op.counterpart(&model)) })
    );
    assert_eq!(model.layer_ops(1)[1], Op::Q, "queries of the layer's input");
    assert!(model.layers.kinds().iter().all(|kind| kind.rope.is_none()));
    let shape = |op: Op| op.weights(&model).expect("weights");
    assert_eq!(shape(Op::DeltaBa).matrix, Some((3, 32)));
    assert_eq!(shape(Op::DeltaDecay).matrix, Some((36, 12)));
    assert_eq!(shape(Op::Delta).vectors, [Some(12), Some(3 + 36)]);
    assert_eq!(OpValue::DeltaDecay.row_elements(&model), Some(36));
    let state = |kv| model.state_bytes(model.layers.kind(0), kv);
    assert_eq!([state(Kv::K), state(Kv::V)], [Some(3 * 108 * 4), Some(3 * 12 * 12 * 4)]);

    let experts = model.experts.expect("experts");
    assert_eq!(experts.selection.groups, Some(ExpertGroups::new(2, 1)));
    assert_eq!((experts.count, experts.per_token, experts.selection.scale), (8, 2, 2.5));
    assert_eq!((model.ffn_size, experts.dense_ffn_size()), (32, 80));
    let halves = [0, 1].map(|layer| model.layers.kind(layer).feed_forward);
    assert_eq!(halves, [FeedForward::Dense, FeedForward::UngatedSharedExpert]);
}

#[test]
fn a_list_of_types_takes_precedence() {
    let types = json!(["full_attention", "linear_attention", "linear_attention"]);
    let model = kimi(&[("layer_types", types)]).expect("valid");
    assert_eq!(have_states(&model), [false, true, true]);
}

#[test]
fn convolutions_are_stored_by_channel_in_three_tensors() {
    let model = kimi(&[]).expect("valid");
    let id = TensorId::Layer { layer: 0, op: Op::DeltaConv, part: TensorPart::Gain };
    let pieces = &layouts(&model, id)[0];
    let found = pieces.iter().map(|piece| (piece.names[0].as_str(), piece.first, piece.columns));
    let name = |part: &str| format!("model.layers.0.self_attn.{part}_conv1d.weight");
    let names = ["q", "k", "v"].map(name);
    let tap = |tap: usize| names.each_ref().map(|name| (name.as_str(), tap, 36));
    assert_eq!(found.collect::<Vec<_>>(), (0..4).flat_map(tap).collect::<Vec<_>>());
    assert_eq!(id.expected_shape(&model), Some((1, 4 * 108)));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (field, value) in [
        ("mla_use_nope", json!(false)),
        ("mla_use_output_gate", json!(true)),
        ("moe_router_activation_func", json!("softmax")),
        ("moe_layer_freq", json!(2)),
        ("attn_res_block_size", json!(12)),
        ("routed_expert_hidden_size", json!(16)),
        ("layer_types", json!(["linear_attention", "full_attention", "conv"])),
        ("layer_types", json!(["linear_attention"])),
        ("linear_attn_config", json!(null)),
        ("linear_num_heads", json!(4)),
        ("model_max_length", json!(0)),
        ("hidden_act", json!("situ")),
    ] {
        let error = kimi(&[(field, value.clone())]).expect_err(field).to_string();
        let names = [field, "activation", "num_heads"];
        assert!(names.iter().any(|name| error.contains(name)), "{field} {value}: {error}");
    }
    for (field, value) in [
        ("kda_layers", json!([1, 2, 3])),
        ("kda_layers", json!([0, 3])),
        ("kda_layers", json!([1, 4])),
        ("kda_layers", json!([1])),
        ("full_attn_layers", json!(2)),
        ("full_attn_layers", json!(null)),
        ("gate_lower_bound", json!(-5.0)),
        ("use_full_rank_gate", json!(true)),
        ("head_dim", json!(4096)),
        ("short_conv_kernel_size", json!(1_000_000_000)),
    ] {
        let changed = states(field, value.clone());
        let error = kimi(&[("linear_attn_config", changed)]).expect_err(field).to_string();
        let names = [field, "layers", "state", "convolution"];
        assert!(names.iter().any(|name| error.contains(name)), "{field} {value}: {error}");
    }
}

/// 7 of 27 layers cache 576 numbers of a position; a layer with a state keeps 2 MiB and the last
/// three inputs of its convolutions.
#[test]
fn the_published_model_has_its_sizes() {
    let model = find_known("kimi-linear-48b-a3b").expect("known").config;
    let attending = have_states(&model).iter().filter(|has_state| !**has_state).count();
    assert_eq!((model.num_layers, attending), (27, 7));
    assert_eq!(model.kv_bytes_per_position(Dtype::Bf16), 1152);
    let kind = model.layers.kind(0);
    let state = |kv| model.state_bytes(kind, kv);
    assert_eq!(state(Kv::V), Some(32 * 128 * 128 * 4));
    assert_eq!(state(Kv::K), Some(3 * 3 * 4096 * 4));
}
