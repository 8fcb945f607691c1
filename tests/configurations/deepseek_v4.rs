//! Tests of DeepSeek V4's configurations.

use model::compression::PositionCompression;
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

/// Returns the changes to layers of all types.
fn compressing() -> Vec<(&'static str, Value)> {
    let rates = json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 8});
    vec![
        ("compress_ratios", json!([128, 4, 0])),
        ("compress_rates", rates),
        ("index_head_dim", json!(14)),
        ("index_n_heads", json!(5)),
        ("index_topk", json!(6)),
    ]
}

#[test]
fn layers_with_entries_have_two_caches() {
    let model = v4(&compressing()).expect("valid");
    let compressions = [0, 1, 2].map(|layer| model.layers.kind(layer).compression);
    let heavy = PositionCompression { rate: 8, overlaps: false };
    let sparse = PositionCompression { rate: 4, overlaps: true };
    assert_eq!(compressions, [Some(heavy), Some(sparse), None]);
    let caches = [0, 1, 2].map(|layer| model.layer_caches(layer).len());
    assert_eq!(caches, [2, 2, 1]);
    // Bytes of a position of the window, and of its part of an entry.
    let of_heavy = (24 + 2 * 24) + 24 / 8;
    let of_sparse = (24 + 4 * (24 + 14)) + (24 + 14_usize).div_ceil(4);
    let bytes = model.cache_bytes_per_position(Dtype::F32);
    assert_eq!(bytes, 4 * (of_heavy + of_sparse + 24) - 2);
    // Rotation of layers with entries: YaRN, which does not scale sines and cosines.
    let rope = model.layers.kind(0).rope.clone().expect("a rope");
    assert_eq!((rope.theta, rope.rotary_dim), (400.0, Some(8)));
    let RopeScaling::Yarn { factor, attention_factor, .. } = rope.scaling else {
        panic!("not YaRN: {rope:?}")
    };
    assert_eq!((factor, attention_factor), (16.0, 1.0));
    assert_eq!(model.layers.kind(2).rope.as_ref().map(|rope| rope.theta), Some(500.0));
    let ops = model.layer_ops(1);
    assert!(ops.contains(&Op::Compress) && ops.contains(&Op::Select));
    assert_eq!(model.leading_ops(), ops);
    assert!(!model.layer_ops(0).contains(&Op::Select));
    assert!(!model.layer_ops(2).contains(&Op::Compress));
}

/// Rows attend to a window and to the entries of groups that ended.
#[test]
fn rows_attend_to_windows_and_entries() {
    let model = v4(&compressing()).expect("valid");
    let attended = |layer: usize| [0, 7, 8, 40].map(|at| model.of_layer(layer).attended(at));
    assert_eq!(attended(0), [1, 8 + 1, 9 + 1, 9 + 5]);
    assert_eq!(attended(1), [1, 8 + 2, 9 + 2, 9 + 6]);
    assert_eq!(attended(2), [1, 8, 9, 41]);
}

#[test]
fn tensors_of_entries_have_their_published_names() {
    let model = v4(&compressing()).expect("valid");
    let names = |layer, op, part| -> Vec<String> {
        let pieces = layouts(&model, TensorId::Layer { layer, op, part }).remove(0);
        let mut names: Vec<_> = pieces.iter().map(|piece| piece.names[0].clone()).collect();
        names.dedup();
        names
    };
    let expected = |layer: usize, of: &[&str]| -> Vec<String> {
        of.iter().map(|name| format!("layers.{layer}.attn.{name}")).collect()
    };
    let heavy = ["wkv.weight", "compressor.wkv.weight", "compressor.wgate.weight"];
    assert_eq!(names(0, Op::K, TensorPart::Matrix), expected(0, &heavy));
    let of_indexer = ["indexer.compressor.wkv.weight", "indexer.compressor.wgate.weight"];
    let sparse = [&heavy[..], &of_indexer].concat();
    assert_eq!(names(1, Op::K, TensorPart::Matrix), expected(1, &sparse));
    let biases = ["compressor.ape", "indexer.compressor.ape"];
    assert_eq!(names(1, Op::Compress, TensorPart::Bias), expected(1, &biases));
    let gains = ["compressor.norm.weight", "indexer.compressor.norm.weight"];
    assert_eq!(names(1, Op::Compress, TensorPart::Gain), expected(1, &gains));
    let queries = names(1, Op::IndexQuery, TensorPart::Matrix);
    assert_eq!(queries, expected(1, &["indexer.wq_b.weight"]));
    let weights = names(1, Op::IndexWeights, TensorPart::Matrix);
    assert_eq!(weights, expected(1, &["indexer.weights_proj.weight"]));
    let shape = |layer: usize, op: Op| op.weights(model.of_layer(layer)).expect("weights");
    assert_eq!(shape(1, Op::K).matrix, Some((24 + 4 * 38, 32)));
    assert_eq!(shape(1, Op::Compress).vectors, [Some(38), Some(4 * 2 * 38)]);
    assert_eq!(shape(1, Op::IndexQuery).matrix, Some((70, 28)));
}

