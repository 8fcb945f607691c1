//! Tests of Step 3.5's configurations.

use model::config::{Dtype, ModelConfig};
use model::config_fields::ConfigError;
use model::config_json;
use model::experts::{ExpertScoring, ScoreSum};
use model::family::{gain_offset, layouts};
use model::known::find_known;
use model::layers::{ActivationLimits, FeedForward};
use model::ops::{Op, Value as OpValue};
use model::rope::{Rope, RopeScaling};
use model::source::{TensorId, TensorPart};
use serde_json::{Map, Value, json};

/// Returns the fields of a small model as published, with lists that include a layer for
/// multi-token prediction.
fn published() -> Value {
    json!({
        "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "hidden_size": 32,
        "intermediate_size": 80, "moe_intermediate_size": 16, "share_expert_dim": 24,
        "num_hidden_layers": 4, "num_nextn_predict_layers": 1, "num_attention_heads": 4,
        "num_attention_groups": 2, "head_dim": 16, "vocab_size": 260,
        "max_position_embeddings": 128, "sliding_window": 9, "rms_norm_eps": 1e-5,
        "layer_types": [
            "full_attention", "sliding_attention", "sliding_attention", "full_attention",
            "sliding_attention",
        ],
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 6,
            "num_attention_groups": 2, "head_dim": 16,
        },
        "rope_theta": [500.0, 50.0, 50.0, 500.0, 50.0],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
        "rope_scaling": {
            "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
        "yarn_only_types": ["full_attention"], "use_rope_layers": [], "moe_num_experts": 16,
        "moe_top_k": 3, "moe_layers_enum": "1,2,3", "moe_router_scaling_factor": 3.0,
        "swiglu_limits": [0.0, null, 7.0, 7.5, 0.0],
        "swiglu_limits_shared": [16.0, 0.0, 0.0, 8.0, 0.0],
        "zero_centered": true, "use_head_wise_attn_gate": true, "tie_word_embeddings": false,
    })
}

/// Parses the fields of [`published`] with changes.
fn step(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = published();
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    parse(&fields)
}

fn parse(fields: &Value) -> Result<ModelConfig, ConfigError> {
    config_json::parse("step", fields.as_object().expect("an object"), &Map::new())
}

fn heads(model: &ModelConfig) -> Vec<usize> {
    (0..model.num_layers).map(|layer| model.of_layer(layer).num_heads).collect()
}

#[test]
fn layers_differ_in_heads_windows_ropes_and_limits() {
    let model = step(&[]).expect("valid");
    assert_eq!(heads(&model), [4, 6, 6, 4]);
    assert_eq!((model.num_kv_heads, model.head_dim, model.max_positions), (2, 16, 128));
    let kinds = [0, 1, 2, 3].map(|layer| model.layers.kind(layer).clone());
    assert_eq!(kinds.each_ref().map(|kind| kind.window), [None, Some(9), Some(9), None]);
    let scaling = RopeScaling::Llama3 {
        factor: 2.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 64,
    };
    let global = Rope { rotary_dim: Some(8), ..Rope::new(500.0, scaling) };
    assert_eq!(kinds[0].rope, Some(global));
    assert_eq!(kinds[1].rope, Some(Rope::new(50.0, RopeScaling::None)));
    let limits = |experts, network| ActivationLimits { experts, network };
    let expected = [
        limits(None, Some(16.0)),
        limits(None, None),
        limits(Some(7.0), None),
        limits(Some(7.5), Some(8.0)),
    ];
    assert_eq!(kinds.each_ref().map(|kind| kind.limits), expected);
    assert!(model.layers.has_limits());

    let halves = kinds.map(|kind| kind.feed_forward);
    assert_eq!(halves[..2], [FeedForward::Dense, FeedForward::UngatedSharedExpert]);
    assert_eq!((model.ffn_size, model.of_layer(1).ffn_size), (24, 24));
    let experts = model.experts.expect("experts");
    assert_eq!((experts.count, experts.per_token, experts.dense_ffn_size()), (16, 3, 80));
    assert_eq!(experts.scoring, ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(0.0) });
    assert!(experts.selection.bias && experts.selection.is_f32);
    assert_eq!(experts.selection.scale, 3.0);
}

