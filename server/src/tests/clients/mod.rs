//! Requests as real clients send them, and the parts of the answers that each of them reads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine_api::request::{AnswerGrammar, Pooling, Sampling};
use openai::embeddings::model::EmbeddingModel;
use serde_json::{Value, json};
use testkit::byte_codec::{BOS, ByteCodec, EOS};

use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, exchange, request};
use super::test_server::TestServer;
use crate::config::{ModelCard, ServerOptions};

/// Returns a model of the given name.
pub(super) fn card(name: &str) -> ModelCard {
    ModelCard {
        names: vec![name.to_owned()],
        created: 0,
        system_fingerprint: "fp_test".to_owned(),
        vocab_size: 300,
        max_positions: 4096,
        sampling: Sampling { temperature: 1.0, ..Sampling::GREEDY },
        embeddings: EmbeddingModel {
            pooling: Ok(Pooling::LastToken),
            hidden_size: 4,
            is_matryoshka: true,
        },
        codec: Some(Arc::new(ByteCodec::CHAT)),
        unsupported_tokenizer: None,
        bos_token_id: Some(BOS),
        eos_token_ids: vec![EOS],
        placement: Vec::new(),
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/clients")
}

/// Reads a recorded request: method, path, headers as lines, and body.
fn read(name: &str) -> (String, String, String, String) {
    let text = std::fs::read_to_string(folder().join(name)).expect(name);
    let (head, body) = text.split_once("\n\n").expect("a head and a body");
    let (first, headers) = head.split_once('\n').unwrap_or((head, ""));
    let (method, path) = first.split_once(' ').expect("a method and a path");
    let headers: String = headers.lines().map(|line| format!("{line}\r\n")).collect();
    (method.to_owned(), path.to_owned(), headers, body.trim_end().to_owned())
}

fn send(test_server: &TestServer, name: &str) -> Reply {
    let (method, path, headers, body) = read(name);
    let reply = exchange(test_server.address, &request(&method, &path, &headers, body.as_bytes()));
    assert_eq!(reply.status, 200, "{name}: {}", reply.text());
    reply
}

fn test_server() -> TestServer {
    let manner = FakeEngineOptions { context: 1024, ..FakeEngineOptions::default() };
    TestServer::with_model(manner, ServerOptions::default(), card("echo"))
}

#[test]
fn every_recorded_request_is_answered() {
    let test_server = test_server();
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("fixtures")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".http"))
        .collect();
    names.sort();
    assert!(names.len() >= 7, "{names:?}");
    for name in &names {
        send(&test_server, name);
    }
}

#[test]
fn bench_times_an_event_for_each_token_and_reads_usage_last() {
    let test_server = test_server();
    for name in ["vllm-bench.http", "vllm-bench-chat.http", "guidellm.http"] {
        let events = send(&test_server, name).events();
        let timed = events
            .iter()
            .filter(|event| event["choices"].as_array().is_some_and(|choices| !choices.is_empty()));
        assert_eq!(timed.count(), 12, "{name}");
        assert_eq!(events.last().expect("usage")["usage"]["completion_tokens"], 12, "{name}");
    }
    let events = send(&test_server, "guidellm.http").events();
    assert!(events.iter().all(|event| event["usage"]["total_tokens"].is_number()));
}

#[test]
fn an_evaluation_reads_the_logprobs_of_its_continuation() {
    let test_server = test_server();
    let answer = send(&test_server, "lm-eval-loglikelihood.http").json();
    let lengths = [(4, 2), (3, 1)];
    for (choice, (tokens, context)) in
        answer["choices"].as_array().expect("two").iter().zip(lengths)
    {
        let logprobs = &choice["logprobs"];
        let of_tokens = logprobs["token_logprobs"].as_array().expect("a list");
        let top = logprobs["top_logprobs"].as_array().expect("a list");
        assert_eq!((of_tokens.len(), top.len()), (tokens + 1, tokens + 1));
        // The client slices the list as `[context : -1]`.
        let continuation = &of_tokens[context..tokens];
        assert!(continuation.iter().all(Value::is_number), "{continuation:?}");
        assert!(top[context..tokens].iter().all(|top| top.as_object().is_some()));
    }
    assert_eq!(
        send(&test_server, "lm-eval-generate.http").json()["choices"][0]["text"],
        "abcdabcdabcd"
    );
    let chat = send(&test_server, "lm-eval-chat.http").json();
    assert_eq!(chat["choices"][0]["message"]["content"], "<user>one tw");
}

#[test]
fn a_chain_has_its_form_and_its_conversation() {
    let test_server = test_server();
    send(&test_server, "langchain.http");
    let submission = &test_server.engine.submissions()[0];
    assert_ne!(submission.grammar, AnswerGrammar::None);
    assert!((submission.sampling.temperature - 0.7).abs() < 1e-6);
    let prompt: Vec<u8> = submission.prompt.iter().map(|token| *token as u8).collect();
    let prompt = String::from_utf8(prompt).expect("UTF-8");
    assert_eq!(prompt, "<system>Be brief.<user>A pet?<assistant>A cat.<user name=\"me\">As JSON.");
}

#[test]
fn what_a_model_draws_by_is_used_where_a_request_does_not_say() {
    let test_server = test_server();
    test_server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    test_server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1, "temperature": 0}));
    let drawn = test_server.engine.submissions();
    assert!((drawn[0].sampling.temperature - 1.0).abs() < f32::EPSILON);
    assert!(drawn[1].sampling.temperature.abs() < f32::EPSILON);
}
