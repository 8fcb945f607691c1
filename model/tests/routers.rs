//! Tests of models whose routers are more than a softmax: their configurations, and the operations
//! of layers with and without experts.

use model::config::{Dtype, ModelConfig};
use model::config_fields::ConfigError;
use model::config_json;
use model::experts::{DenseLayers, ExpertGroups, ExpertScoring, ScoreSum};
use model::known::find_known;
use model::layers::FeedForward;
use model::ops::{Op, Value};
use serde_json::{Map, json};

fn known(name: &str) -> ModelConfig {
    find_known(name).unwrap_or_else(|| panic!("{name} is known")).config
}

/// Parses the configuration of a small GLM with changed fields.
fn glm(changes: &[(&str, serde_json::Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = json!({
        "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 32, "intermediate_size": 80,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "vocab_size": 260, "n_routed_experts": 16,
        "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7
    });
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("glm", fields.as_object().expect("an object"), &Map::new())
}

#[test]
fn a_router_is_read_with_all_its_rules() {
    let model = glm(&[]).expect("valid");
    let experts = model.experts.expect("experts");
    assert_eq!(experts.scoring, ExpertScoring::SigmoidTopK { sum: ScoreSum::Plus(1e-20) });
    let selection = experts.selection;
    assert_eq!(selection.groups, Some(ExpertGroups::new(4, 2)));
    assert_eq!((selection.bias, selection.scale, selection.is_f32), (true, 1.7, true));
    let others = FeedForward::UngatedSharedExpert;
    assert_eq!(experts.dense, Some(DenseLayers { ffn_size: 80, others }));
    // Two shared experts are one network.
    assert_eq!((model.ffn_size, experts.ffn_size), (32, 16));
    let rope = model.layers.kind(0).rope.clone().expect("rotary");
    assert_eq!(rope.rotary_dim, Some(4));

    let plain = glm(&[("norm_topk_prob", json!(false)), ("n_group", json!(1))]).expect("valid");
    let experts = plain.experts.expect("experts");
    assert_eq!(experts.scoring, ExpertScoring::SigmoidTopK { sum: ScoreSum::Unused });
    assert_eq!(experts.selection.groups, None);
}

#[test]
fn groups_that_cannot_be_selected_from_are_refused() {
    for (count, per_token) in [(3, 1), (16, 8), (4, 5), (8, 1), (4, 0)] {
        let changes = [("n_group", json!(count)), ("topk_group", json!(per_token))];
        let error = glm(&changes).expect_err("impossible groups").to_string();
        assert!(error.contains("group"), "{count} {per_token}: {error}");
    }
    let error = glm(&[("topk_group", json!(null))]).expect_err("a missing field").to_string();
    assert!(error.contains("topk_group"), "{error}");
}

#[test]
fn layers_without_experts_have_operations_of_their_own() {
    let model = known("glm-4.5-air");
    let second_half = |layer: usize| -> Vec<Op> {
        let ops = model.layer_ops(layer).iter().copied();
        ops.skip_while(|op| *op != Op::Norm1).skip(1).collect()
    };
    assert_eq!(second_half(0), [Op::DenseGate, Op::DenseUp, Op::DenseDown]);
    let experts = [Op::Router, Op::ExpertGate, Op::ExpertUp, Op::ExpertDown];
    assert_eq!(second_half(1), [&experts[..], &[Op::Gate, Op::Up, Op::Down]].concat());
    assert_eq!((model.leading_ops(), model.leading_layer()), (model.layer_ops(1), 1));
    for op in [Op::DenseGate, Op::DenseUp, Op::DenseDown] {
        assert!(model.leading_ops().contains(&op.counterpart(&model)), "{op:?}");
    }
    let matrix = |op: Op| op.weights(&model).and_then(|shape| shape.matrix);
    assert_eq!(matrix(Op::DenseUp), Some((10_944, 4096)));
    assert_eq!(matrix(Op::Up), Some((1408, 4096)));
    assert_eq!(Value::DenseFfn.row_elements(&model), Some(10_944));
    assert_eq!(Value::Ffn.row_elements(&model), Some(1408));

    // A part of the model that has dense layers alone is placed by the same names.
    let mut first = model.clone();
    first.keep_layers(1);
    assert_eq!(first.leading_ops(), model.leading_ops());
}

#[test]
fn routers_that_files_have_in_f32_stay_in_f32() {
    let model = known("minimax-m2");
    let bytes = Op::Router.weight_bytes(&model, Dtype::Bf16);
    // The matrix, and a bias for each expert.
    assert_eq!(bytes, 4 * 256 * 3072 + 4 * 256);
    assert_eq!(bytes, Op::Router.weight_bytes(&model, Dtype::F32));
    let qwen = known("qwen3-30b-a3b");
    assert_eq!(Op::Router.weight_bytes(&qwen, Dtype::Bf16), 2 * 128 * 2048);
}