/// Biases of a position and series: rotated elements first, 16, 18, 20, 22, then 17, 19, 21, 23.
#[test]
fn biases_are_in_the_order_of_keys() {
    let model = v4(&compressing()).expect("valid");
    let id = TensorId::Layer { layer: 1, op: Op::Compress, part: TensorPart::Bias };
    let pieces = layouts(&model, id).remove(0);
    let spans = |piece: &model::family::TensorSlice| (piece.first, piece.columns, piece.strides.1);
    let found: Vec<_> = pieces.iter().map(spans).collect();
    assert_eq!(found[..4], [(16, 4, 2), (17, 4, 2), (0, 16, 1), (40, 4, 2)]);
    let of_main = 4 * 2 * 3;
    assert_eq!(found[of_main..of_main + 3], [(6, 4, 2), (7, 4, 2), (0, 6, 1)]);
    assert_eq!(pieces.iter().map(|piece| piece.columns).sum::<usize>(), 4 * 2 * 38);
}

#[test]
fn files_without_types_have_those_of_the_reference() {
    let changes = [("compress_ratios", Value::Null), ("sliding_window", json!(128))];
    let model = v4(&changes).expect("valid");
    let rates = [0, 1, 2].map(|layer| model.layers.kind(layer).compression.map(|one| one.rate));
    assert_eq!(rates, [Some(128), Some(128), Some(128)]);
    let changes = [&changes[..], &[("num_hidden_layers", json!(5))]].concat();
    let model = v4(&changes).expect("valid");
    let rates = [2, 3, 4].map(|layer| model.layers.kind(layer).compression.map(|one| one.rate));
    assert_eq!(rates, [Some(128), Some(4), Some(128)]);
}

/// Fields of released files: experts of 4-bit floats, and ratios of layers that draft tokens.
#[test]
fn fields_of_released_files_are_read() {
    let quantization = json!({
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
        "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
    });
    let changes = [
        ("quantization_config", quantization),
        ("expert_dtype", json!("fp4")),
        ("num_nextn_predict_layers", json!(1)),
        ("compress_ratios", json!([0, 4, 128, 0, 0, 0])),
        ("sliding_window", json!(128)),
        ("dspark_block_size", json!(5)),
        ("dspark_markov_rank", json!(256)),
        ("dspark_noise_token_id", json!(7)),
        ("dspark_target_layer_ids", json!([1, 2])),
    ];
    let model = v4(&changes).expect("valid");
    let rates = [0, 1, 2].map(|layer| model.layers.kind(layer).compression.map(|one| one.rate));
    assert_eq!((rates, model.num_layers), ([None, Some(4), Some(128)], 3));
    assert_eq!(model.page_multiple(), 128);
}

#[test]
fn other_layers_are_refused_by_name() {
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert!(refusal(&[("layer_types", types)]).contains("layer_types"));
    assert!(refusal(&[("compress_ratios", json!([0, 0]))]).contains("layer_types"));
    assert!(refusal(&[("compress_ratios", json!([0, 0, 7]))]).contains("compress_ratios"));
    // A group of the published rate is longer than the window.
    assert!(refusal(&[("compress_ratios", json!([0, 0, 128]))]).contains("compress_rates"));
    for (field, value) in [
        ("hc_mult", json!(9)),
        ("hc_sinkhorn_iters", json!(1 << 20)),
        ("o_groups", json!(3)),
        ("qk_rope_head_dim", json!(7)),
        ("mlp_layer_types", json!(["moe", "dense", "moe"])),
        ("scoring_func", json!("sigmoid")),
        ("num_key_value_heads", json!(2)),
        ("expert_dtype", json!("int4")),
    ] {
        let error = refusal(&[(field, value)]);
        assert!(error.contains(field), "{error}");
    }
    for (field, value, named) in [
        ("compress_rates", json!({"heavily_compressed_attention": 1}), "compress_rates"),
        ("index_head_dim", json!(4), "index_head_dim"),
        ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "length"),
    ] {
        let changes: Vec<_> = compressing()
            .into_iter()
            .filter(|(one, _)| *one != field)
            .chain([(field, value)])
            .collect();
        let error = refusal(&changes);
        assert!(error.contains(named), "{error}");
    }
}
