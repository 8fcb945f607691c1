//! Tests of Gemma 4's configurations.

use model::config::{Dtype, ModelConfig, PerLayerInputs};
use model::config_fields::ConfigError;
use model::config_json;
use model::known::find_known;
use model::layers::{CacheSharing, FeedForward};
use model::ops::{Kv, Op, Value as OpValue};
use model::rope::RopeScaling;
use serde_json::{Map, Value, json};

/// Parses the configuration of a small model with changed fields.
fn gemma4(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = json!({
        "architectures": ["Gemma4ForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "global_head_dim": 16, "vocab_size": 260, "sliding_window": 9,
        "hidden_size_per_layer_input": 0, "max_position_embeddings": 128,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
            "sliding_attention", "sliding_attention", "full_attention"]
    });
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("gemma4", fields.as_object().expect("an object"), &Map::new())
}

fn heads(model: &ModelConfig) -> Vec<(usize, usize)> {
    let of_layer = |layer| (model.of_layer(layer).num_kv_heads, model.of_layer(layer).head_dim);
    (0..model.num_layers).map(of_layer).collect()
}

#[test]
fn heads_differ_between_layers_with_and_without_a_window() {
    let local = (2, 8);
    let model = gemma4(&[]).expect("valid");
    assert_eq!(heads(&model), [local, (2, 16), local, local, local, (2, 16)]);
    let global = [("attention_k_eq_v", json!(true)), ("num_global_key_value_heads", json!(1))];
    let model = gemma4(&global).expect("valid");
    assert_eq!(heads(&model), [local, (1, 16), local, local, local, (1, 16)]);
    assert!(model.computes_values_from_keys(1) && !model.computes_values_from_keys(0));
    // What transformers writes since it has sizes by layer.
    let sizes = json!({"01": {"head_dim": 16, "num_key_value_heads": 1}, "5": {"head_dim": 12}});
    let model = gemma4(&[("per_layer_config", sizes)]).expect("valid");
    assert_eq!(heads(&model), [local, (1, 16), local, local, local, (2, 12)]);
    let shape = |layer, op: Op| op.weights(model.of_layer(layer)).expect("weights").matrix;
    assert_eq!([0, 1].map(|layer| shape(layer, Op::Q)), [Some((32, 32)), Some((64, 32))]);
    assert_eq!([0, 1].map(|layer| shape(layer, Op::K)), [Some((16, 32)), Some((16, 32))]);
    assert_eq!([0, 1].map(|layer| shape(layer, Op::Out)), [Some((32, 32)), Some((32, 64))]);
    assert_eq!(model.cache_bytes_per_position(Dtype::Bf16), 2 * 2 * (4 * 16 + 16 + 24));
    // The widest rows are those of a buffer.
    assert_eq!(OpValue::Query.max_row_elements(&model), Some(64));
    assert_eq!(model.attention_scale(), 1.0);
}

