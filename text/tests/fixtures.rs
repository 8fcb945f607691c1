//! Tests that text and conversations become the tokens of Hugging Face's libraries, with the
//! committed checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use model::config::{Family, ModelConfig};
use model::config_json;
use serde_json::Value;
use text::chat::{ChatMessage, ChatTemplate};
use text::tokenizer::TextTokenizer;
use text::tokenizer_config::TokenizerConfig;

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
