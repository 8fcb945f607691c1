//! Tests of DeepSeek V4's configurations.

use model::config::{Activation, Dtype, ModelConfig};
use model::config_fields::ConfigError;
use model::config_json;
use model::experts::{ExpertScoring, ScoreSum};
use model::family::layouts;
use model::layers::{ActivationLimits, ExpertRouting};
use model::ops::{Kv, Op, Value as OpValue};
use model::rope::{Rope, RopeScaling};
use model::source::dummy::DummySource;
use model::source::{TensorId, TensorPart, WeightSource};
use serde_json::{Map, Value, json};

/// Returns the fields of a small model as published, whose layers all have windows.
fn published() -> Value {
    json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
        "hidden_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24, "qk_rope_head_dim": 8,
        "q_lora_rank": 28, "o_groups": 2, "o_lora_rank": 20, "vocab_size": 260,
        "max_position_embeddings": 128, "sliding_window": 9, "rope_theta": 500.0,
        "compress_ratios": [0, 0, 0], "compress_rope_theta": 400.0, "num_hash_layers": 1,
        "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 3, "hc_mult": 3,
        "hc_sinkhorn_iters": 4, "hc_eps": 1e-3, "swiglu_limit": 0.7,
        "rope_scaling": {
            "type": "yarn", "factor": 16, "original_max_position_embeddings": 64,
        },
    })
}

/// Parses the fields of [`published`] with changes.
fn v4(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = published();
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("v4", fields.as_object().expect("an object"), &Map::new())
}

fn refusal(changes: &[(&str, Value)]) -> String {
    v4(changes).map(|_| ()).expect_err("a refusal").to_string()
}

#[test]
fn layers_have_streams_and_one_cache() {
    let model = v4(&[]).expect("valid");
    assert_eq!((model.residual_size(), model.max_positions), (96, 128));
    assert_eq!(OpValue::Hidden.row_elements(&model), Some(96));
    assert_eq!(OpValue::StreamMap0.row_elements(&model), Some(15));
    assert_eq!(model.layer_caches(0), [Kv::K]);
    assert_eq!(model.cache_bytes_per_position(Dtype::Bf16), 3 * 24 * 2);
    let kind = model.layers.kind(2);
    // A scaling is that of layers with compressed caches.
    let rope = Rope { rotary_dim: Some(8), ..Rope::new(500.0, RopeScaling::None) };
    assert_eq!((kind.window, kind.rope.clone()), (Some(9), Some(rope)));
    let limit = Some(0.7);
    assert_eq!(kind.limits, ActivationLimits { experts: limit, network: limit });
    assert_eq!(model.activation, Activation::SiluOfLimited);
    let routing = [0, 1, 2].map(|layer| model.layers.kind(layer).routing);
    let by_scores = ExpertRouting::ByScores;
    assert_eq!(routing, [ExpertRouting::ByToken, by_scores, by_scores]);
    let experts = model.experts.expect("experts");
    let sum = ScoreSum::Plus(1e-20);
    assert_eq!(experts.scoring, ExpertScoring::SqrtSoftplusTopK { sum });
    assert_eq!(experts.selection.scale, 1.5);
    let ops = model.layer_ops(1);
    assert_eq!(ops[..3], [Op::StreamMap0, Op::Norm0, Op::QDown]);
    assert!(ops.ends_with(&[Op::Down, Op::StreamAdd1]));
    assert!(Op::StreamAdd0.adds_to_residual(&model) && !Op::Out.adds_to_residual(&model));
}

#[test]
fn weights_have_the_shapes_of_groups_and_mappings() {
    let model = v4(&[]).expect("valid");
    let shape = |op: Op, layer: usize| op.weights(model.of_layer(layer)).expect("weights");
    assert_eq!(shape(Op::Q, 0).matrix, Some((96, 28)));
    assert_eq!(shape(Op::K, 0).matrix, Some((24, 32)));
    assert_eq!(shape(Op::OutDown, 0).matrix, Some((40, 48)));
    assert_eq!(shape(Op::Out, 0).matrix, Some((32, 40)));
    let map = shape(Op::StreamMap1, 0);
    assert_eq!((map.matrix, map.vectors, map.is_f32), (Some((15, 96)), [Some(15), Some(3)], true));
    let last = Op::FinalNorm.weights(&model).expect("weights");
    assert_eq!((last.matrix, last.vectors), (Some((3, 96)), [Some(4), Some(32)]));
    assert_eq!(shape(Op::Router, 0).vectors, [None, Some(260 * 3)]);
    assert_eq!(shape(Op::Router, 1).vectors, [None, Some(16)]);
}

