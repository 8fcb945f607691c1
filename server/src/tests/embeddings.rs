//! The endpoints that compute prompts alone.

use std::time::Duration;

use engine_api::request::Pooling;
use serde_json::{Value, json};

use super::batch_client::{BATCHES, content, server, upload, wait_for};
use super::fake_engine::FakeEngineOptions;
use super::http::Reply;
use super::test_server::{TestServer, wait_until};
use crate::config::ServerOptions;

const EMBEDDINGS: &str = "/v1/embeddings";

fn vector(reply: &Reply, index: usize) -> Vec<f64> {
    let list = reply.json()["data"][index]["embedding"].clone();
    serde_json::from_value(list).expect("a list of numbers")
}

#[test]
fn embeddings_are_pooled_hidden_states_of_length_one() {
    let server = TestServer::new();
    let body = json!({"model": "echo", "input": [[4, 9, 3], [1]], "user": "u"});
    let reply = server.post(EMBEDDINGS, &body);
    assert_eq!(reply.status, 200, "{}", reply.json());
    let found = reply.json();
    assert_eq!((&found["object"], &found["model"]), (&json!("list"), &json!("echo")));
    assert_eq!(found["usage"], json!({"prompt_tokens": 4, "total_tokens": 4}));
    assert_eq!(found["data"][1]["index"], 1);
    let length = f64::from(4 * 4 + 3 * 3 + 3 * 3 + 1).sqrt();
    for (found, expected) in vector(&reply, 0).into_iter().zip([4.0, 3.0, 3.0, 1.0]) {
        assert!((found - expected / length).abs() < 1e-7, "{found}");
    }
    let submitted = server.engine.submissions();
    assert!(submitted.iter().all(|one| one.pooling == Some(Pooling::LastToken)));
    // A text, with the token that begins one; the path without /v1; cut and encoded.
    let body = json!({"input": "a", "dimensions": 1, "encoding_format": "base64"});
    let reply = server.post("/embeddings", &body);
    assert_eq!(reply.json()["data"][0]["embedding"], json!("AACAPw=="));
    assert_eq!(reply.json()["usage"]["prompt_tokens"], 2);
}

#[test]
fn requests_beyond_the_limits_are_refused_in_the_format_of_openai() {
    let server = TestServer::new();
    for (body, status, code, param) in [
        (json!({}), 400, "missing_field", json!("input")),
        (json!({"input": []}), 400, "invalid_value", json!("input")),
        (json!({"input": [300]}), 400, "token_out_of_vocabulary", json!("input")),
        (json!({"input": vec![1; 256]}), 400, "context_length_exceeded", json!("input")),
        (json!({"input": "a", "dimensions": 5}), 400, "invalid_value", json!("dimensions")),
        (json!({"input": "a", "task": "x"}), 400, "unsupported_field", json!("task")),
        (json!({"input": "a", "model": "b"}), 404, "model_not_found", json!("model")),
        (json!({"input": vec!["a"; 1029]}), 400, "too_many_answers", Value::Null),
    ] {
        let reply = server.post(EMBEDDINGS, &body);
        let error = &reply.json()["error"];
        let found = (reply.status, error["code"].as_str(), &error["param"]);
        assert_eq!(found, (status, Some(code), &param), "{error}");
    }
    assert!(server.engine.submissions().is_empty());
}

#[test]
fn a_failure_cancels_the_other_inputs() {
    let options = FakeEngineOptions {
        fails_at: Some(7),
        step: Duration::from_millis(20),
        slots: 1,
        ..FakeEngineOptions::default()
    };
    let server = TestServer::with_options(options, ServerOptions::default());
    let reply = server.post(EMBEDDINGS, &json!({"input": [[7], [1], [2]]}));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (500, &json!("engine_error")));
    wait_until("the others were not cancelled", || server.engine.open() == 0);
    assert_eq!(server.engine.cancelled(), 2);
}

#[test]
fn a_model_without_the_tokens_of_the_prompt_ranks_nothing() {
    let server = TestServer::new();
    let body = json!({"query": "q", "documents": ["a"]});
    for path in ["/v1/rerank", "/rerank"] {
        let reply = server.post(path, &body);
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (400, &json!("unsupported_field")));
    }
    assert_eq!(server.post("/rerank", &json!({"query": "q"})).status, 400);
}

#[test]
fn batches_of_embeddings_have_the_vectors_of_single_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(folder.path(), Duration::ZERO);
    let line = |id: &str, url: &str, body: &Value| {
        format!("{}\n", json!({"custom_id": id, "method": "POST", "url": url, "body": body}))
    };
    let bodies = [json!({"model": "echo", "input": ["ab", "c"]}), json!({"input": [5, 9]})];
    let input = [
        line("a", EMBEDDINGS, &bodies[0]),
        line("b", EMBEDDINGS, &bodies[1]),
        line("c", EMBEDDINGS, &json!({"input": [], "model": "echo"})),
        line("d", "/v1/completions", &json!({"prompt": "x"})),
    ];
    let file = upload(&server, input.concat().as_bytes());
    let body = json!({"input_file_id": file, "endpoint": EMBEDDINGS, "completion_window": "24h"});
    let created = server.post(BATCHES, &body);
    assert_eq!(created.status, 200, "{}", created.text());
    let id = created.json()["id"].as_str().expect("an id").to_owned();
    let done = wait_for(&server, &id, "completed");
    assert_eq!(done["request_counts"], json!({"total": 4, "completed": 2, "failed": 2}));
    assert_eq!(done["usage"]["input_tokens"], 7);
    let output = content(&server, &done["output_file_id"]);
    for (line, body) in output.lines().zip(&bodies) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let mut found = line["response"]["body"].clone();
        let fingerprint = found.as_object_mut().expect("an object").remove("system_fingerprint");
        assert_eq!(fingerprint, Some(json!("fp_test")));
        assert_eq!(found, server.post(EMBEDDINGS, body).json());
    }
    let errors = content(&server, &done["error_file_id"]);
    assert!(errors.contains("invalid_value") && errors.contains("unsupported_url"), "{errors}");
}
