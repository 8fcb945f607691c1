//! Tests the differences between architectures: kinds of layers, factors, experts, and refusals.

use super::super::metadata::{MetadataArray, MetadataValue};
use super::*;
use crate::config::{ModelConfig, RopeScaling};
use crate::experts::{ExpertScoring, Experts};
use crate::layers::FeedForward;

fn config(writer: &Writer) -> ModelConfig {
    open(writer).expect("a good file").config().clone()
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    (0..config.num_layers).map(|layer| config.layers.kind(layer).window).collect()
}

/// Returns six layers of Gemma, of which only the last has no window.
fn gemma(change: &dyn Fn(&mut Writer)) -> Writer {
    changed("gemma3", &|writer| {
        writer.integer("gemma3.block_count", 6);
        writer.integer("gemma3.attention.sliding_window", 16);
        writer.set("gemma3.rope.freq_base", MetadataValue::Float(1e6));
        for layer in 2..6 {
            let name = |known: &str| known.replace("blk.0.", &format!("blk.{layer}."));
            let first = writer.tensors.iter().filter(|(name, ..)| name.starts_with("blk.0."));
            let copies: Vec<_> = first
                .map(|(known, shape, code, data)| (name(known), shape.clone(), *code, data.clone()))
                .collect();
            writer.tensors.extend(copies);
        }
        change(writer);
    })
}

#[test]
fn windowed_layers_of_gemma_have_a_rope_of_their_own() {
    let scaled = gemma(&|writer| {
        writer.text("gemma3.rope.scaling.type", "linear");
        writer.set("gemma3.rope.scaling.factor", MetadataValue::Float(8.0));
    });
    let model = config(&scaled);
    let window = Some(16);
    assert_eq!(windows(&model), [window, window, window, window, window, None]);
    let rope = |layer| model.layers.kind(layer).rope.clone().expect("rope");
    assert_eq!((rope(0).theta, rope(0).scaling), (1e4, RopeScaling::None));
    assert_eq!((rope(5).theta, rope(5).scaling), (1e6, RopeScaling::Linear { factor: 8.0 }));
    assert!((model.scales.embedding - 32f32.sqrt()).abs() < 1e-6);
    assert_eq!(model.scales.attention, None);

    let local = gemma(&|w| w.set("gemma3.rope.freq_base_swa", MetadataValue::Float(500.0)));
    assert_eq!(config(&local).layers.kind(0).rope.as_ref().map(|rope| rope.theta), Some(500.0));

    let key = "gemma3.attention.sliding_window_pattern";
    let pattern = gemma(&|w| w.integer(key, 3));
    assert_eq!(windows(&config(&pattern)), [window, window, None, window, window, None]);
    let flags = vec![false, true, false, true, true, true];
    let flags = gemma(&|w| w.set(key, MetadataValue::Array(MetadataArray::Bools(flags.clone()))));
    assert_eq!(windows(&config(&flags)), [None, window, None, window, window, window]);
    let short = gemma(&|w| w.set(key, MetadataValue::Array(MetadataArray::Bools(vec![true]))));
    assert!(refusal(&short).contains("a flag for each layer"));
}

#[test]
fn factors_of_granite_are_read_and_of_others_refused() {
    let keys = [
        ("attention.scale", 0.25),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.5),
        ("logit_scale", 8.0),
    ];
    let scaled = |architecture: &str| {
        changed(architecture, &|writer| {
            for (suffix, factor) in keys {
                writer.set(&format!("{architecture}.{suffix}"), MetadataValue::Float(factor));
            }
        })
    };
    let scales = config(&scaled("granite")).scales;
    assert_eq!((scales.attention, scales.embedding), (Some(0.25), 12.0));
    assert_eq!((scales.residual, scales.logits), (0.5, 0.125));
    assert!(refusal(&scaled("llama")).contains("llama.embedding_scale is 12"));

    let finetuned = "granite.rope.scaling.finetuned";
    let still = changed("granite", &|w| w.set(finetuned, MetadataValue::Bool(false)));
    assert_eq!(config(&still).layers.kind(0).rope, None);
    let turning = changed("granite", &|w| w.set(finetuned, MetadataValue::Bool(true)));
    assert!(config(&turning).layers.kind(0).rope.is_some());
}

