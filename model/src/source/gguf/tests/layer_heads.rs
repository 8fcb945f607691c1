//! Tests of the lists of heads and limits in files of Step 3.5, and of the ropes of its layers.

use super::super::metadata::{MetadataArray, MetadataValue};
use super::*;
use crate::layers::ActivationLimits;
use crate::rope::RopeScaling;

const Q: &str = "step35.attention.head_count";
const KV: &str = "step35.attention.head_count_kv";
const EXPERT_LIMITS: &str = "step35.swiglu_clamp_exp";
const NETWORK_LIMITS: &str = "step35.swiglu_clamp_shexp";

fn integers(numbers: &[u64]) -> MetadataValue {
    MetadataValue::Array(MetadataArray::Unsigned(numbers.to_vec()))
}

fn floats(numbers: &[f64]) -> MetadataValue {
    MetadataValue::Array(MetadataArray::Floats(numbers.to_vec()))
}

/// Returns a whole file of a layer with a window and a dense network, and one without a window,
/// with experts.
fn step(change: &dyn Fn(&mut Writer)) -> Writer {
    let mut writer = small_model_with_experts("step35");
    writer.set(Q, integers(&[8, HEADS as u64]));
    writer.set(KV, integers(&[KV_HEADS as u64; 2]));
    writer.integer("step35.attention.key_length", HEAD_DIM as u64);
    writer.integer("step35.attention.sliding_window", 16);
    let windows = MetadataValue::Array(MetadataArray::Bools(vec![true, false]));
    writer.set("step35.attention.sliding_window_pattern", windows);
    writer.integer("step35.expert_feed_forward_length", FFN as u64);
    writer.integer("step35.expert_shared_feed_forward_length", 8);
    writer.integer("step35.leading_dense_block_count", 1);
    writer.set("step35.rope.freq_base", MetadataValue::Float(5e6));
    writer.set("step35.rope.freq_base_swa", MetadataValue::Float(1e4));
    writer.set(EXPERT_LIMITS, floats(&[0.0, 7.0]));
    writer.set(NETWORK_LIMITS, floats(&[16.0, 0.0]));
    writer.tensors.retain(|(name, ..)| {
        let is_replaced = name.starts_with("blk.0.attn_q") || name.starts_with("blk.0.attn_output");
        !(is_replaced || name.starts_with("blk.0.ffn_") && name != "blk.0.ffn_norm.weight")
    });
    let mut tensor = |name: &str, shape: &[usize]| {
        writer.tensor_f32(name, shape, &values(name, shape.iter().product()));
    };
    tensor("blk.0.attn_q.weight", &[8 * HEAD_DIM, HIDDEN]);
    tensor("blk.0.attn_output.weight", &[HIDDEN, 8 * HEAD_DIM]);
    tensor("blk.0.ffn_gate.weight", &[FFN, HIDDEN]);
    tensor("blk.0.ffn_up.weight", &[FFN, HIDDEN]);
    tensor("blk.0.ffn_down.weight", &[HIDDEN, FFN]);
    tensor("blk.1.exp_probs_b.bias", &[4]);
    tensor("blk.1.ffn_gate_shexp.weight", &[8, HIDDEN]);
    tensor("blk.1.ffn_up_shexp.weight", &[8, HIDDEN]);
    tensor("blk.1.ffn_down_shexp.weight", &[HIDDEN, 8]);
    for (layer, heads) in [(0, 8), (1, HEADS)] {
        tensor(&format!("blk.{layer}.attn_gate.weight"), &[heads, HIDDEN]);
        tensor(&format!("blk.{layer}.attn_q_norm.weight"), &[HEAD_DIM]);
        tensor(&format!("blk.{layer}.attn_k_norm.weight"), &[HEAD_DIM]);
    }
    change(&mut writer);
    writer
}

