//! Tests each family's configuration by an example, and each refusal by its message.

use super::*;
use crate::config::Family;
use crate::config::{Activation, Features, Rope, RopeScaling, Scales};
use crate::family::{architectures, layouts};
use crate::layers::{LayerKind, Layers};
use crate::ops::Op;
use crate::source::{TensorId, TensorPart};

const LLAMA: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "vocab_size": 1000,
    "hidden_act": "silu", "rms_norm_eps": 1e-05, "bos_token_id": 1, "eos_token_id": 2}"#;

const OPT: &str = r#"{"architectures": ["OPTForCausalLM"], "hidden_size": 64, "ffn_dim": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
    "vocab_size": 500, "activation_function": "relu", "do_layer_norm_before": true,
    "word_embed_proj_dim": 64, "bos_token_id": 2, "eos_token_id": 2, "torch_dtype": "float16"}"#;

/// Returns `base` with `changes` applied to its fields.
fn object(base: &str, changes: &str) -> Map<String, Value> {
    let mut object: Map<String, Value> = serde_json::from_str(base).unwrap();
    object.extend(serde_json::from_str::<Map<String, Value>>(changes).unwrap());
    object
}

fn read(base: &str, changes: &str) -> Result<ModelConfig, ConfigError> {
    parse("m", &object(base, changes), &Map::new())
}

fn good(base: &str, changes: &str) -> ModelConfig {
    read(base, changes).unwrap_or_else(|error| panic!("{changes}: {error}"))
}

fn refused(base: &str, changes: &str) -> String {
    read(base, changes).map(|_| ()).expect_err(changes).to_string()
}

/// Returns LLaMA's fields under another architecture.
fn as_architecture(name: &str) -> String {
    LLAMA.replace("LlamaForCausalLM", name)
}

#[test]
fn llama() {
    let model = good(LLAMA, "{}");
    assert_eq!(
        model,
        ModelConfig {
            name: "m".to_owned(),
            family: Family::Llama,
            num_layers: 3,
            hidden_size: 64,
            num_heads: 8,
            num_kv_heads: 2,
            head_dim: 8,
            ffn_size: 160,
            vocab_size: 1000,
            max_positions: 512,
            norm_eps: 1e-5,
            activation: Activation::Silu,
            learned_positions: None,
            layers: Layers::uniform(LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))),
            experts: None,
            qkv_bias: false,
            out_bias: false,
            ffn_bias: false,
            tied_embeddings: false,
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
            eos_token_ids: vec![2],
        }
    );
}