#[test]
fn experts_are_read_and_need_their_keys() {
    let mixtral = small_model_with_experts("llama");
    let model = config(&mixtral);
    let expected = Experts::new(4, 2, FFN, ExpertScoring::SoftmaxTopK { renormalise: true });
    assert_eq!((model.family, model.experts), (Family::Mixtral, Some(expected)));
    assert_eq!(model.layers.kind(1).feed_forward, FeedForward::Experts);
    let granite = config(&small_model_with_experts("granitemoe"));
    assert_eq!(granite.experts.map(|experts| experts.scoring), Some(ExpertScoring::TopKSoftmax));

    let with = |change: &dyn Fn(&mut Writer)| {
        let mut writer = mixtral.clone();
        change(&mut writer);
        writer
    };
    for value in [0, 1, 3] {
        config(&with(&|w| w.integer("llama.expert_gating_func", value)));
    }
    config(&with(&|w| w.set("llama.expert_weights_norm", MetadataValue::Bool(true))));
    let flag = |key: &'static str, flag| with(&|w| w.set(key, MetadataValue::Bool(flag)));
    let number = |key: &'static str, number| with(&|w| w.integer(key, number));
    let exps = "blk.1.ffn_up_exps.weight";
    let cases: [(Writer, &str); 13] = [
        (with(&|w| w.remove("llama.expert_used_count")), "expert_used_count is missing"),
        (number("llama.expert_used_count", 5), "at most expert_count"),
        (number("llama.expert_gating_func", 2), "the softmax that"),
        (flag("llama.expert_weights_norm", false), "divided by their sum"),
        (number("llama.expert_weights_scale", 2), "does not scale its experts"),
        (number("llama.expert_shared_count", 1), "that every row passes"),
        (number("llama.expert_shared_feed_forward_length", 8), "that every row passes"),
        (number("llama.expert_group_count", 2), "in no groups"),
        (number("llama.leading_dense_block_count", 1), "layers all have experts"),
        (number("llama.interleave_moe_layer_step", 2), "layers all have experts"),
        (number("llama.expert_feed_forward_length", 8), "needs [4, 8, 32]"),
        (with(&|w| w.tensors.retain(|(name, ..)| name != exps)), "ffn_up_exps.weight is missing"),
        (with(&|w| w.tensor_f32(exps, &[4 * FFN, HIDDEN], &[0.0; 8192])), "[4, 64, 32]"),
    ];
    for (writer, part) in cases {
        let message = refusal(&writer);
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    let dense = changed("qwen2", &|w| w.integer("qwen2.expert_count", 4));
    assert!(refusal(&dense).contains("a model without experts"));
}

#[test]
fn keys_that_change_results_are_refused() {
    for (key, value) in [
        ("attn_logit_softcapping", MetadataValue::Float(50.0)),
        ("final_logit_softcapping", MetadataValue::Float(30.0)),
        ("attention.clamp_kqv", MetadataValue::Float(8.0)),
        ("attention.temperature_scale", MetadataValue::Float(0.1)),
        ("attention.causal", MetadataValue::Bool(false)),
        ("use_parallel_residual", MetadataValue::Bool(true)),
        ("nextn_predict_layers", MetadataValue::Unsigned(1)),
        ("rope.freq_base_swa", MetadataValue::Float(5.0)),
    ] {
        let key = format!("llama.{key}");
        let message = refusal(&changed("llama", &|w| w.set(&key, value.clone())));
        assert!(message.contains(&format!("{key} is ")), "{message}");
    }
    open(&changed("llama", &|w| w.set("llama.attn_logit_softcapping", MetadataValue::Float(0.0))))
        .expect("no cap");
}

#[test]
fn an_unknown_architecture_is_told_what_it_lacks_and_which_run() {
    let message = refusal(&changed("llama", &|w| w.text("general.architecture", "mpt")));
    assert!(message.contains("\"mpt\" is not supported"), "{message}");
    assert!(message.contains("it needs ALiBi positions"), "{message}");
    assert!(message.contains("gemma3, gemma4, glm-dsa, glm4moe, gpt-oss, granite,"), "{message}");
}
