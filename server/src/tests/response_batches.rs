//! Batches of the Responses API.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::byte_codec::{ByteCodec, END_OF_TEXT};

use super::batch_client::{content, create_for, storage, upload, wait_for};
use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::test_server::TestServer;
use crate::config::ModelCard;

const RESPONSES: &str = "/v1/responses";

/// Replaces what differs from request to request: ids, and times.
fn without_ids_and_times(response: &Value) -> Value {
    let mut response = response.clone();
    for name in ["id", "created_at", "completed_at"] {
        response[name] = Value::Null;
    }
    let items = response["output"].as_array_mut().expect("items");
    for item in items {
        item["id"] = Value::Null;
        if item["type"] == "function_call" {
            item["call_id"] = Value::Null;
        }
    }
    response["usage"]["input_tokens_details"]["cached_tokens"] = json!(0);
    response
}

#[test]
fn lines_of_a_batch_are_answered_like_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = storage(folder.path(), 64 << 20);
    let manner = FakeEngineOptions { context: 2048, slots: 2, ..FakeEngineOptions::default() };
    let card = ModelCard { codec: Some(Arc::new(ByteCodec::CHAT)), ..card("echo") };
    let server = TestServer::with_model(manner, options, card);
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let with = |text: &str, fields: Value| {
        // The engine repeats the prompt, which ends there.
        let input = format!("{text}{END_OF_TEXT}");
        let mut body = json!({"model": "echo", "input": input, "temperature": 0.0});
        for (name, value) in fields.as_object().expect("fields") {
            body[name] = value.clone();
        }
        body
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    let tools = json!([{"type": "function", "name": "get", "parameters": schema}]);
    let bodies = [
        with("plain", json!({})),
        with("cut", json!({"max_output_tokens": 4, "metadata": {"a": "b"}})),
        with("likely", json!({"top_logprobs": 2, "include": ["message.output_text.logprobs"]})),
        with(call, json!({"tools": tools, "instructions": "Call."})),
        with("held", json!({"text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}})),
    ];
    let lines = bodies.iter().enumerate().map(|(i, body)| {
        let id = i.to_string();
        let url = RESPONSES;
        format!("{}\n", json!({"custom_id": id, "method": "POST", "url": url, "body": body}))
    });
    let file = upload(&server, lines.collect::<String>().as_bytes());
    let id = create_for(&server, RESPONSES, &file, "24h");
    let done = wait_for(&server, &id, "completed");
    assert_eq!(done["request_counts"]["completed"], bodies.len(), "{done}");
    assert!(done["usage"]["input_tokens"].as_u64() > Some(0), "{done}");
    let output = content(&server, &done["output_file_id"]);
    for (body, line) in bodies.iter().zip(output.lines()) {
        let line: Value = serde_json::from_str(line).expect("a line");
        let found = &line["response"]["body"];
        let reply = server.post(RESPONSES, body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        // The order of the fields is compared too.
        let [found, expected] =
            [found, &reply.json()].map(|body| without_ids_and_times(body).to_string());
        assert_eq!(found, expected, "{body}");
    }
}
