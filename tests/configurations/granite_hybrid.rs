//! Tests of Granite 4's configurations.

use model::config::ModelConfig;
use model::config_fields::ConfigError;
use model::config_json;
use model::layers::{FeedForward, TokenMixer};
use model::mamba::Mamba;
use model::ops::{Kv, Op};
use serde_json::{Map, Value, json};

/// Parses the configuration of a small model with changed fields.
fn granite(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = json!({
        "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 32,
        "intermediate_size": 24, "shared_intermediate_size": 40, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "vocab_size": 260, "num_local_experts": 8, "num_experts_per_tok": 3,
        "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_n_groups": 2,
        "layer_types": ["mamba", "attention", "linear_attention", "full_attention"],
        "position_embedding_type": "nope"
    });
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("granite", fields.as_object().expect("an object"), &Map::new())
}

fn sizes(changes: &[(&str, Value)]) -> Mamba {
    granite(changes).expect("valid").mamba.expect("layers with Mamba2")
}

#[test]
fn layers_have_mamba_or_attend() {
    let model = granite(&[]).expect("valid");
    let mixing = |layer: usize| model.layers.kind(layer).mixing;
    let (mamba, attention) = (TokenMixer::Mamba, TokenMixer::Attention);
    assert_eq!([0, 1, 2, 3].map(mixing), [mamba, attention, mamba, attention]);
    assert_eq!(model.layers.kind(1).rope, None);
    let first = [Op::Norm0, Op::MambaIn, Op::MambaConv, Op::Mamba, Op::MambaOut, Op::Norm1];
    assert_eq!(model.layer_ops(0)[..6], first);
    assert_eq!(model.layers.kind(0).feed_forward, FeedForward::UngatedSharedExpert);
    assert_eq!((model.ffn_size, model.experts.expect("experts").ffn_size), (40, 24));
    let state = |layer, kv| model.state_bytes(model.layers.kind(layer), kv);
    assert_eq!([state(1, Kv::K), state(1, Kv::V)], [None, None]);
    // Three rows of x, B and C, and a matrix for each of four heads, in f32.
    let expected = [Some(3 * (64 + 2 * 2 * 12) * 4), Some(4 * 16 * 12 * 4)];
    assert_eq!([state(0, Kv::K), state(0, Kv::V)], expected);
    let rotating = granite(&[("position_embedding_type", json!("rope"))]).expect("valid");
    assert!(rotating.layers.kind(1).rope.is_some());
}

#[test]
fn models_without_experts_have_a_dense_network() {
    let model = granite(&[("num_local_experts", json!(0))]).expect("valid");
    assert_eq!((model.experts, model.ffn_size), (None, 40));
    assert_eq!(model.layers.kind(0).feed_forward, FeedForward::Dense);
    let types = ("layer_types", json!(["attention", "attention", "attention", "attention"]));
    assert_eq!(granite(&[types]).expect("valid").mamba, None);
}

#[test]
fn sizes_of_mamba_are_read() {
    let mamba = sizes(&[]);
    assert_eq!((mamba.heads, mamba.head_dim, mamba.groups), (4, 16, 2));
    assert_eq!((mamba.inner_size(), mamba.channels(), mamba.input_size()), (64, 112, 180));
    assert_eq!((mamba.taps, mamba.conv_bias), (4, true));
    assert_eq!([0, 1, 2, 3].map(|head| mamba.group(head)), [0, 0, 1, 1]);
    let mamba = sizes(&[("mamba_d_head", json!("auto")), ("mamba_n_heads", json!(8))]);
    assert_eq!((mamba.heads, mamba.head_dim), (8, 8));
}

#[test]
fn limits_of_time_steps_are_read() {
    for (value, expected) in [
        (json!(null), (0.0, None)),
        (json!([0.0, {"__float__": "Infinity"}]), (0.0, None)),
        (json!([0.25, "Infinity"]), (0.25, None)),
        (json!([0.001, 0.5]), (0.001, Some(0.5))),
    ] {
        let mamba = sizes(&[("time_step_limit", value)]);
        assert_eq!((mamba.min_step, mamba.max_step), expected);
    }
    let mamba = sizes(&[("time_step_limit", json!([0.25, 0.5]))]);
    assert_eq!([0.0, 0.3, 4.0].map(|step| mamba.limit(step)), [0.25, 0.3, 0.5]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (field, value) in [
        ("mamba_proj_bias", json!(true)),
        ("normalization_function", json!("layernorm")),
        ("layer_types", json!(["mamba", "rwkv", "mamba", "mamba"])),
        ("layer_types", json!(["mamba"])),
        ("mamba_n_groups", json!(3)),
        ("mamba_n_groups", json!(0)),
        ("mamba_n_heads", json!(5)),
        ("mamba_d_head", json!(8)),
        ("mamba_d_head", json!("large")),
        ("mamba_d_conv", json!(1_000_000_000)),
        ("mamba_d_state", json!(1_000_000)),
        ("mamba_expand", json!(u64::MAX)),
        ("time_step_limit", json!([0.5, 0.25])),
        ("time_step_limit", json!([-1.0, 0.25])),
        ("time_step_limit", json!([0.5])),
        ("time_step_limit", json!("none")),
    ] {
        let error = granite(&[(field, value.clone())]).expect_err(field).to_string();
        let names = [field, "convolution", "Mamba2", "mamba_n_heads"];
        assert!(names.iter().any(|name| error.contains(name)), "{field} {value}: {error}");
    }
}