#[test]
fn queries_and_gates_have_the_heads_of_their_layer() {
    let model = step(&[]).expect("valid");
    let shape = |op: Op, layer: usize| {
        let weights = op.weights(model.of_layer(layer)).expect("weights");
        weights.matrix.expect("a matrix")
    };
    let shapes = |op| [shape(op, 0), shape(op, 1)];
    assert_eq!(shapes(Op::Q), [(64, 32), (96, 32)]);
    assert_eq!(shapes(Op::K), [(32, 32); 2]);
    assert_eq!(shapes(Op::OutGate), [(4, 32), (6, 32)]);
    assert_eq!(shapes(Op::Out), [(32, 64), (32, 96)]);
    assert_eq!(OpValue::GatedAttended.max_row_elements(&model), Some(96));
    let ops = [Op::Norm0, Op::Q, Op::K, Op::V, Op::Scores, Op::Softmax, Op::Wv, Op::OutGate];
    assert_eq!(model.layer_ops(1)[..8], ops);
    assert!(model.layer_ops(1).ends_with(&[Op::Gate, Op::Up, Op::Down]));
}

/// The default of a norm's parameter is 0, for a factor of 1; what selects experts is as stored.
#[test]
fn gains_are_stored_less_one() {
    let model = step(&[]).expect("valid");
    let offset = |op| gain_offset(&model, TensorId::Layer { layer: 1, op, part: TensorPart::Gain });
    assert_eq!([Op::Norm0, Op::Norm1, Op::Q, Op::K].map(offset), [1.0; 4]);
    assert_eq!(offset(Op::Router), 0.0);
    assert_eq!(gain_offset(&model, TensorId::FinalNorm { part: TensorPart::Gain }), 1.0);
}

#[test]
fn tensors_have_their_published_names_and_those_of_transformers() {
    let model = step(&[]).expect("valid");
    let names = |op, part| -> Vec<String> {
        let layouts = layouts(&model, TensorId::Layer { layer: 2, op, part });
        layouts.into_iter().flat_map(|layout| layout[0].names.clone()).collect()
    };
    for (op, part, expected) in [
        (Op::OutGate, TensorPart::Matrix, ["self_attn.g_proj.weight"; 2]),
        (Op::Router, TensorPart::Matrix, ["moe.gate.weight", "mlp.gate.weight"]),
        (Op::Router, TensorPart::Gain, ["moe.router_bias", "mlp.gate.e_score_correction_bias"]),
        (Op::ExpertGate, TensorPart::Matrix, ["moe.gate_proj.weight", "mlp.experts.gate_up_proj"]),
        (Op::ExpertDown, TensorPart::Matrix, ["moe.down_proj.weight", "mlp.experts.down_proj"]),
        (
            Op::Up,
            TensorPart::Matrix,
            ["share_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"],
        ),
    ] {
        let found = names(op, part);
        for name in expected {
            let whole = format!("model.layers.2.{name}");
            assert!(found.contains(&whole), "{whole}: {found:?}");
        }
        // Names within a model of text and images.
        let nested = format!("model.language_model.layers.2.{}", expected[0]);
        assert!(found.contains(&nested), "{nested}: {found:?}");
    }
}

#[test]
fn sizes_of_layers_take_precedence() {
    let layers = json!({"1": {"num_attention_heads": 8}, "02": {}});
    assert_eq!(heads(&step(&[("per_layer_config", layers)]).expect("valid")), [4, 8, 4, 4]);
    assert_eq!(
        heads(&step(&[("num_sliding_attention_heads", json!(2))]).expect("valid")),
        [4, 2, 2, 4]
    );
    let model = step(&[("attention_other_setting", json!(null))]).expect("valid");
    assert_eq!(heads(&model), [4; 4]);
    assert!(!model.has_kind_models());
}

#[test]
fn one_base_is_that_of_all_layers() {
    let model = step(&[("rope_theta", json!(700.0)), ("rope_scaling", json!(null))]);
    let model = model.expect("valid");
    let theta = |layer| model.layers.kind(layer).rope.as_ref().map(|rope| rope.theta);
    assert_eq!([theta(0), theta(1)], [Some(700.0); 2]);
}