#[test]
fn tensors_have_their_published_names_and_those_of_transformers() {
    let model = v4(&[]).expect("valid");
    let pieces = |id| layouts(&model, id).remove(0);
    let of_layer = |op, part| pieces(TensorId::Layer { layer: 1, op, part });
    for (op, part, name) in [
        (Op::QDown, TensorPart::Matrix, "attn.wq_a.weight"),
        (Op::QDown, TensorPart::Gain, "attn.q_norm.weight"),
        (Op::Softmax, TensorPart::Gain, "attn.attn_sink"),
        (Op::OutDown, TensorPart::Matrix, "attn.wo_a.weight"),
        (Op::StreamMap0, TensorPart::Bias, "hc_attn_base"),
        (Op::StreamMap1, TensorPart::Gain, "hc_ffn_scale"),
        (Op::Router, TensorPart::Gain, "ffn.gate.bias"),
        (Op::ExpertUp, TensorPart::Matrix, "ffn.experts.0.w3.weight"),
        (Op::Down, TensorPart::Matrix, "ffn.shared_experts.w2.weight"),
    ] {
        let found = &of_layer(op, part)[0].names;
        let expected = [format!("layers.1.{name}"), format!("model.layers.1.{name}")];
        assert_eq!(*found, expected, "{op:?} {part:?}");
    }
    let gain = of_layer(Op::K, TensorPart::Gain);
    let names = ["layers.1.attn.kv_norm.weight", "model.layers.1.attn.norm.weight"];
    // Rotated elements come first: 16, 18, 20, 22, then 17, 19, 21, 23.
    assert!(gain.iter().all(|piece| piece.names == names));
    let spans = |piece: &model::family::TensorSlice| (piece.first, piece.columns, piece.strides.1);
    assert_eq!(gain.iter().map(spans).collect::<Vec<_>>(), [(16, 4, 2), (17, 4, 2), (0, 16, 1)]);
    let queries = of_layer(Op::Q, TensorPart::Matrix);
    let rows = |piece: &model::family::TensorSlice| (piece.first / 28, piece.rows);
    let heads: Vec<_> = queries.iter().map(rows).collect();
    assert_eq!(heads[3..6], [(40, 4), (41, 4), (24, 16)]);
    let head = pieces(TensorId::FinalNorm { part: TensorPart::Matrix });
    assert_eq!(head[0].names, ["hc_head_fn", "model.hc_head.hc_fn"]);
    assert_eq!(pieces(TensorId::Embedding)[0].names[1], "model.embed_tokens.weight");
}

/// There are more operations than six bits can number.
#[test]
fn dummy_mappings_differ_by_layer_and_half() {
    let model = v4(&[]).expect("valid");
    let read = |layer, op| {
        let id = TensorId::Layer { layer, op, part: TensorPart::Matrix };
        let mut row = vec![f32::NAN; 96];
        DummySource::new(model.clone(), 3).read_f32(id, 0, &mut row).expect("a row");
        row
    };
    let mut all: Vec<Vec<f32>> = (0..3)
        .flat_map(|layer| [Op::StreamMap0, Op::StreamMap1].map(|op| read(layer, op)))
        .collect();
    all.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    all.dedup();
    assert_eq!(all.len(), 6);
}

/// Dummy tables of experts have different experts of the model in each row.
#[test]
fn dummy_tables_are_valid() {
    let model = v4(&[]).expect("valid");
    let experts = model.experts.expect("experts");
    let id = TensorId::Layer { layer: 0, op: Op::Router, part: TensorPart::Gain };
    let mut table = vec![f32::NAN; 260 * 3];
    DummySource::new(model, 3).read_f32(id, 0, &mut table).expect("a table");
    assert!(experts.has_rows(&table));
    assert!(table.chunks_exact(3).any(|row| row != &table[..3]), "tokens differ");
}

#[test]
fn other_layers_are_refused_by_name() {
    let csa = refusal(&[("compress_ratios", json!([0, 4, 0]))]);
    assert!(csa.contains("compressed_sparse_attention"), "{csa}");
    let hca = refusal(&[("compress_ratios", json!([0, 0, 128]))]);
    assert!(hca.contains("heavily_compressed_attention"), "{hca}");
    let unsaid = refusal(&[("compress_ratios", Value::Null)]);
    assert!(unsaid.contains("heavily_compressed_attention"), "{unsaid}");
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert!(refusal(&[("layer_types", types)]).contains("layer_types"));
    assert!(refusal(&[("compress_ratios", json!([0, 0]))]).contains("layer_types"));
    for (field, value) in [
        ("hc_mult", json!(9)),
        ("hc_sinkhorn_iters", json!(1 << 20)),
        ("o_groups", json!(3)),
        ("qk_rope_head_dim", json!(7)),
        ("mlp_layer_types", json!(["moe", "dense", "moe"])),
        ("scoring_func", json!("sigmoid")),
        ("num_key_value_heads", json!(2)),
    ] {
        let error = refusal(&[(field, value)]);
        assert!(error.contains(field), "{error}");
    }
}