#[test]
fn llama_heads_biases_and_tying() {
    assert_eq!(good(LLAMA, r#"{"num_key_value_heads": null}"#).num_kv_heads, 8);
    assert_eq!(good(LLAMA, r#"{"num_key_value_heads": 1}"#).num_kv_heads, 1);
    // `head_dim` neither divides the hidden size nor is a multiple of eight.
    let model = good(LLAMA, r#"{"head_dim": 14, "num_attention_heads": 6}"#);
    assert_eq!((model.head_dim, model.q_size(), model.kv_size()), (14, 84, 28));
    let model = good(LLAMA, r#"{"attention_bias": true}"#);
    assert!(model.qkv_bias && model.out_bias && !model.ffn_bias);
    let model = good(LLAMA, r#"{"mlp_bias": true, "tie_word_embeddings": true}"#);
    assert!(!model.qkv_bias && model.ffn_bias && model.tied_embeddings);
}

#[test]
fn opt() {
    let model = good(OPT, "{}");
    assert_eq!((model.family, model.activation), (Family::Opt, Activation::Relu));
    assert_eq!((model.head_dim, model.num_kv_heads, model.ffn_size), (16, 4, 256));
    assert_eq!(
        (model.layers, model.learned_positions),
        (Layers::uniform(LayerKind::dense(None)), Some(2))
    );
    assert!(model.qkv_bias && model.out_bias && model.ffn_bias && model.tied_embeddings);
    assert_eq!(model.norm_eps, 1e-5);
    let model = good(OPT, r#"{"enable_bias": false, "tie_word_embeddings": false}"#);
    assert!(!model.qkv_bias && !model.out_bias && !model.ffn_bias && !model.tied_embeddings);
    assert_eq!(good(OPT, r#"{"activation_function": "gelu"}"#).activation, Activation::Gelu);
}

#[test]
fn qwen2_has_biases_and_a_window_only_when_it_is_used() {
    let qwen2 = as_architecture("Qwen2ForCausalLM");
    let window = |changes: &str| good(&qwen2, changes).layers.windows_below(u32::MAX);
    let model = good(&qwen2, "{}");
    assert!(model.qkv_bias && !model.out_bias && !model.ffn_bias);
    assert_eq!(model.family, Family::Qwen2);
    assert!(window(r#"{"sliding_window": 16}"#).is_empty());
    let used = r#"{"sliding_window": 16, "use_sliding_window": true, "max_window_layers": LAYERS}"#;
    assert_eq!(window(&used.replace("LAYERS", "2")), [16]);
    assert_eq!(window(&used.replace("LAYERS", "0")), [16]);
    assert!(window(&used.replace("LAYERS", "3")).is_empty());
    let typed = r#"{"sliding_window": 16, "use_sliding_window": true, "layer_types": ["KIND",
        "full_attention", "KIND"]}"#;
    assert_eq!(window(&typed.replace("KIND", "sliding_attention")), [16]);
    assert!(window(&typed.replace("KIND", "full_attention")).is_empty());
}

#[test]
fn mistral_has_a_window_unless_it_says_null() {
    let windows = |model: ModelConfig| model.layers.windows_below(u32::MAX);
    let mistral = as_architecture("MistralForCausalLM");
    assert_eq!(good(&mistral, "{}").family, Family::Mistral);
    assert_eq!(windows(good(&mistral, "{}")), [4096]);
    assert_eq!(windows(good(&mistral, r#"{"sliding_window": 100}"#)), [100]);
    assert!(windows(good(&mistral, r#"{"sliding_window": null}"#)).is_empty());
}

#[test]
fn rope_in_old_and_new_files() {
    let rope = |changes: &str| good(LLAMA, changes).layers.kind(0).rope.clone().unwrap();
    let plain = |theta| Rope::new(theta, RopeScaling::None);
    assert_eq!(rope(r#"{"rope_theta": 500000.0}"#), plain(5e5));
    assert_eq!(rope(r#"{"rope_theta": 500000.0, "rope_scaling": null}"#), plain(5e5));
    assert_eq!(
        rope(r#"{"rope_parameters": {"rope_theta": 7, "rope_type": "default"}}"#),
        plain(7.0)
    );
    assert_eq!(rope(r#"{"rope_theta": 9, "rope_scaling": {"type": "default"}}"#), plain(9.0));
    let linear = Rope::new(1e4, RopeScaling::Linear { factor: 4.0 });
    assert_eq!(rope(r#"{"rope_scaling": {"type": "linear", "factor": 4.0}}"#), linear);
    assert_eq!(rope(r#"{"rope_scaling": {"rope_type": "linear", "factor": 4}}"#), linear);
    let llama3 = r#"{"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}"#;
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    assert_eq!(rope(llama3), Rope::new(5e5, scaling));
}

#[test]
fn rope_refusals() {
    for (changes, sentence) in [
        (
            r#"{"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}"#,
            "the rope type mrope is not supported (supported: default, linear, llama3, yarn, \
             longrope, dynamic, proportional)",
        ),
        (
            r#"{"rope_scaling": {"factor": 4.0}}"#,
            "the rope type without a name is not supported (supported: default, linear, llama3, \
             yarn, longrope, dynamic, proportional)",
        ),
        (
            r#"{"rope_scaling": {"type": "linear", "factor": 2, "finetuned": true}}"#,
            "a rotary embedding with finetuned = true is not supported",
        ),
        (
            r#"{"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}}"#,
            "a rotary embedding whose short_factor are not 4 positive numbers is not supported",
        ),
        (
            r#"{"rope_scaling": {"type": "linear"}}"#,
            "config.json has no factor, which this architecture requires",
        ),
        (
            r#"{"rope_scaling": {"type": "linear", "factor": 0}}"#,
            "config.json has factor = 0, but a positive number is required",
        ),
        (
            r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                "high_freq_factor": 4, "original_max_position_embeddings": 64}}"#,
            "config.json has low_freq_factor = 4, but less than high_freq_factor is required",
        ),
        (
            r#"{"rope_parameters": {"full_attention": {"rope_type": "default"}}}"#,
            "a rotary embedding that differs by layer type (full_attention) is not supported",
        ),
        (
            r#"{"partial_rotary_factor": 0.5}"#,
            "a rotary embedding of a part of each head (0.5) is not supported in this family",
        ),
    ] {
        assert_eq!(refused(LLAMA, changes), sentence);
    }
}

#[test]
fn generation_config_is_asked_first() {
    let config = object(LLAMA, "{}");
    let ends = |generation: &str| {
        let model = parse("m", &config, &object("{}", generation)).unwrap();
        (model.bos_token_id, model.eos_token_ids)
    };
    assert_eq!(ends(r#"{"eos_token_id": [7, 9], "bos_token_id": 5}"#), (Some(5), vec![7, 9]));
    assert_eq!(ends(r#"{"eos_token_id": 7}"#), (Some(1), vec![7]));
    assert_eq!(ends("{}"), (Some(1), vec![2]));
    assert_eq!(good(LLAMA, r#"{"eos_token_id": [3, -1]}"#).eos_token_ids, [3]);
    assert!(good(LLAMA, r#"{"eos_token_id": null}"#).eos_token_ids.is_empty());
    let sentence = r#"config.json has eos_token_id = "x", but a token id is required"#;
    assert_eq!(refused(LLAMA, r#"{"eos_token_id": "x"}"#), sentence);
}

#[test]
fn the_model_type_serves_where_no_architecture_is_named() {
    assert_eq!(
        good(LLAMA, r#"{"architectures": null, "model_type": "qwen2"}"#).family,
        Family::Qwen2
    );
    let list = architectures().join(", ");
    assert_eq!(
        refused(LLAMA, r#"{"architectures": null, "model_type": "bert"}"#),
        format!("the architecture bert is not supported: it needs a decoder; supported are {list}")
    );
    assert_eq!(
        refused(LLAMA, r#"{"architectures": ["NewForCausalLM"], "model_type": "llama"}"#),
        format!("the architecture NewForCausalLM is not supported; supported are {list}")
    );
}

#[test]
fn opt_350m_is_refused_by_name() {
    let norms = refused(OPT, r#"{"do_layer_norm_before": false}"#);
    assert_eq!(
        norms,
        "an OPT with its norms after each half (do_layer_norm_before false), which is OPT-350m, is \
         not supported; every other published OPT is"
    );
    let projection = refused(OPT, r#"{"word_embed_proj_dim": 32}"#);
    assert_eq!(
        projection,
        "an OPT with projected embeddings (word_embed_proj_dim 32, hidden_size 64), as OPT-350m \
         has, is not supported; every other published OPT is"
    );
    let gains = refused(OPT, r#"{"layer_norm_elementwise_affine": false}"#);
    assert_eq!(gains, "an OPT whose norms have no gains is not supported");
    let last = refused(OPT, r#"{"_remove_final_layer_norm": true}"#);
    assert_eq!(last, "an OPT without its final norm is not supported");
}

#[test]
fn more_experts_for_a_row_than_there_are_is_refused() {
    let mixtral = as_architecture("MixtralForCausalLM");
    let sentence = refused(&mixtral, r#"{"num_local_experts": 4, "num_experts_per_tok": 5}"#);
    assert_eq!(sentence, "num_experts_per_tok 5 is more than the number of experts, 4");
}

#[test]
fn two_blocks_of_rope_are_refused_unless_they_agree() {
    let both = r#"{"rope_parameters": {"rope_theta": 7.0}, "rope_scaling": SCALING}"#;
    assert_eq!(
        refused(LLAMA, &both.replace("SCALING", r#"{"type": "linear", "factor": 2.0}"#)),
        "rope_scaling with a different rope_parameters is not supported; keep the intended one"
    );
    good(LLAMA, &both.replace("SCALING", r#"{"rope_theta": 7.0}"#));
}

#[test]
fn what_files_leave_out_is_what_their_family_means() {
    assert!(good(&as_architecture("SmolLM3ForCausalLM"), "{}").tied_embeddings);
    let qwen3 = as_architecture("Qwen3ForCausalLM");
    let windows = good(&qwen3, r#"{"use_sliding_window": true, "max_window_layers": 0}"#);
    assert_eq!(windows.layers.windows_below(u32::MAX), [4096]);
    let gpt_oss = as_architecture("GptOssForCausalLM");
    let sentence = refused(&gpt_oss, r#"{"num_local_experts": 4, "num_experts_per_tok": 2}"#);
    assert_eq!(sentence, "config.json has no head_dim, which this architecture requires");
}

#[test]
fn ends_of_a_text_beside_images_may_stand_with_it() {
    let inner = LLAMA.replace("[\"LlamaForCausalLM\"]", "null");
    let text = inner.replacen('{', r#"{"model_type": "mistral", "#, 1);
    let names = r#""architectures": ["Mistral3ForConditionalGeneration"]"#;
    let outer = |more: &str| format!(r#"{{{names}, {more} "text_config": {text}}}"#);
    assert_eq!(good(&outer(""), "{}").eos_token_ids, [2]);
    assert_eq!(good(&outer(r#""eos_token_id": 9,"#), "{}").eos_token_ids, [9]);
}

#[test]
fn a_field_that_is_not_understood_is_refused_by_name() {
    assert_eq!(
        refused(LLAMA, r#"{"logit_cap": 30.0}"#),
        "config.json has logit_cap = 30.0, which is not supported and may change what the model \
         computes; remove the field if it does not"
    );
    good(LLAMA, r#"{"logit_cap": null, "use_cache": true, "is_encoder_decoder": false}"#);
    let sentence = refused(LLAMA, r#"{"is_encoder_decoder": true}"#);
    assert!(sentence.starts_with("config.json has is_encoder_decoder = true"), "{sentence}");
}

/// Base, changes to it, and the error of the configuration.
const OTHER_REFUSALS: &[(&str, &str, &str)] = &[
    (
        LLAMA,
        r#"{"hidden_size": null}"#,
        "config.json has no hidden_size, which this architecture requires",
    ),
    (
        LLAMA,
        r#"{"vocab_size": 0}"#,
        "config.json has vocab_size = 0, but a whole number from 1 to 2^31 is required",
    ),
    (
        LLAMA,
        r#"{"num_hidden_layers": "two"}"#,
        "config.json has num_hidden_layers = \"two\", but a whole number from 1 to 2^31 is \
         required",
    ),
    (
        LLAMA,
        r#"{"num_hidden_layers": 2147483647}"#,
        "the configuration has 2147483647 layers; at most 4096 can be run, so it is damaged",
    ),
    (
        LLAMA,
        r#"{"num_hidden_layers": 65540}"#,
        "the configuration has 65540 layers; at most 4096 can be run, so it is damaged",
    ),
    (
        LLAMA,
        r#"{"vocab_size": 2147483647}"#,
        "the configuration has 2147483647 tokens of the vocabulary; at most 4194304 can be \
         run, so it is damaged",
    ),
    (
        LLAMA,
        r#"{"tie_word_embeddings": 1}"#,
        "config.json has tie_word_embeddings = 1, but true or false is required",
    ),
    (LLAMA, r#"{"head_dim": 9}"#, "the head dimension 9 is odd, but rotary positions rotate pairs"),
    (
        LLAMA,
        r#"{"num_attention_heads": 6}"#,
        "hidden_size 64 is not divisible by num_attention_heads 6",
    ),
    (
        OPT,
        r#"{"num_attention_heads": 5}"#,
        "hidden_size 64 is not divisible by num_attention_heads 5",
    ),
    (
        LLAMA,
        r#"{"num_key_value_heads": 3}"#,
        "num_attention_heads 8 is not divisible by num_key_value_heads 3",
    ),
    (
        LLAMA,
        r#"{"hidden_act": "gelu"}"#,
        "the activation gelu is not supported in this family (supported: silu)",
    ),
    (
        OPT,
        r#"{"activation_function": "gelu_new"}"#,
        "the activation gelu_new is not supported in this family (supported: relu, gelu)",
    ),
    (
        LLAMA,
        r#"{"quantization_config": {"quant_method": "gptq", "bits": 3}}"#,
        "a checkpoint with quantization_config.bits = 3 is not supported; use the unquantised \
         checkpoint, one in fp8, mxfp4, compressed-tensors, AWQ or GPTQ with 4 bits in order, or a \
         GGUF file",
    ),
    (
        LLAMA,
        r#"{"torch_dtype": "float64"}"#,
        "a checkpoint stored as float64 is not supported (supported: bfloat16, float16, float32)",
    ),
    (
        LLAMA,
        r#"{"dtype": "float8_e4m3fn"}"#,
        "a checkpoint stored as float8_e4m3fn is not supported (supported: bfloat16, float16, \
         float32)",
    ),
];

#[test]
fn other_refusals() {
    for (base, changes, sentence) in OTHER_REFUSALS {
        assert_eq!(refused(base, changes), *sentence);
    }
}

#[test]
fn a_context_fits_the_positions() {
    let model = good(LLAMA, "{}");
    assert_eq!(check_context(&model, 512), Ok(()));
    assert_eq!(
        check_context(&model, 513).unwrap_err().to_string(),
        "m was made for 512 positions, but prompt + output is 513"
    );
}

#[test]
fn files_are_read_from_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let load = || load(directory.path(), "m");
    assert!(matches!(load(), Err(ConfigError::Io { .. })));
    let write = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
    write("config.json", LLAMA);
    assert_eq!(load().unwrap().eos_token_ids, [2]);
    write("generation_config.json", r#"{"eos_token_id": [4, 5]}"#);
    assert_eq!(load().unwrap().eos_token_ids, [4, 5]);
    write("generation_config.json", "[1]");
    let message = load().unwrap_err().to_string();
    assert!(message.contains("generation_config.json is not a JSON object"), "{message}");
    write("config.json", &LLAMA[..LLAMA.len() / 2]);
    let message = load().unwrap_err().to_string();
    assert!(message.contains("config.json is not a JSON object"), "{message}");
}

/// Returns the names in the first layout of a tensor that is stored in one piece.
fn tensor_names(config: &ModelConfig, id: TensorId) -> Vec<String> {
    match layouts(config, id).first().map(Vec::as_slice) {
        None | Some([]) => Vec::new(),
        Some([piece]) => piece.names.clone(),
        Some(pieces) => panic!("{} pieces", pieces.len()),
    }
}

/// Tests that every tensor of the operation table has a name, and no others do.
#[test]
fn tensors_have_the_names_of_the_checkpoints() {
    let llama = good(LLAMA, "{}");
    let layer = |op, part| TensorId::Layer { layer: 1, op, part };
    for (id, name) in [
        (TensorId::Embedding, "model.embed_tokens.weight"),
        (TensorId::Head, "lm_head.weight"),
        (TensorId::FinalNorm { part: TensorPart::Gain }, "model.norm.weight"),
        (layer(Op::Norm0, TensorPart::Gain), "model.layers.1.input_layernorm.weight"),
        (layer(Op::Q, TensorPart::Matrix), "model.layers.1.self_attn.q_proj.weight"),
        (layer(Op::Out, TensorPart::Matrix), "model.layers.1.self_attn.o_proj.weight"),
        (layer(Op::Norm1, TensorPart::Gain), "model.layers.1.post_attention_layernorm.weight"),
        (layer(Op::Gate, TensorPart::Matrix), "model.layers.1.mlp.gate_proj.weight"),
        (layer(Op::Up, TensorPart::Matrix), "model.layers.1.mlp.up_proj.weight"),
        (layer(Op::Down, TensorPart::Matrix), "model.layers.1.mlp.down_proj.weight"),
    ] {
        assert_eq!(tensor_names(&llama, id), [name]);
    }
    let biased = good(LLAMA, r#"{"attention_bias": true}"#);
    let name = "model.layers.1.self_attn.k_proj.bias";
    assert_eq!(tensor_names(&biased, layer(Op::K, TensorPart::Bias)), [name]);
    let tied = good(LLAMA, r#"{"tie_word_embeddings": true}"#);
    assert_eq!(tensor_names(&tied, TensorId::Head), ["model.embed_tokens.weight"]);
    let opt = good(OPT, "{}");
    for (id, name) in [
        (TensorId::Embedding, "embed_tokens.weight"),
        (TensorId::Head, "embed_tokens.weight"),
        (TensorId::Positions, "embed_positions.weight"),
        (TensorId::FinalNorm { part: TensorPart::Bias }, "final_layer_norm.bias"),
        (layer(Op::Norm0, TensorPart::Bias), "layers.1.self_attn_layer_norm.bias"),
        (layer(Op::V, TensorPart::Matrix), "layers.1.self_attn.v_proj.weight"),
        (layer(Op::Out, TensorPart::Bias), "layers.1.self_attn.out_proj.bias"),
        (layer(Op::Norm1, TensorPart::Gain), "layers.1.final_layer_norm.weight"),
        (layer(Op::Fc0, TensorPart::Matrix), "layers.1.fc1.weight"),
        (layer(Op::Fc1, TensorPart::Bias), "layers.1.fc2.bias"),
    ] {
        assert_eq!(
            tensor_names(&opt, id),
            [format!("model.decoder.{name}"), format!("decoder.{name}")]
        );
    }
    for (model, op, part) in [
        (&llama, Op::Norm0, TensorPart::Bias),
        (&llama, Op::Fc0, TensorPart::Matrix),
        (&llama, Op::Q, TensorPart::Gain),
        (&opt, Op::Gate, TensorPart::Matrix),
        (&opt, Op::Norm0, TensorPart::Matrix),
        (&opt, Op::Scores, TensorPart::Matrix),
    ] {
        assert!(tensor_names(model, layer(op, part)).is_empty(), "{op:?} {part:?}");
    }
}