#[test]
fn layers_have_their_own_heads_limits_and_ropes() {
    let source = open(&step(&|_| {})).expect("a good file");
    let config = source.config();
    let heads = [0, 1].map(|layer| config.of_layer(layer).num_heads);
    assert_eq!((config.num_heads, heads), (HEADS, [8, HEADS]));
    assert!(config.output_gate && config.features.gates_heads);
    let kinds = [0, 1].map(|layer| config.layers.kind(layer).clone());
    assert_eq!(kinds.each_ref().map(|kind| kind.window), [Some(16), None]);
    let limits = |experts, network| ActivationLimits { experts, network };
    let expected = [limits(None, Some(16.0)), limits(Some(7.0), None)];
    assert_eq!(kinds.each_ref().map(|kind| kind.limits), expected);
    let ropes = kinds.map(|kind| kind.rope.expect("a rope"));
    let parts = ropes.each_ref().map(|rope| (rope.theta, rope.rotary_dim(HEAD_DIM)));
    assert_eq!(parts, [(1e4, HEAD_DIM), (5e6, HEAD_DIM / 2)]);
}

/// Files have factors for whole heads, of which those beyond the rotated half are 1. They apply to
/// layers without a window.
#[test]
fn factors_of_half_a_head_are_padded() {
    let factors = |all: &[f32]| {
        let all = all.to_vec();
        step(&move |writer| writer.tensor_f32("rope_freqs.weight", &[all.len()], &all))
    };
    let source = open(&factors(&[2.0, 3.0, 1.0, 1.0])).expect("a good file");
    let scaling = |layer: usize| {
        source.config().layers.kind(layer).rope.as_ref().map(|rope| rope.scaling.clone())
    };
    assert_eq!(scaling(0), Some(RopeScaling::None));
    assert_eq!(scaling(1), Some(RopeScaling::Factors { factors: vec![2.0, 3.0] }));
    open(&factors(&[2.0, 3.0])).expect("without padding");
    let message = refusal(&factors(&[2.0, 3.0, 1.0, 2.0]));
    assert!(message.contains("2 positive factors"), "{message}");
}

#[test]
fn lists_that_no_model_has_are_refused() {
    let cases: [(&str, MetadataValue, &str); 11] = [
        (Q, integers(&[8]), "a size for each layer"),
        (Q, integers(&[8, 0]), "a size from 1 to 16777216 for each layer"),
        (Q, integers(&[7, 4]), "a divisor of attention.head_count"),
        (Q, integers(&[6, 4]), "needs [48, 32]"),
        (KV, integers(&[2, 3]), "a divisor of attention.head_count"),
        (KV, MetadataValue::Text("2".to_owned()), "head_count_kv"),
        (EXPERT_LIMITS, floats(&[7.0]), "a positive number or 0 for each layer"),
        (EXPERT_LIMITS, floats(&[7.0, f64::NAN]), "a positive number or 0 for each layer"),
        (NETWORK_LIMITS, floats(&[-1.0, 0.0]), "a positive number or 0 for each layer"),
        (NETWORK_LIMITS, MetadataValue::Float(7.0), "an array of floats"),
        ("step35.rope.dimension_count", MetadataValue::Unsigned(6), "an even part of a head"),
    ];
    for (key, value, expected) in cases {
        let message = refusal(&step(&|writer| writer.set(key, value.clone())));
        assert!(message.contains(expected), "{key} {value:?}: {message}");
    }
}

/// Files of families without limits may have none but 0.
#[test]
fn limits_of_other_families_are_refused() {
    for limits in [floats(&[0.0, 7.0]), MetadataValue::Float(7.0)] {
        for suffix in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            let key = format!("llama.{suffix}");
            let message = refusal(&changed("llama", &|w| w.set(&key, limits.clone())));
            assert!(message.contains(&format!("{key} is 7")), "{message}");
        }
    }
    open(&changed("llama", &|w| w.set("llama.swiglu_clamp_exp", floats(&[0.0, 0.0]))))
        .expect("no limits");
}
