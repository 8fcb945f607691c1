//! Configurations of models with latent attention, and the rows of their tensors.

use serde_json::{Map, Value, json};

use super::*;
use crate::config::Dtype;
use crate::config_json::parse;
use crate::experts::ExpertGroups;
use crate::indexer::PositionSelection;
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

fn indexed(changes: &[(&str, Value)]) -> Value {
    let mut config = text();
    let fields = config.as_object_mut().expect("an object");
    let own = json!({
        "model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"],
        "index_topk": 9, "index_head_dim": 10, "index_n_heads": 2,
    });
    fields.extend(own.as_object().expect("an object").clone());
    fields.extend(changes.iter().map(|(field, value)| ((*field).to_owned(), value.clone())));
    config
}

#[test]
fn keys_of_indexers_follow_the_cached_vectors() {
    let model = good(&indexed(&[]));
    assert_eq!((model.head_dim, model.attention_dim(), model.q_size()), (42, 32, 3 * 32));
    assert_eq!(model.layer_caches(0), [Kv::K]);
    assert_eq!(model.cache_bytes_per_position(Dtype::Bf16), 3 * 42 * 2);
    assert!(!model.has_kind_models());
    let ops = model.layer_ops(1);
    assert!([Op::IndexQuery, Op::IndexWeights, Op::Select].iter().all(|op| ops.contains(op)));
    // The rows of the key in halves, after those of attention, which are of another tensor.
    let id = |part| TensorId::Layer { layer: 1, op: Op::K, part };
    let pieces = &layouts(&model, id(TensorPart::Matrix))[0];
    let of_indexer = pieces.iter().filter(|piece| piece.names[0].contains("indexer.wk"));
    let rows = |piece: &TensorSlice| {
        let (first, step, columns) = (piece.first, piece.strides.0, piece.columns);
        (0..piece.rows).map(move |row| (first + row * step) / columns).collect::<Vec<_>>()
    };
    let rows: Vec<usize> = of_indexer.flat_map(rows).collect();
    assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 9]);
    let pieces = &layouts(&model, id(TensorPart::Gain))[0];
    let firsts: Vec<(usize, usize, usize)> =
        pieces.iter().map(|piece| (piece.first, piece.strides.1, piece.columns)).collect();
    let key = [(0, 2, 4), (1, 2, 4), (8, 1, 2)];
    assert_eq!(firsts, [&[(0, 1, 24)][..], &key, &key].concat());
    assert_eq!(id(TensorPart::Gain).expected_shape(&model), Some((1, 24 + 2 * 10)));
    let (queries, _) = rows_of_queries(&model);
    let of_head = |head: usize| [0, 2, 4, 6, 1, 3, 5, 7, 8, 9].map(|row| (head * 10 + row) * 28);
    assert_eq!(queries, [of_head(0), of_head(1)].concat());
    // No row has more positions than the model.
    let indexer = good(&indexed(&[("index_topk", json!(4096))])).features.indexer;
    assert_eq!(indexer.expect("an indexer").top_k, 64);
}

fn rows_of_queries(model: &ModelConfig) -> (Vec<usize>, (usize, usize)) {
    rows(model, Op::IndexQuery)
}

#[test]
fn indexers_of_deepseek_rotate_halves() {
    let model = good(&indexed(&[
        ("model_type", json!("deepseek_v32")),
        ("architectures", json!(["DeepseekV32ForCausalLM"])),
    ]));
    let (queries, _) = rows_of_queries(&model);
    assert_eq!(queries, (0..20).map(|row| row * 28).collect::<Vec<_>>());
    let refused = read(&indexed(&[
        ("model_type", json!("deepseek_v32")),
        ("architectures", json!(["DeepseekV32ForCausalLM"])),
        ("indexer_types", json!(["full", "shared", "shared"])),
    ]));
    let message = refused.expect_err("no layer shares").to_string();
    assert!(message.contains("indexer_types"), "{message}");
}

#[test]
fn layers_may_share_the_selection_of_an_earlier_one() {
    let shares = |changes: &[(&str, Value)]| {
        let model = good(&indexed(changes));
        let kind = |layer: usize| model.layers.kind(layer).selection;
        let selections = [0, 1, 2].map(|layer| kind(layer) == PositionSelection::Shared);
        let dims = [0, 1, 2].map(|layer| model.of_layer(layer).head_dim == 32);
        assert_eq!(selections, dims, "shared layers cache no key of an indexer");
        let ops = [0, 1, 2].map(|layer| !model.layer_ops(layer).contains(&Op::Select));
        assert_eq!(selections, ops);
        assert!(model.leading_ops().contains(&Op::Select));
        (selections, [0, 1, 2].map(|layer| model.selection_layer(layer)))
    };
    let types = |types: [&str; 3]| ("indexer_types", json!(types));
    assert_eq!(shares(&[]), ([false; 3], [0, 1, 2]));
    let found = shares(&[types(["full", "shared", "shared"])]);
    assert_eq!(found, ([false, true, true], [0; 3]));
    assert_eq!(shares(&[("index_topk_pattern", json!("FSF"))]), ([false, true, false], [0, 0, 2]));
    // One in three layers, from the second on.
    let periodic = [("index_topk_freq", json!(3)), ("index_skip_topk_offset", json!(2))];
    assert_eq!(shares(&periodic), ([false, false, true], [0, 1, 1]));
    for (field, value) in [
        ("indexer_types", json!(["shared", "full", "full"])),
        ("indexer_types", json!(["full", "full"])),
        ("index_topk_pattern", json!("FXF")),
        ("index_topk_freq", json!(-1)),
        ("layer_types", json!(["indexed_attention", "full_attention", "indexed_attention"])),
        ("index_head_dim", json!(6)),
        ("index_topk", json!(0)),
    ] {
        let refusal = read(&indexed(&[(field, value)])).expect_err(field).to_string();
        assert!(refusal.contains(field), "{field}: {refusal}");
    }
    let late = [("index_topk_freq", json!(2)), ("index_skip_topk_offset", json!(0))];
    let refusal = read(&indexed(&late)).expect_err("the first layer shares").to_string();
    assert!(refusal.contains("index_skip_topk_offset"), "{refusal}");
    let refusal = read(&indexed(&[("q_lora_rank", Value::Null)])).expect_err("no latent");
    assert!(refusal.to_string().contains("q_lora_rank"), "{refusal}");
}
