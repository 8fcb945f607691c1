use super::super::metadata::{MetadataArray, MetadataValue};
use super::*;
use crate::config::{Activation, Features, Rope, RopeScaling, Scales};
use crate::layers::{LayerKind, Layers};

#[test]
fn llama_metadata_becomes_a_configuration() {
    let mut writer = small_model("llama");
    writer.set("llama.rope.freq_base", MetadataValue::Float(500_000.0));
    writer.integer("tokenizer.ggml.bos_token_id", 1);
    writer.integer("tokenizer.ggml.eos_token_id", 2);
    writer.integer("tokenizer.ggml.eot_token_id", 3);
    let config = open(&writer).expect("a good file").config().clone();
    let expected = ModelConfig {
        name: "small".to_owned(),
        family: Family::Llama,
        num_layers: LAYERS,
        hidden_size: HIDDEN,
        num_heads: HEADS,
        num_kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        ffn_size: FFN,
        vocab_size: VOCAB,
        max_positions: 128,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(500_000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: true,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: Some(1),
        eos_token_ids: vec![2, 3],
    };
    assert_eq!(config, expected);
}

#[test]
fn qwen2_has_biases_and_an_untied_head_when_the_file_has_one() {
    let mut writer = small_model("qwen2");
    let head = values("head", VOCAB * HIDDEN);
    writer.tensor_f32("output.weight", &[VOCAB, HIDDEN], &head);
    let source = open(&writer).expect("a good file");
    assert_eq!(source.config().family, Family::Qwen2);
    assert!(source.config().qkv_bias && !source.config().tied_embeddings);
    assert_eq!(read_f32(&source, TensorId::Head), head);
    let tied = open(&small_model("qwen2")).expect("a good file");
    assert_eq!(read_f32(&tied, TensorId::Head), read_f32(&tied, TensorId::Embedding));
}

#[test]
fn explicit_head_size_and_per_layer_arrays_are_read() {
    let mut writer = small_model("llama");
    writer.integer("llama.attention.key_length", HEAD_DIM as u64);
    writer.integer("llama.attention.sliding_window", 64);
    let same = MetadataValue::Array(MetadataArray::Signed(vec![KV_HEADS as i64; LAYERS]));
    writer.set("llama.attention.head_count_kv", same);
    let config = open(&writer).expect("a good file").config().clone();
    assert_eq!((config.head_dim, config.num_kv_heads), (HEAD_DIM, KV_HEADS));
    assert_eq!(config.layers.windows_below(u32::MAX), [64]);

    writer.set(
        "llama.attention.head_count_kv",
        MetadataValue::Array(MetadataArray::Signed(vec![2, 4])),
    );
    let message = refusal(&writer);
    assert!(message.contains("for all layers"), "{message}");
}

#[test]
fn end_tokens_of_llama3_are_found_by_spelling() {
    let mut writer = small_model("llama");
    writer.text("tokenizer.ggml.pre", "llama-bpe");
    writer.integer("tokenizer.ggml.eos_token_id", 5);
    let tokens = ["a", "b", "<|eot_id|>", "<|eom_id|>", "c", "<|end_of_text|>"];
    writer.texts("tokenizer.ggml.tokens", &tokens);
    assert_eq!(open(&writer).expect("a good file").config().eos_token_ids, [5, 2, 3]);

    // In gpt-oss's format, messages end with a token that does not end the answer, regardless of
    // the keys.
    let mut writer = small_model("llama");
    writer.integer("tokenizer.ggml.eos_token_id", 4);
    writer.integer("tokenizer.ggml.eot_token_id", 1);
    writer.texts("tokenizer.ggml.tokens", &["a", "<|end|>", "<|call|>", "b", "<|return|>", "c"]);
    assert_eq!(open(&writer).expect("a good file").config().eos_token_ids, [4, 2]);
}

#[test]
fn ends_of_other_models_are_found_by_spelling() {
    let ends = |tokens: &[&str], types: Option<Vec<i64>>| {
        let mut writer = small_model("llama");
        writer.integer("tokenizer.ggml.eos_token_id", 1);
        writer.texts("tokenizer.ggml.tokens", tokens);
        if let Some(types) = types {
            writer.set(
                "tokenizer.ggml.token_type",
                MetadataValue::Array(MetadataArray::Signed(types)),
            );
        }
        open(&writer).expect("a good file").config().eos_token_ids.clone()
    };
    let chatml = ["<|endoftext|>", "<|im_end|>", "a", "b", "c", "d"];
    assert_eq!(ends(&chatml, None), [1, 0]);
    let many =
        ["<EOT>", "x", "</s>", "<eos>", "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>", "b"];
    assert_eq!(ends(&many, Some(vec![3, 1, 3, 3, 1, 1])), [1, 0, 2, 3, 4]);
    // An HTML tag is an ordinary token in many vocabularies.
    assert_eq!(ends(&many, Some(vec![4, 1, 1, 4, 1, 1])), [1, 4]);
    assert_eq!(ends(&["[EOT]", "x", "_<EOT>", "a", "b", "<|fim_pad|>"], None), [1, 0, 2, 5]);
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let change = |change: &dyn Fn(&mut Writer)| {
        let mut writer = small_model("llama");
        change(&mut writer);
        refusal(&writer)
    };
    let cases: [(String, &str); 14] = [
        (change(&|w| w.text("general.architecture", "gemma2")), "\"gemma2\" is not supported"),
        (change(&|w| w.remove("general.architecture")), "general.architecture is missing"),
        (change(&|w| w.remove("llama.block_count")), "llama.block_count is missing"),
        (change(&|w| w.integer("llama.block_count", 0)), "a size from 1"),
        (change(&|w| w.integer("llama.block_count", u64::MAX)), "18446744073709551615"),
        (change(&|w| w.text("llama.context_length", "long")), "the string \"long\""),
        (change(&|w| w.integer("llama.attention.head_count_kv", 3)), "a divisor"),
        (change(&|w| w.integer("llama.attention.head_count", 5)), "a divisor"),
        (change(&|w| w.integer("llama.rope.dimension_count", 4)), "partial rope"),
        (change(&|w| w.integer("llama.attention.value_length", 4)), "attention.key_length"),
        (change(&|w| w.integer("llama.expert_count", 8)), "expert_used_count is missing"),
        (change(&|w| w.integer("split.count", 3)), "one part of 3"),
        (change(&|w| w.integer("tokenizer.ggml.eos_token_id", 6)), "inside the vocabulary"),
        (
            change(&|w| {
                w.set("llama.attention.layer_norm_rms_epsilon", MetadataValue::Float(f64::NAN));
            }),
            "a finite number",
        ),
    ];
    for (message, part) in cases {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
        assert!(message.contains("small.gguf: "), "{message:?} does not name the file");
    }
}
