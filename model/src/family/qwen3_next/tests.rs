//! Configurations and tensors of models in which some layers keep a state.

use serde_json::{Map, Value, json};

use super::*;
use crate::config_json::parse;

fn text() -> Value {
    json!({
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 64, "vocab_size": 100, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_value_head_dim": 10, "mtp_num_hidden_layers": 1, "attn_output_gate": true,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_section": [1, 1, 0], "mrope_interleaved": true,
        },
    })
}

fn next() -> Value {
    let mut config = text();
    let fields = config.as_object_mut().expect("an object");
    for field in ["mtp_num_hidden_layers", "attn_output_gate", "rope_parameters"] {
        fields.remove(field);
    }
    fields.insert("architectures".to_owned(), json!(["Qwen3NextForCausalLM"]));
    fields.insert("rope_theta".to_owned(), json!(1e7));
    for (field, size) in [
        ("num_experts", 8),
        ("num_experts_per_tok", 3),
        ("moe_intermediate_size", 12),
        ("shared_expert_intermediate_size", 20),
        ("decoder_sparse_step", 1),
    ] {
        fields.insert(field.to_owned(), json!(size));
    }
    config
}

fn with(mut config: Value, field: &str, value: Value) -> Value {
    config.as_object_mut().expect("an object").insert(field.to_owned(), value);
    config
}

fn read(config: &Value) -> Result<ModelConfig, ConfigError> {
    parse("m", config.as_object().expect("an object"), &Map::new())
}

fn refused(config: &Value) -> String {
    read(config).expect_err("refused").to_string()
}

#[test]
fn one_layer_of_four_attends_and_rotates_a_quarter_of_each_head() {
    for config in [text(), next()] {
        let model = read(&config).expect("understood");
        let states: Vec<bool> = (0..5).map(|layer| model.layers.kind(layer).has_state()).collect();
        assert_eq!(states, [true, true, true, false, true]);
        let rope = model.layers.kind(3).rope.clone().expect("rotary");
        assert_eq!((rope.theta, rope.rotary_dim(16)), (1e7, 4));
        assert!(model.layers.kind(0).rope.is_none());
        assert_eq!(model.layer_ops(3)[7..9], [Op::OutGate, Op::Out]);
        assert!(model.layer_ops(0).contains(&Op::Delta));
    }
    let model = read(&next()).expect("understood");
    assert_eq!((model.ffn_size, model.experts.map(|experts| experts.ffn_size)), (20, Some(12)));
    assert!(model.has_shared_expert() && model.layer_ops(0).contains(&Op::SharedGate));
    let interval = with(text(), "full_attention_interval", json!(2));
    assert!(read(&interval).expect("understood").layers.kind(1).rope.is_some());
    let types = ["full_attention", "linear_attention"].repeat(3);
    let listed = read(&with(text(), "layer_types", json!(types))).expect("understood");
    assert!(!listed.layers.kind(0).has_state() && listed.layers.kind(1).has_state());
}

#[test]
fn what_is_not_understood_is_refused() {
    let cases = [
        (with(text(), "attention_bias", json!(true)), "attention_bias"),
        (with(text(), "attn_output_gate", json!(false)), "attn_output_gate"),
        (with(text(), "mamba_ssm_dtype", json!("bfloat16")), "mamba_ssm_dtype"),
        (with(text(), "linear_num_value_heads", json!(3)), "linear_num_value_heads"),
        (with(text(), "linear_key_head_dim", json!(5000)), "state's key"),
        (with(text(), "linear_conv_kernel_dim", json!(0)), "linear_conv_kernel_dim"),
        (with(text(), "layer_types", json!(vec!["sliding_attention"; 5])), "linear_attention"),
        (with(text(), "layer_types", json!(["full_attention"])), "linear_attention"),
        (with(next(), "mlp_only_layers", json!([1])), "mlp_only_layers"),
        (with(next(), "decoder_sparse_step", json!(2)), "decoder_sparse_step"),
        (with(text(), "num_experts", json!(4)), "num_experts"),
    ];
    for (config, word) in cases {
        let error = refused(&config);
        assert!(error.contains(word), "{error}");
    }
}

/// Returns the name of a tensor's pieces, and the first row and number of rows of each piece.
fn rows(config: &ModelConfig, op: Op, layout: usize) -> (String, Vec<(usize, usize)>) {
    let layer = if op == Op::Q || op == Op::OutGate { 3 } else { 0 };
    let id = TensorId::Layer { layer, op, part: TensorPart::Matrix };
    let pieces = layouts(config, id).swap_remove(layout);
    let name = pieces[0].names[0].clone();
    let of = |piece: &TensorSlice| (piece.first / piece.columns, piece.rows);
    (name, pieces.iter().map(of).collect())
}

#[test]
fn rows_are_found_where_each_file_has_them() {
    let model = read(&text()).expect("understood");
    let (name, found) = rows(&model, Op::Q, 0);
    assert_eq!(name, "model.layers.3.self_attn.q_proj.weight");
    assert_eq!(found, [(0, 16), (32, 16), (64, 16), (96, 16)]);
    assert_eq!(rows(&model, Op::OutGate, 0).1, [(16, 16), (48, 16), (80, 16), (112, 16)]);
    // For each of two heads: q, k, twice v and twice z, of 6, 6, 20 and 20 rows.
    let (name, found) = rows(&model, Op::DeltaQkv, 1);
    assert_eq!(name, "model.layers.0.linear_attn.in_proj_qkvz.weight");
    assert_eq!(found, [(0, 6), (52, 6), (6, 6), (58, 6), (12, 20), (64, 20)]);
    assert_eq!(rows(&model, Op::DeltaGate, 1).1, [(32, 20), (84, 20)]);
    let (name, found) = rows(&model, Op::DeltaBa, 1);
    assert_eq!(name, "model.layers.0.linear_attn.in_proj_ba.weight");
    assert_eq!(found, [(0, 2), (4, 2), (2, 2), (6, 2)]);
    let (name, found) = rows(&model, Op::DeltaQkv, 0);
    assert_eq!(
        (name.as_str(), found),
        ("model.layers.0.linear_attn.in_proj_qkv.weight", vec![(0, 64)])
    );
}

#[test]
fn every_tensor_of_a_layer_lies_somewhere() {
    for config in [read(&text()), read(&next())].map(|read| read.expect("understood")) {
        for layer in 0..5 {
            for op in config.layer_ops(layer) {
                for part in [TensorPart::Matrix, TensorPart::Gain, TensorPart::Bias] {
                    let id = TensorId::Layer { layer, op: *op, part };
                    let Some((rows, columns)) = id.expected_shape(&config) else { continue };
                    let all = crate::family::layouts(&config, id);
                    assert!(!all.is_empty(), "{id:?}");
                    for pieces in all {
                        let elements = pieces.iter().map(|piece| piece.rows * piece.columns);
                        assert_eq!(elements.sum::<usize>(), rows * columns, "{id:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn gains_of_norms_lack_one_and_others_do_not() {
    let config = read(&next()).expect("understood");
    let offset = |op| {
        let id = TensorId::Layer { layer: 0, op, part: TensorPart::Gain };
        crate::family::gain_offset(&config, id)
    };
    assert_eq!([Op::Norm0, Op::Norm1, Op::Q].map(offset), [1.0; 3]);
    assert_eq!([Op::Delta, Op::DeltaConv, Op::SharedGate].map(offset), [0.0; 3]);
}
