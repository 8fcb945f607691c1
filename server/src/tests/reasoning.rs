//! Answers of a reasoning model.

use std::sync::Arc;

use openai::chats::{ChatOptions, ReasoningFormat};
use serde_json::{Value, json};
use testkit::byte_codec::{ByteCodec, END_OF_TEXT};

use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::test_server::{CHAT, COMPLETIONS, TestServer};
use crate::config::{ModelCard, ServerOptions};

fn test_server(chats: ChatOptions) -> TestServer {
    let manner = FakeEngineOptions { context: 2048, ..FakeEngineOptions::default() };
    let mut card = ModelCard { codec: Some(Arc::new(ByteCodec::THINKING)), ..card("echo") };
    card.sampling.temperature = 0.0;
    TestServer::with_model(manner, ServerOptions { chats, ..ServerOptions::default() }, card)
}

/// Returns a request whose answer is `<user>` and `text`.
fn body(text: &str) -> Value {
    let content = format!("{text}{END_OF_TEXT}");
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 900})
}

/// Returns such a request whose prompt ends within the reasoning.
fn thinking(text: &str) -> Value {
    let mut body = body(text);
    body["chat_template_kwargs"] = json!({"think": true});
    body
}

/// Returns the message of a streamed answer.
fn streamed(test_server: &TestServer, body: &Value) -> Value {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let mut parts = [("reasoning_content", String::new()), ("content", String::new())];
    for event in test_server.post(CHAT, &body).events() {
        let delta = &event["choices"][0]["delta"];
        for (name, text) in &mut parts {
            text.push_str(delta[*name].as_str().unwrap_or_default());
        }
    }
    let mut message = json!({"role": "assistant", "refusal": null});
    for (name, text) in parts {
        if name == "content" || !text.is_empty() {
            message[name] = text.into();
        }
    }
    message
}

/// Returns an assistant's message with the given fields.
fn message(mut fields: Value) -> Value {
    fields["role"] = json!("assistant");
    fields["refusal"] = json!(null);
    fields
}

#[test]
fn thoughts_are_told_beside_the_answer() {
    let test_server = test_server(ChatOptions::default());
    for (body, expected) in [
        (
            thinking("So.\n</think>\n\nYes."),
            message(json!({"reasoning_content": "<user>So.", "content": "Yes."})),
        ),
        (thinking("cut"), message(json!({"reasoning_content": "<user>cut", "content": ""}))),
        // The reasoning is neither opened by the prompt nor by the model.
        (body("a</think>b"), message(json!({"content": "<user>a</think>b"}))),
    ] {
        let answer = test_server.post(CHAT, &body).json();
        assert_eq!(answer["choices"][0]["message"], expected, "{answer}");
        assert_eq!(streamed(&test_server, &body), expected);
    }
}

#[test]
fn a_server_may_leave_thoughts_where_they_are_and_set_variables() {
    let test_server = test_server(ChatOptions {
        variables: vec![("think".to_owned(), "true".to_owned())],
        reasoning: ReasoningFormat::Inline,
    });
    let prompt =
        |body: &Value| test_server.post(CHAT, body).json()["usage"]["prompt_tokens"].clone();
    let answer = test_server.post(CHAT, &body("a</think>b")).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "<user>a</think>b");
    let with = prompt(&body("a")).as_u64().expect("a count");
    let mut without = body("a");
    without["chat_template_kwargs"] = json!({"think": false});
    assert_eq!(with - prompt(&without).as_u64().expect("a count"), "<think>\n".len() as u64);
}

#[test]
fn forms_hold_what_follows_the_thoughts() {
    let test_server = test_server(ChatOptions::default());
    let mut body = thinking("So.</think>17");
    body["structured_outputs"] = json!({"regex": "[0-9]+"});
    let message = test_server.post(CHAT, &body).json()["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], "<user>So.");
    assert_eq!(message["content"], "17");
}

#[test]
fn what_cannot_be_a_variable_is_refused() {
    let test_server = test_server(ChatOptions::default());
    for (field, value, expected) in [
        ("chat_template_kwargs", json!([]), "must be an object of variables"),
        ("chat_template_kwargs", json!({"messages": []}), "an object without `messages`"),
        ("reasoning_effort", json!(3), "must be a string"),
    ] {
        let mut wrong = body("a");
        wrong[field] = value;
        let reply = test_server.post(CHAT, &wrong);
        assert_eq!(reply.status, 400);
        assert!(reply.text().contains(expected), "{}", reply.text());
    }
    for field in ["chat_template_kwargs", "reasoning_effort"] {
        let mut prompt = json!({"prompt": "a"});
        prompt[field] = json!({"a": 1});
        let reply = test_server.post(COMPLETIONS, &prompt);
        assert!(reply.text().contains("is not supported in /v1/completions"), "{}", reply.text());
    }
    let mut effort = body("a");
    effort["reasoning_effort"] = json!("low");
    assert_eq!(test_server.post(CHAT, &effort).status, 200);
}

#[test]
fn a_limit_that_cannot_be_kept_is_said() {
    let server = test_server(ChatOptions::default());
    let warnings = |body: &Value| server.post(CHAT, body).json()["warnings"].clone();
    let mut body = thinking("So.</think>Yes.");
    assert_eq!(warnings(&body), Value::Null);
    body["thinking_token_budget"] = json!(-1);
    assert_eq!(warnings(&body), Value::Null);
    // This model writes its markers as texts.
    body["thinking_token_budget"] = json!(4);
    assert!(warnings(&body)[0].as_str().is_some_and(|one| one.contains("two single tokens")));
    for wrong in [json!(-2), json!("4"), json!(1.5), json!(1_u64 << 40)] {
        body["thinking_token_budget"] = wrong;
        let reply = server.post(CHAT, &body);
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.text().contains("'thinking_token_budget'"), "{}", reply.text());
    }
}
