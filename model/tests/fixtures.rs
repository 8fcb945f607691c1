//! Tests that the committed checkpoints are read as by Hugging Face's libraries: configuration,
//! every tensor, tokenizer and chat template.

use std::fs;
use std::path::{Path, PathBuf};

use model::chat::{ChatMessage, ChatTemplate};
use model::config::{Family, ModelConfig, RopeScaling};
use model::config_json;
use model::source::safetensors::SafetensorsSource;
use model::source::{TensorId, TensorPart, WeightSource};
use model::tokenizer::TextTokenizer;
use model::tokenizer_config::TokenizerConfig;
use serde_json::Value;

const FIXTURES: [&str; 5] = ["llama", "llama3", "mistral", "opt", "qwen2"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn config(name: &str) -> ModelConfig {
    config_json::load(&fixture(name), name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn cases(name: &str, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(fixture(name).join(file)).expect("a committed file");
    serde_json::from_str(&text).expect("a list of cases")
}

fn ids(case: &Value) -> Vec<u32> {
    serde_json::from_value(case["ids"].clone()).expect("token ids")
}

/// Returns every tensor in the operation table.
fn tensors(config: &ModelConfig) -> Vec<TensorId> {
    let mut ids = vec![TensorId::Embedding, TensorId::Positions, TensorId::Head];
    for part in [TensorPart::Matrix, TensorPart::Gain, TensorPart::Bias] {
        ids.push(TensorId::FinalNorm { part });
        for layer in 0..config.num_layers {
            let ops = config.layer_ops(layer).iter();
            ids.extend(ops.map(|&op| TensorId::Layer { layer, op, part }));
        }
    }
    ids.retain(|id| id.expected_shape(config).is_some());
    ids
}

#[test]
fn every_tensor_of_every_checkpoint_is_read() {
    for name in FIXTURES {
        let config = config(name);
        let source = SafetensorsSource::open(&fixture(name), &config).expect(name);
        let ids = tensors(&config);
        let per_layer = ids.iter().filter(|id| matches!(id, TensorId::Layer { layer: 0, .. }));
        let expected = match config.family {
            Family::Opt => 16,
            Family::Qwen2 => 12,
            Family::Llama | Family::Mistral => 9,
            other => panic!("{name} is of {other:?}"),
        };
        assert_eq!(per_layer.count(), expected, "{name}");
        for id in ids {
            let (rows, columns) = source.shape(id).unwrap_or_else(|error| panic!("{error}"));
            let mut values = vec![f32::NAN; rows * columns];
            source.read_f32(id, 0, &mut values).unwrap_or_else(|error| panic!("{error}"));
            assert!(values.iter().all(|value| value.is_finite()), "{name} {id:?}");
            // Biases and gains of the fixtures are random too, so no tensor is constant.
            assert!(values.iter().any(|value| *value != values[0]), "{name} {id:?}");
            let mut last_row = vec![0.0; columns];
            source.read_f32(id, rows - 1, &mut last_row).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(last_row, values[(rows - 1) * columns..], "{name} {id:?}");
        }
    }
}

#[test]
fn configurations_say_what_the_scripts_made() {
    let mistral = config("mistral");
    assert_eq!((mistral.head_dim, mistral.num_kv_heads, mistral.q_size()), (14, 1, 56));
    assert!(mistral.layers.windows_below(u32::MAX).is_empty());
    assert_eq!(mistral.eos_token_ids, [259, 169]);
    let qwen2 = config("qwen2");
    assert!(qwen2.qkv_bias && qwen2.layers.windows_below(u32::MAX).is_empty());
    let rope = config("llama3").layers.kind(0).rope.clone().expect("rotary");
    assert!(matches!(rope.scaling, RopeScaling::Llama3 { original_max_positions: 32, .. }));
    assert_eq!(rope.theta, 500.0);
    let llama = config("llama");
    assert!(llama.tied_embeddings && llama.group_size() == 3);
}

/// Compares token ids, which in these cases include the special tokens around a raw prompt.
#[test]
fn text_becomes_the_tokens_of_hugging_face() {
    for name in ["llama", "opt"] {
        let tokenizer = TextTokenizer::from_directory(&fixture(name), config(name).family)
            .expect(name)
            .expect("a tokenizer");
        let cases = cases(name, "tokenizer_cases.json");
        assert!(cases.len() >= 10, "{name}");
        for case in cases {
            let text = case["text"].as_str().expect("a text");
            let ids = ids(&case);
            assert_eq!(tokenizer.encode(text, true).expect(text), ids, "{name}: {text:?}");
            let decoded = case["decoded"].as_str().expect("a text");
            assert_eq!(tokenizer.decode(&ids).expect(text), decoded, "{name}: {text:?}");
            let mut stream = tokenizer.stream();
            let mut streamed = String::new();
            for id in ids {
                streamed.extend(stream.push(id).expect(text));
            }
            streamed.extend(stream.finish().expect(text));
            assert_eq!(streamed, decoded, "{name}: {text:?}");
        }
    }
}

#[test]
fn conversations_are_rendered_as_transformers_does() {
    let directory = fixture("llama");
    let text = TokenizerConfig::from_directory(&directory).expect("readable");
    let template = text.chat_template.as_deref().expect("a template");
    let (bos, eos) = (text.bos_token.as_deref(), text.eos_token.as_deref());
    let template = ChatTemplate::new(template, bos, eos).expect("a template");
    let tokenizer = TextTokenizer::from_directory(&directory, Family::Llama)
        .expect("readable")
        .expect("a tokenizer");
    let cases = cases("llama", "chat_cases.json");
    assert!(!cases.is_empty());
    for case in cases {
        let messages: Vec<ChatMessage> = case["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .map(|message| {
                let role = message["role"].as_str().expect("a role").to_owned();
                let content = message["content"].as_str().expect("a text").to_owned();
                ChatMessage::new(role, content, Vec::new())
            })
            .collect();
        let rendered =
            template.render(&messages, &[], &[], std::time::UNIX_EPOCH).expect("rendered");
        assert_eq!(Some(rendered.as_str()), case["rendered"].as_str());
        // The template has already written the special tokens.
        assert_eq!(tokenizer.encode(&rendered, false).expect("encoded"), ids(&case));
    }
}
