//! Tests of Nemotron's configurations.

use model::config::{Activation, ModelConfig};
use model::config_fields::ConfigError;
use model::config_json;
use model::family::layouts;
use model::layers::{FeedForward, Layers, TokenMixer};
use model::ops::{Op, Value as OpValue};
use model::source::{TensorId, TensorPart};
use serde_json::{Map, Value, json};

/// Parses the configuration of a small model with changed fields.
fn nemotron(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = json!({
        "architectures": ["NemotronHForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
        "hybrid_override_pattern": "M-M*-", "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 12, "max_position_embeddings": 128, "vocab_size": 260, "mamba_num_heads": 6,
        "mamba_head_dim": 12, "n_groups": 3, "ssm_state_size": 10, "conv_kernel": 4,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 28
    });
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("nemotron", fields.as_object().expect("an object"), &Map::new())
}

/// Returns the name of the first tensor of an operation.
fn name(model: &ModelConfig, layer: usize, op: Op, part: TensorPart) -> String {
    layouts(model, TensorId::Layer { layer, op, part })[0][0].names[0].clone()
}

#[test]
fn networks_are_second_halves_of_the_layers_before_them() {
    let model = nemotron(&[]).expect("valid");
    let kinds = (0..model.num_layers).map(|layer| model.layers.kind(layer));
    let kinds: Vec<_> = kinds.map(|kind| (kind.mixing, kind.feed_forward)).collect();
    let expected = [
        (TokenMixer::Mamba, FeedForward::Dense),
        (TokenMixer::Mamba, FeedForward::None),
        (TokenMixer::Attention, FeedForward::Dense),
    ];
    assert_eq!(kinds, expected);
    assert_eq!((model.activation, model.experts), (Activation::ReluSquared, None));
    let first = [Op::Norm0, Op::MambaIn, Op::MambaConv, Op::Mamba, Op::MambaOut];
    assert_eq!(model.layer_ops(1), first);
    assert_eq!(model.layer_ops(0)[5..], [Op::Norm1, Op::Fc0, Op::Fc1]);
    assert_eq!(model.leading_ops(), model.layer_ops(2));
    // Costs are estimated by kind of layer, for the operations of the same list.
    for kind in model.layers.kinds() {
        let of_kind = ModelConfig { layers: Layers::uniform(kind.clone()), ..model.clone() };
        assert_eq!(of_kind.leading_ops(), model.leading_ops(), "{kind:?}");
    }
    // Indices are those of the files.
    let (gain, matrix) = (TensorPart::Gain, TensorPart::Matrix);
    assert_eq!(name(&model, 0, Op::Norm1, gain), "backbone.layers.1.norm.weight");
    assert_eq!(name(&model, 1, Op::MambaIn, matrix), "backbone.layers.2.mixer.in_proj.weight");
    assert_eq!(name(&model, 2, Op::Q, matrix), "backbone.layers.3.mixer.q_proj.weight");
    assert_eq!(name(&model, 2, Op::Fc1, matrix), "backbone.layers.4.mixer.down_proj.weight");
    assert!(layouts(&model, TensorId::Layer { layer: 1, op: Op::Norm1, part: gain }).is_empty());
}

#[test]
fn experts_have_no_gates() {
    let types = json!(["mamba", "moe", "attention", "mamba", "moe"]);
    let model = nemotron(&[("layers_block_type", types)]).expect("valid");
    let second = [Op::Norm1, Op::Router, Op::ExpertUp, Op::ExpertDown, Op::Fc0, Op::Fc1];
    assert_eq!(model.layer_ops(0)[5..], second);
    // The layer that attends has no experts; placements name theirs all the same.
    assert_eq!(model.layers.kind(1).feed_forward, FeedForward::None);
    assert_eq!(model.leading_ops().len(), 8 + second.len());
    for kind in model.layers.kinds() {
        let of_kind = ModelConfig { layers: Layers::uniform(kind.clone()), ..model.clone() };
        assert_eq!(of_kind.leading_ops(), model.leading_ops(), "{kind:?}");
    }
    let experts = model.experts.expect("experts");
    assert_eq!((experts.count, experts.ffn_size, model.ffn_size), (8, 20, 28));
    assert!(experts.selection.bias && experts.selection.is_f32);
    let up = name(&model, 2, Op::ExpertUp, TensorPart::Matrix);
    assert_eq!(up, "backbone.layers.4.mixer.experts.0.up_proj.weight");
    let shared = name(&model, 2, Op::Fc0, TensorPart::Matrix);
    assert_eq!(shared, "backbone.layers.4.mixer.shared_experts.up_proj.weight");
}

/// Experts in a latent read and write its rows; the router and the shared expert see the model's.
#[test]
fn experts_compute_rows_of_their_latent() {
    let of = |size: usize| {
        let pattern = ("hybrid_override_pattern", json!("MEM*E"));
        nemotron(&[pattern, ("moe_latent_size", json!(size))])
    };
    let error = of(1 << 19).expect_err("too wide").to_string();
    assert!(error.contains("values of an expert's input"), "{error}");
    let model = of(16).expect("valid");
    let second = [
        Op::Norm1,
        Op::Router,
        Op::ExpertLatentDown,
        Op::ExpertUp,
        Op::ExpertDown,
        Op::Fc0,
        Op::Fc1,
        Op::ExpertLatentUp,
    ];
    assert_eq!(model.layer_ops(0)[5..], second);
    assert_eq!(model.leading_ops()[8..], second);
    for (op, expected) in [
        (Op::Router, (8, 32)),
        (Op::ExpertLatentDown, (16, 32)),
        (Op::ExpertUp, (8 * 20, 16)),
        (Op::ExpertDown, (8 * 16, 20)),
        (Op::Fc0, (28, 32)),
        (Op::Fc1, (32, 28)),
        (Op::ExpertLatentUp, (32, 16)),
    ] {
        assert_eq!(op.weights(&model).and_then(|shape| shape.matrix), Some(expected), "{op:?}");
    }
    for (value, expected) in [
        (OpValue::Normed1, 32),
        (OpValue::ExpertLatent, 16),
        (OpValue::ExpertFfn, 3 * 20),
        (OpValue::ExpertOut, 3 * 16),
        (OpValue::ExpertSum, 16),
    ] {
        assert_eq!(value.row_elements(&model), Some(expected), "{value:?}");
    }
    let adding = |op: &&Op| op.adds_to_residual(&model);
    let adding: Vec<Op> = second.iter().filter(adding).copied().collect();
    assert_eq!(adding, [Op::Fc1, Op::ExpertLatentUp]);
    for (op, tensor) in [
        (Op::ExpertLatentDown, "fc1_latent_proj.weight"),
        (Op::ExpertLatentUp, "fc2_latent_proj.weight"),
        (Op::ExpertDown, "experts.0.down_proj.weight"),
    ] {
        let name = name(&model, 2, op, TensorPart::Matrix);
        assert_eq!(name, format!("backbone.layers.4.mixer.{tensor}"));
    }
    // A model without such layers may name a size, which has no effect.
    let dense = nemotron(&[("moe_latent_size", json!(16))]).expect("valid");
    assert!(!dense.has_expert_latent() && !dense.has_layer_op(Op::ExpertLatentUp));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (field, value, part) in [
        ("hybrid_override_pattern", json!("-M"), "follow neither Mamba2 nor attention"),
        ("hybrid_override_pattern", json!("M--"), "follow neither Mamba2 nor attention"),
        ("hybrid_override_pattern", json!("M-ME"), "others a network"),
        ("hybrid_override_pattern", json!("M?"), "hybrid_override_pattern"),
        ("hybrid_override_pattern", json!(""), "hybrid_override_pattern"),
        ("hybrid_override_pattern", json!("M".repeat(10_000)), "layers"),
        ("hybrid_override_pattern", json!(7), "hybrid_override_pattern"),
        ("layers_block_type", json!(["mamba", "rwkv"]), "layers_block_type"),
        ("moe_latent_size", json!(0), "moe_latent_size"),
        ("moe_latent_size", json!("16"), "moe_latent_size"),
        ("mlp_hidden_act", json!("silu"), "silu"),
        ("mamba_hidden_act", json!("gelu"), "mamba_hidden_act"),
        ("use_bias", json!(true), "use_bias"),
        ("mlp_bias", json!(true), "mlp_bias"),
        ("attention_bias", json!(true), "attention_bias"),
        ("tie_word_embeddings", json!(true), "tie_word_embeddings"),
        ("sliding_window", json!(16), "sliding_window"),
        ("n_groups", json!(4), "n_groups"),
        ("ssm_state_size", json!(1_000_000), "Mamba2"),
        ("norm_eps", json!(1e-3), "norm_eps"),
    ] {
        let mut changes = vec![(field, value.clone())];
        if field == "norm_eps" {
            changes.push(("layer_norm_epsilon", json!(1e-5)));
        }
        let error = nemotron(&changes).expect_err(field).to_string();
        assert!(error.contains(part), "{field} {value}: {error}");
    }
}
