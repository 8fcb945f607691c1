//! Configurations of models with latent attention, and the rows of their tensors.

use serde_json::{Map, Value, json};

use super::*;
use crate::config_json::parse;
use crate::experts::ExpertGroups;
use crate::layers::FeedForward;
use crate::ops::Kv;

fn text() -> Value {
    json!({
        "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3,
        "q_lora_rank": 28, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
        "v_head_dim": 20, "max_position_embeddings": 64, "vocab_size": 100,
        "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 4,
        "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "rope_theta": 10000.0,
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut config = text();
    config.as_object_mut().expect("an object").insert(field.to_owned(), value);
    config
}

fn read(config: &Value) -> Result<ModelConfig, ConfigError> {
    parse("m", config.as_object().expect("an object"), &Map::new())
}

fn good(config: &Value) -> ModelConfig {
    read(config).expect("understood")
}

#[test]
fn heads_share_one_cached_vector() {
    let model = good(&text());
    let latent = model.latent.expect("latent attention");
    assert_eq!((model.num_kv_heads, model.head_dim), (1, 32));
    assert_eq!((latent.query_dim(), latent.key_dim()), (20, 32));
    assert_eq!(model.layer_caches(0), [Kv::K]);
    let rope = model.layers.kind(0).rope.as_ref().expect("a rope");
    assert_eq!(rope.rotary_dim(model.head_dim), 8);
    assert_eq!(model.attention_scale(), 1.0 / 20f32.sqrt());
    let halves = [0, 1].map(|layer| model.layers.kind(layer).feed_forward);
    assert_eq!(halves, [FeedForward::Dense, FeedForward::UngatedSharedExpert]);
    let groups = model.experts.expect("experts").selection.groups;
    assert_eq!(groups, Some(ExpertGroups::new(4, 2)));
    let ops = model.layer_ops(0);
    assert!(ops.contains(&Op::QDown) && !ops.contains(&Op::V), "{ops:?}");
    let ops = good(&with("q_lora_rank", Value::Null)).layer_ops(0);
    assert!(!ops.contains(&Op::QDown), "{ops:?}");
}

#[test]
fn contradictions_are_refused_by_name() {
    for (field, value) in [
        ("num_key_value_heads", json!(1)),
        ("qk_head_dim", json!(24)),
        ("attention_bias", json!(true)),
        ("scoring_func", json!("softmax")),
        ("moe_layer_freq", json!(2)),
        ("qk_rope_head_dim", json!(0)),
        ("kv_lora_rank", json!(1 << 20)),
    ] {
        let refusal = read(&with(field, value)).expect_err(field).to_string();
        let what = if field == "kv_lora_rank" { "values of a head" } else { field };
        assert!(refusal.contains(what), "{field}: {refusal}");
    }
}

/// Rows of a checkpoint's tensor, by the first element of each row of the model's tensor.
fn rows(model: &ModelConfig, op: Op) -> (Vec<usize>, (usize, usize)) {
    let id = TensorId::Layer { layer: 1, op, part: TensorPart::Matrix };
    let pieces = &layouts(model, id)[0];
    let each = |piece: &TensorSlice| {
        let (first, step) = (piece.first, piece.strides.0);
        (0..piece.rows).map(move |row| first + row * step)
    };
    let all: Vec<usize> = pieces.iter().flat_map(each).collect();
    assert_eq!(Some((all.len(), pieces[0].columns)), id.expected_shape(model), "{op:?}");
    (all, (pieces[0].columns, pieces[0].strides.1))
}

#[test]
fn rotated_rows_come_first_in_halves() {
    let model = good(&text());
    let (queries, _) = rows(&model, Op::Q);
    let of_head = |head: usize| {
        let rotated = [12, 14, 16, 18, 13, 15, 17, 19].into_iter();
        rotated.chain(0..12).map(move |row| (head * 20 + row) * 28)
    };
    assert_eq!(queries, (0..3).flat_map(of_head).collect::<Vec<_>>());
    let (keys, _) = rows(&model, Op::K);
    let rotated = [24, 26, 28, 30, 25, 27, 29, 31].into_iter();
    assert_eq!(keys, rotated.chain(0..24).map(|row| row * 32).collect::<Vec<_>>());
    let (keys, _) = rows(&good(&with("rope_interleave", json!(false))), Op::K);
    assert_eq!(keys, (24..32).chain(0..24).map(|row| row * 32).collect::<Vec<_>>());
}

#[test]
fn matrices_of_keys_are_transposed() {
    let model = good(&text());
    let (keys, shape) = rows(&model, Op::QAbsorb);
    let of_head = |head: usize| (0..24).map(move |column| head * 32 * 24 + column);
    assert_eq!(keys, (0..3).flat_map(of_head).collect::<Vec<_>>());
    assert_eq!(shape, (12, 24));
    let (values, shape) = rows(&model, Op::VUp);
    let of_head = |head: usize| (12..32).map(move |row| (head * 32 + row) * 24);
    assert_eq!(values, (0..3).flat_map(of_head).collect::<Vec<_>>());
    assert_eq!(shape, (24, 1));
}
