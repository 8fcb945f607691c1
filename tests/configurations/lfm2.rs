//! Tests of LFM2's configurations.

use model::config::ModelConfig;
use model::config_fields::ConfigError;
use model::config_json;
use model::layers::{FeedForward, LayerKind, TokenMixer};
use model::ops::{Kv, Op};
use serde_json::{Map, Value, json};

/// Parses the configuration of a small model with changed fields.
fn lfm2(changes: &[(&str, Value)]) -> Result<ModelConfig, ConfigError> {
    let mut fields = json!({
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": 32, "block_ff_dim": 80,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 128, "vocab_size": 260, "full_attn_idxs": [2]
    });
    for (field, value) in changes {
        fields[*field] = value.clone();
    }
    config_json::parse("lfm2", fields.as_object().expect("an object"), &Map::new())
}

fn attending(model: &ModelConfig) -> Vec<bool> {
    let attends = |layer| model.layers.kind(layer).mixing == TokenMixer::Attention;
    (0..model.num_layers).map(attends).collect()
}

#[test]
fn layers_convolve_or_attend() {
    let model = lfm2(&[]).expect("valid");
    assert_eq!(attending(&model), [false, false, true, false]);
    let types = json!(["full_attention", "conv", "conv", "conv"]);
    let model = lfm2(&[("layer_types", types), ("conv_L_cache", json!(4))]).expect("valid");
    assert_eq!(attending(&model), [true, false, false, false]);
    let conv = model.short_conv().expect("convolutions");
    assert_eq!((conv.channels, conv.taps, 4 * conv.inputs_len(0)), (32, 4, 3 * 32 * 4));
    let first_half = [Op::Norm0, Op::ConvIn, Op::ShortConv, Op::ConvOut, Op::Norm1];
    assert_eq!(model.layer_ops(1)[..5], first_half);
    let state = |layer, kv| model.state_bytes(model.layers.kind(layer), kv);
    assert_eq!([state(0, Kv::K), state(0, Kv::V)], [None, None]);
    assert_eq!([state(1, Kv::K), state(1, Kv::V)], [Some(3 * 32 * 4), Some(0)]);
    assert_eq!(attending(&lfm2(&[("full_attn_idxs", json!(null))]).expect("valid")), [true; 4]);
    assert!(model.tied_embeddings);
    assert!(!lfm2(&[("tie_embedding", json!(false))]).expect("valid").tied_embeddings);
}

/// transformers takes two thirds of the width, times a factor, and rounds up.
#[test]
fn the_width_of_the_network_is_adjusted() {
    for (changes, expected) in [
        (&[][..], 256),
        (&[("block_multiple_of", json!(16))][..], 64),
        (&[("block_multiple_of", json!(16)), ("block_ffn_dim_multiplier", json!(1.5))][..], 80),
        (&[("block_auto_adjust_ff_dim", json!(false))][..], 80),
        (&[("block_ff_dim", json!(null)), ("intermediate_size", json!(12288))][..], 8192),
    ] {
        let found = lfm2(changes).map(|model| model.ffn_size);
        assert_eq!(found.expect("valid"), expected, "{changes:?}");
    }
}

#[test]
fn first_layers_are_dense_and_others_have_experts() {
    let model = lfm2(&[
        ("architectures", json!(["Lfm2MoeForCausalLM"])),
        ("intermediate_size", json!(80)),
        ("block_ff_dim", json!(null)),
        ("moe_intermediate_size", json!(24)),
        ("num_experts", json!(8)),
        ("num_experts_per_tok", json!(3)),
        ("routed_scaling_factor", json!(1.6)),
    ]);
    let model = model.expect("valid");
    let kinds: Vec<&LayerKind> = (0..4).map(|layer| model.layers.kind(layer)).collect();
    let experts = [false, false, true, true].map(|has_experts| match has_experts {
        true => FeedForward::Experts,
        false => FeedForward::Dense,
    });
    assert_eq!(kinds.iter().map(|kind| kind.feed_forward).collect::<Vec<_>>(), experts);
    assert_eq!(attending(&model), [false, false, true, false]);
    let experts = model.experts.expect("experts");
    assert_eq!((experts.selection.bias, experts.selection.scale), (true, 1.6));
    assert_eq!((experts.ffn_size, experts.dense_ffn_size()), (24, 80));
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    for (field, value) in [
        ("conv_bias", json!(true)),
        ("conv_dim", json!(64)),
        ("conv_dim_out", json!(64)),
        ("block_dim", json!(64)),
        ("num_heads", json!(8)),
        ("use_pos_enc", json!(false)),
        ("block_use_swiglu", json!(false)),
        ("layer_types", json!(["conv", "mamba", "conv", "conv"])),
        ("layer_types", json!(["conv"])),
        ("full_attn_idxs", json!([4])),
        ("full_attn_idxs", json!([-1])),
        ("full_attn_idxs", json!("all")),
        ("conv_L_cache", json!(1_000_000_000)),
        ("conv_L_cache", json!(0)),
        ("block_ff_dim", json!(u64::MAX)),
        ("block_multiple_of", json!(u64::MAX)),
        ("block_ffn_dim_multiplier", json!(1e300)),
    ] {
        let error = lfm2(&[(field, value.clone())]).expect_err(field).to_string();
        let names = [field, "convolution", "feed-forward"];
        assert!(names.iter().any(|name| error.contains(name)), "{field} {value}: {error}");
    }
}