#[test]
fn layers_without_a_window_rotate_a_part_of_their_pairs() {
    let model = gemma4(&[]).expect("valid");
    let rope = |layer| model.layers.kind(layer).rope.clone().expect("a rope");
    assert_eq!((rope(0).theta, rope(0).scaling), (1e4, RopeScaling::None));
    let scaling = RopeScaling::Proportional { rotated_pairs: 2 };
    assert_eq!((rope(1).theta, rope(1).scaling), (1e6, scaling));
    // The frequencies of whole heads.
    let expected = [1.0, 1e6f32.powf(-2.0 / 16.0), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    for (found, expected) in rope(1).inverse_frequencies(16).iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    // The last layer attends to all positions, whatever the file says.
    let types = json!(vec!["sliding_attention"; 6]);
    let model = gemma4(&[("layer_types", types)]).expect("valid");
    let windows = [0, 4, 5].map(|layer| model.layers.kind(layer).window);
    assert_eq!(windows, [Some(9), Some(9), None]);
}

#[test]
fn last_layers_attend_to_the_caches_of_earlier_ones() {
    let model = gemma4(&[
        ("num_kv_shared_layers", json!(2)),
        ("use_double_wide_mlp", json!(true)),
        ("hidden_size_per_layer_input", json!(4)),
        ("vocab_size_per_layer_input", json!(300)),
    ]);
    let mut model = model.expect("valid");
    let caches = |model: &ModelConfig| -> Vec<CacheSharing> {
        (0..model.num_layers).map(|layer| model.layers.kind(layer).caches).collect()
    };
    let (own, source, reader) = (CacheSharing::Own, CacheSharing::Source, CacheSharing::Reader);
    assert_eq!(caches(&model), [own, source, own, source, reader, reader]);
    assert_eq!([3, 4, 5].map(|layer| model.cache_layer(layer)), [3, 3, 1]);
    assert_eq!([3, 4].map(|layer| model.layer_caches(layer)), [&[Kv::K, Kv::V][..], &[]]);
    // A source keeps all positions, since later layers read them after it has appended others.
    let kept = [2, 3, 4].map(|layer| model.layers.kind(layer).kept_positions(100));
    assert_eq!(kept, [9, 100, 100]);
    assert_eq!([3, 4].map(|layer| model.of_layer(layer).ffn_size), [48, 96]);
    let first_half = [Op::Norm0, Op::Q, Op::Scores, Op::Softmax, Op::Wv, Op::Out, Op::PostNorm0];
    assert_eq!(model.layer_ops(4)[..7], first_half);
    assert!(model.leading_ops().contains(&Op::K));
    let last = [Op::PerLayerGate, Op::PerLayerOut, Op::PerLayerNorm];
    assert_eq!(model.layer_ops(0)[14..], last);
    let inputs = PerLayerInputs { size: 4, layers: 6, vocab_size: 300 };
    assert_eq!(model.features.per_layer_inputs, Some(inputs));
    let of = |layer| Op::Attention.reads(model.of_layer(layer));
    assert_eq!(of(2), [OpValue::Query, OpValue::Key, OpValue::Value]);
    assert_eq!(of(3), [OpValue::Query, OpValue::WindowKey, OpValue::WindowValue]);
    assert_eq!(of(5), [OpValue::Query, OpValue::SharedKey, OpValue::SharedValue]);
    // Inputs keep the width of the published model.
    model.keep_layers(5);
    assert_eq!(caches(&model), [own, source, own, source, reader]);
    assert_eq!(OpValue::PerLayer.row_elements(&model), Some(24));
}

#[test]
fn experts_are_next_to_a_dense_network() {
    let model = gemma4(&[
        ("enable_moe_block", json!(true)),
        ("num_experts", json!(8)),
        ("top_k_experts", json!(3)),
        ("moe_intermediate_size", json!(20)),
    ]);
    let model = model.expect("valid");
    assert_eq!(model.layers.kind(0).feed_forward, FeedForward::ParallelExperts);
    let experts = model.experts.expect("experts");
    assert!(experts.has_factors && (experts.logit_factor - 32f32.powf(-0.5)).abs() < 1e-7);
    assert_eq!((experts.count, experts.per_token, model.ffn_size), (8, 3, 48));
    assert_eq!(Op::ExpertDown.writes(&model), Some(OpValue::ExpertSum));
    let adding = |op: &&Op| op.adds_to_residual(&model);
    let found: Vec<&Op> = model.layer_ops(0).iter().filter(adding).collect();
    assert_eq!(found, [&Op::PostNorm0, &Op::PostNorm1]);
}

/// In bf16, transformers multiplies by a factor that is rounded to it.
#[test]
fn the_embedding_has_a_factor_in_the_runs_type() {
    let model = gemma4(&[("hidden_size", json!(3072))]).expect("valid");
    assert_eq!(model.embedding_scale(Dtype::Bf16), 55.5);
    assert_eq!(model.embedding_scale(Dtype::F32), 3072f32.sqrt());
}

/// Caches of Gemma 4 26B-A4B, with 25 layers of a window of 1024 and 5 without one.
#[test]
fn caches_of_a_published_model_have_their_sizes() {
    let config = find_known("gemma-4-26b-a4b").expect("known").config;
    assert_eq!(config.cache_bytes_per_position(Dtype::Bf16), (25 * 8 * 256 + 5 * 2 * 512) * 4);
    let rope = config.layers.kind(5).rope.clone().expect("a rope");
    assert_eq!(rope.scaling, RopeScaling::Proportional { rotated_pairs: 64 });
    assert_eq!((config.max_positions, config.eos_token_ids), (262_144, vec![1, 106]));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let hostile: Map<String, Value> =
        (0..6).map(|n| (n.to_string(), json!({"head_dim": 1 << 20}))).collect();
    for (field, value) in [
        ("use_bidirectional_attention", json!("all")),
        ("hidden_activation", json!("relu")),
        ("layer_types", json!(["full_attention"])),
        ("num_kv_shared_layers", json!(6)),
        ("num_kv_shared_layers", json!(5)),
        ("num_kv_shared_layers", json!(7)),
        ("per_layer_config", json!({"0": {"num_attention_heads": 3}})),
        ("per_layer_config", json!({"6": {"head_dim": 16}})),
        ("per_layer_config", json!({"0": {"num_key_value_heads": 3}})),
        ("per_layer_config", json!({"0": {"head_dim": 7}})),
        ("per_layer_config", Value::Object(hostile)),
        ("intermediate_size", json!(1u64 << 30)),
        ("final_logit_softcapping", json!(-1.0)),
    ] {
        let error = gemma4(&[(field, value.clone())]).expect_err(field).to_string();
        let names = [field, "activation", "key_value_heads", "head"];
        assert!(
            names.iter().any(|name| error.contains(name)) || error.contains("feed-forward"),
            "{field} {value}: {error}"
        );
    }
    let both = [("hidden_size_per_layer_input", json!(8)), ("enable_moe_block", json!(true))];
    let sizes = ["num_experts", "top_k_experts", "moe_intermediate_size"].map(|n| (n, json!(4)));
    let error = gemma4(&[&both[..], &sizes].concat()).expect_err("both").to_string();
    assert!(error.contains("experts together with hidden_size_per_layer_input"), "{error}");
    let fewer =
        [("hidden_size_per_layer_input", json!(8)), ("vocab_size_per_layer_input", json!(9))];
    let error = gemma4(&fewer).expect_err("fewer").to_string();
    assert!(error.contains("vocab_size_per_layer_input"), "{error}");
}
