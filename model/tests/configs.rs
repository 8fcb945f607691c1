//! Configurations as versions of transformers save them, and which of their fields are refused.
//! `scripts/fixtures_configs.py` says how the files were made.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use model::architecture::ARCHITECTURES;
use model::config::ModelConfig;
use model::config_json::{ParsedConfig, parse, parse_with_unknown};
use model::family::layouts;
use model::source::TensorId;
use serde_json::{Map, Value, json};

const VERSIONS: [&str; 2] = ["4.57", "5.24"];

fn read(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn cases(version: &str, kind: &str) -> Vec<(String, Map<String, Value>)> {
    let file = read(&format!("tests/fixtures/configs/transformers_{version}.json"));
    let cases = file["cases"][kind].as_object().expect("cases by name");
    let case = |(name, config): (&String, &Value)| {
        (format!("{version} {kind} {name}"), config.as_object().expect("an object").clone())
    };
    cases.iter().map(case).collect()
}

/// The configuration, of which no field may be unknown.
fn parsed(name: &str, config: &Map<String, Value>) -> ModelConfig {
    let ParsedConfig { model, unknown_fields } =
        parse_with_unknown(name, config, &Map::new()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(unknown_fields, [], "{name}");
    model
}

#[test]
fn what_transformers_saves_of_every_architecture_is_read() {
    let mut architectures = BTreeSet::new();
    for version in VERSIONS {
        for kind in ["default", "full", "tiny"] {
            for (name, config) in cases(version, kind) {
                let model = parsed(&name, &config);
                architectures.insert(config["architectures"][0].as_str().unwrap().to_owned());
                if kind == "tiny" {
                    let sizes = (model.num_layers, model.hidden_size, model.vocab_size);
                    assert_eq!(sizes, (4, 64, 260), "{name}");
                    assert!(model.experts.is_none_or(|experts| experts.count == 8), "{name}");
                }
            }
        }
    }
    assert_eq!(architectures, ARCHITECTURES.map(str::to_owned).into());
}

#[test]
fn published_configurations_are_the_same_when_they_are_saved_again() {
    let mut compared = 0;
    for version in VERSIONS {
        for (name, config) in cases(version, "published") {
            let file = name.rsplit(' ').next().unwrap();
            let given = read(&format!("src/known/{file}.json"));
            let given = parse(&name, given.as_object().unwrap(), &Map::new()).expect(&name);
            // Classes add begin and end tokens of their own.
            let (bos_token_id, eos_token_ids) = (given.bos_token_id, given.eos_token_ids.clone());
            let again = ModelConfig { bos_token_id, eos_token_ids, ..parsed(&name, &config) };
            assert_eq!(again, given, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared} are too few to say anything");
}

/// transformers 5 saves Mistral Small with a text that is not tied in a whole that is.
#[test]
fn a_head_that_text_and_whole_disagree_on_is_the_checkpoints() {
    let mut all = cases("5.24", "published").into_iter();
    let (name, config) = all.find(|(name, _)| name.ends_with("mistral-small-3.2-24b")).unwrap();
    let whole = &config["tie_word_embeddings"];
    let text = &config["text_config"]["tie_word_embeddings"];
    assert_eq!((whole, text), (&json!(true), &json!(false)));
    let layouts = layouts(&parsed(&name, &config), TensorId::Head);
    let [own, embedding] = &layouts[..] else { panic!("{layouts:?}") };
    assert_eq!(own[0].names[..2], ["lm_head.weight", "language_model.lm_head.weight"]);
    assert_eq!(embedding[0].names[0], "language_model.model.embed_tokens.weight");
}

/// A small LLaMA with one more field.
fn llama_with(field: &str, value: Value) -> Map<String, Value> {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 3, "num_attention_heads": 8, "max_position_embeddings": 512,
        "vocab_size": 1000, "hidden_act": "silu"
    });
    config[field] = value;
    config.as_object().expect("an object").clone()
}

#[test]
fn fields_without_effect_pass() {
    for (field, value) in [
        ("is_llama_config", json!(true)),
        ("is_decoder", json!(true)),
        ("max_sequence_length", json!(8192)),
        ("model_max_length", json!(2048)),
        ("neftune_noise_alpha", json!(5.0)),
        ("use_flash_attn", json!(true)),
        ("_commit_hash", json!("0123abc")),
        ("layer_types", json!(["full_attention", "full_attention", "full_attention"])),
        ("hidden_activation", json!("silu")),
        ("rope_interleaved", json!(false)),
        ("position_embedding_type", json!("rope")),
        ("embedding_dropout", json!(0.1)),
        ("_attn_implementation_internal", json!("sdpa")),
        ("router_z_loss_coef", json!(0.001)),
        ("fused_rms_norm", json!(true)),
        ("gradient_checkpointing", json!(true)),
        ("classifier_dropout", json!(0.1)),
        ("num_labels", json!(2)),
        // What turns a part off, or scales it by one.
        ("final_logit_softcapping", json!(0.0)),
        ("attn_logit_softcapping", Value::Null),
        ("num_shared_experts", json!(0)),
        ("qkv_bias", json!(false)),
        ("logits_scaling", json!(1.0)),
        ("no_rope_layers", json!([])),
        ("is_causal", json!(true)),
    ] {
        parsed(field, &llama_with(field, value));
    }
    let mut windows = llama_with("max_window_layers", json!(21));
    windows.extend([
        ("use_sliding_window".to_owned(), json!(false)),
        ("sliding_window".to_owned(), json!(4096)),
    ]);
    parsed("windows", &windows);
}

#[test]
fn fields_that_speak_of_a_part_of_a_model_are_refused() {
    for (field, value) in [
        ("logit_cap", json!(30.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("logits_scaling", json!(8.0)),
        ("clip_qkv", json!(8.0)),
        ("embedding_multiplier", json!(12.0)),
        ("num_shared_experts", json!(1)),
        ("kv_lora_rank", json!(512)),
        ("layer_types", json!(["full_attention", "sliding_attention", "full_attention"])),
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(true)),
        ("max_window_layers", json!(21)),
        ("position_embedding_type", json!("alibi")),
        ("is_causal", json!(false)),
        ("is_encoder_decoder", json!(true)),
        ("attention_chunk_size", json!(8192)),
        ("rope_interleaved", json!(true)),
        ("hidden_activation", json!("gelu")),
        ("qk_norm", json!(true)),
    ] {
        let error = parse(field, &llama_with(field, value), &Map::new()).expect_err(field);
        let sentence = error.to_string();
        assert!(sentence.contains(field) || field == "hidden_activation", "{sentence}");
    }
}

#[test]
fn other_fields_pass_and_are_named() {
    let config = llama_with("dataset_of_our_company", json!({"name": "a", "size": 3}));
    let parsed = parse_with_unknown("m", &config, &Map::new()).expect("accepted");
    let [field] = &parsed.unknown_fields[..] else { panic!("{:?}", parsed.unknown_fields) };
    assert_eq!(
        (&*field.name, &*field.value),
        ("dataset_of_our_company", r#"{"name":"a","size":3}"#)
    );
}

#[test]
fn two_numbers_of_experts_are_refused_unless_they_agree() {
    let (_, tiny) =
        cases("5.24", "tiny").into_iter().find(|(n, _)| n.ends_with("qwen3_moe")).unwrap();
    for (count, is_read) in [(8, true), (4, false)] {
        let mut config = tiny.clone();
        config.insert("num_experts".to_owned(), json!(count));
        let parsed = parse("m", &config, &Map::new());
        match parsed {
            Ok(_) => assert!(is_read),
            Err(error) => assert_eq!(
                error.to_string(),
                "config.json says num_experts = 4 and num_local_experts = 8, which contradict"
            ),
        }
    }
}

#[test]
fn other_constants_than_those_computed_are_refused() {
    for (model, field, value, refused) in [
        ("gpt_oss", "swiglu_alpha", json!(1.5), true),
        ("gpt_oss", "swiglu_limit", json!(7), false),
        ("granitemoe", "position_embedding_type", json!("rope"), false),
        ("granitemoe", "position_embedding_type", json!("nope"), true),
        ("granitemoe", "position_embedding_type", Value::Null, true),
    ] {
        let mut all = cases("5.24", "tiny").into_iter();
        let (_, mut config) = all.find(|(name, _)| name.ends_with(model)).expect(model);
        config.insert(field.to_owned(), value.clone());
        assert_eq!(parse("m", &config, &Map::new()).is_err(), refused, "{field} = {value}");
    }
}