#[test]
fn layers_without_experts_are_the_others_of_a_list() {
    let dense = |changes: &[(&str, Value)]| -> Vec<bool> {
        let model = step(changes).expect("valid");
        let is_dense = |layer| model.layers.kind(layer).feed_forward == FeedForward::Dense;
        (0..4).map(is_dense).collect()
    };
    assert_eq!(dense(&[("moe_layers_enum", json!([0, 2, 4]))]), [false, true, false, true]);
    assert_eq!(dense(&[("moe_layers_enum", json!(" 3 ,"))]), [true, true, true, false]);
    // Without a list the first three are dense.
    assert_eq!(dense(&[("moe_layers_enum", json!(null))]), [true, true, true, false]);
    let types = json!(["sparse", "dense", "sparse", "sparse"]);
    assert_eq!(dense(&[("mlp_layer_types", types)]), [false, true, false, false]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (field, value) in [
        ("att_impl_type", json!("MFA")),
        ("gating", json!("elementwise")),
        ("head_dim", json!(null)),
        ("layer_types", json!(["full_attention", "full_attention", "full_attention"])),
        ("layer_types", json!(["full_attention", "chunked", "full_attention", "full_attention"])),
        ("mlp_bias", json!(true)),
        ("moe_every_n_layer", json!(2)),
        ("moe_layers_enum", json!("1,two")),
        ("moe_layers_enum", json!(-1)),
        ("moe_num_experts", json!(2)),
        ("moe_router_activation", json!("softmax")),
        ("norm_expert_weight", json!(false)),
        ("partial_rotary_factors", json!([0.5, 1.0, 0.5, 0.5])),
        ("partial_rotary_factors", json!([0.5625, 1.0, 1.0, 0.5625])),
        ("per_layer_config", json!({"1": {"head_dim": 8}})),
        ("per_layer_config", json!({"9": {"num_attention_heads": 8}})),
        ("per_layer_config", json!({"1": {"num_attention_heads": 7}})),
        ("rope_theta", json!([500.0, 50.0, 60.0, 500.0])),
        ("rope_theta", json!([500.0, 50.0])),
        ("rope_theta", json!(-1.0)),
        ("rope_parameters", json!({"full_attention": {"rope_theta": 5.0}})),
        ("sink", json!(true)),
        ("sliding_window", json!(null)),
        ("sparse_attention_config", json!({"sparse_block_size": 4})),
        ("swiglu_limits", json!([1.0, 2.0])),
        ("swiglu_limits", json!([1.0, 2.0, -1.0, 0.0])),
        ("swiglu_limits_shared", json!(7.0)),
        ("use_head_wise_attn_gate", json!(false)),
        ("use_rope_layers", json!([true, false, true, true])),
        ("yarn_only_types", json!(["sliding_attention"])),
        ("zero_centered", json!(false)),
    ] {
        let error = step(&[(field, value.clone())]).expect_err(field).to_string();
        let names = [field, "experts", "elements of each head", "num_attention_heads", "rope"];
        assert!(names.iter().any(|name| error.contains(name)), "{field} {value}: {error}");
    }
    for (field, value) in [
        ("attention_type", json!("full_attention")),
        ("num_attention_groups", json!(1)),
        ("head_dim", json!(8)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(7)),
        ("expert_gate", json!(true)),
    ] {
        let mut other = published()["attention_other_setting"].clone();
        other[field] = value.clone();
        let error = step(&[("attention_other_setting", other)]).expect_err(field).to_string();
        assert!(error.contains(field), "{field} {value}: {error}");
    }
    assert!(step(&[("attention_other_setting", json!(6))]).is_err());
}

/// The number of kinds of layers, each of which has a model in memory, is bounded.
#[test]
fn many_different_limits_are_refused() {
    let limits: Vec<f64> = (1..=300).map(f64::from).collect();
    let changes = [
        ("num_hidden_layers", json!(300)),
        ("layer_types", json!(null)),
        ("rope_theta", json!(500.0)),
        ("partial_rotary_factors", json!(null)),
        ("swiglu_limits_shared", json!(null)),
    ];
    assert!(step(&changes.clone()).is_err(), "a limit for each layer");
    let changes = [&changes[..], &[("swiglu_limits", json!(limits))]].concat();
    let error = step(&changes).expect_err("too many kinds").to_string();
    assert!(error.contains("256 kinds"), "{error}");
}

/// 45 layers, of which 12 keep all positions: 4 KiB for each in bf16.
#[test]
fn the_published_model_has_its_sizes() {
    let model = find_known("step-3.5-flash").expect("known").config;
    let count = |heads: usize| self::heads(&model).iter().filter(|of| **of == heads).count();
    assert_eq!((model.num_layers, count(64), count(96)), (45, 12, 33));
    let windows = (0..45).filter(|layer| model.layers.kind(*layer).window == Some(512)).count();
    assert_eq!(windows, 33);
    assert_eq!(model.kv_bytes_per_position(Dtype::Bf16), 4096);
    let limits = |layer: usize| model.layers.kind(layer).limits;
    let last = ActivationLimits { experts: Some(7.0), network: Some(16.0) };
    assert_eq!([limits(42), limits(43), limits(44)], [ActivationLimits::default(), last, last]);
    let dense =
        (0..45).filter(|layer| model.layers.kind(*layer).feed_forward == FeedForward::Dense);
    assert_eq!(dense.collect::<Vec<_>>(), [0, 1, 2]);
}
