//! Streamed answers have the same content as answers that are not streamed.

use std::sync::Arc;
use std::time::Duration;

use engine_api::request::AnswerGrammar;
use serde_json::{Value, json};
use testkit::byte_codec::ByteCodec;

use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::test_server::{CHAT, COMPLETIONS, TestServer};
use crate::config::{ModelCard, ServerOptions};

/// Joins the events of a stream into choices.
fn joined(events: &[Value], choices: usize) -> Vec<Value> {
    let mut whole =
        vec![json!({"text": "", "token_ids": [], "finish_reason": null, "logprobs": []}); choices];
    for event in events {
        for choice in event["choices"].as_array().expect("choices") {
            let made = &mut whole[choice["index"].as_u64().expect("an index") as usize];
            assert_eq!(made["finish_reason"], Value::Null, "nothing follows the end");
            let piece = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
            let text = made["text"].as_str().expect("a text").to_owned() + piece.expect("a text");
            made["text"] = text.into();
            let ids = choice["token_ids"].as_array().expect("ids").clone();
            made["token_ids"].as_array_mut().expect("ids").extend(ids);
            let logprobs = &choice["logprobs"];
            let tokens = logprobs["tokens"].as_array().or_else(|| logprobs["content"].as_array());
            let tokens = tokens.cloned().unwrap_or_default();
            made["logprobs"].as_array_mut().expect("a list").extend(tokens);
            made["finish_reason"] = choice["finish_reason"].clone();
        }
    }
    whole
}

/// Returns the choices of an answer that is not streamed, in the same format.
fn of_whole(answer: &Value) -> Vec<Value> {
    let choices = answer["choices"].as_array().expect("choices").iter();
    let each = choices.map(|choice| {
        let text = choice["text"].as_str().or_else(|| choice["message"]["content"].as_str());
        let logprobs = &choice["logprobs"];
        let tokens = logprobs["tokens"].as_array().or_else(|| logprobs["content"].as_array());
        json!({
            "text": text, "token_ids": choice["token_ids"],
            "finish_reason": choice["finish_reason"],
            "logprobs": tokens.cloned().unwrap_or_default(),
        })
    });
    each.collect()
}

#[test]
fn streams_put_together_are_whole_answers() {
    let test_server = TestServer::new();
    let prompts = ["aé€b", "ab\u{1F600}ab", "€€€", "xyxyz", "stop here, stop"];
    let stops = [json!(null), json!("b"), json!(["€", "yx"]), json!(["ab\u{1F600}a", "ee"])];
    let mut cases = 0;
    for (index, prompt) in prompts.iter().enumerate() {
        for stop in &stops {
            let seed = (index + cases) as u64;
            let choices = 1 + cases % 3;
            let mut body = json!({
                "prompt": prompt, "max_tokens": 9 + cases, "stop": stop, "n": choices,
                "seed": seed, "temperature": if cases % 2 == 0 { 0.0 } else { 1.0 },
                "logprobs": if cases % 3 == 0 { json!(2) } else { json!(null) },
            });
            for path in [COMPLETIONS, CHAT] {
                if path == CHAT {
                    let fields = body.as_object_mut().expect("an object");
                    fields.remove("prompt");
                    fields["logprobs"] = json!(cases % 3 == 0);
                    fields.insert(
                        "messages".to_owned(),
                        json!([{"role": "user", "content": prompt}]),
                    );
                }
                let whole = test_server.post(path, &body);
                assert_eq!(whole.status, 200, "{}", whole.text());
                let fields = body.as_object_mut().expect("an object");
                fields.insert("stream".to_owned(), json!(true));
                let streamed = test_server.post(path, &body).events();
                body.as_object_mut().expect("an object").remove("stream");
                assert_eq!(joined(&streamed, choices), of_whole(&whole.json()), "{body}");
            }
            cases += 1;
        }
    }
}

#[test]
fn a_stream_has_an_event_for_each_token_also_without_text() {
    let test_server = TestServer::new();
    let body = json!({"prompt": "é", "max_tokens": 6, "stream": true,
        "stream_options": {"include_usage": true}});
    let events = test_server.post(COMPLETIONS, &body).events();
    let usage = events.last().expect("usage");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 6);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
    assert_eq!(events.len(), 6 + 1);
    assert!(events[..6].iter().all(|event| event["usage"] == Value::Null));
    assert!(events[0].as_object().expect("an object").contains_key("usage"));
    let ids: Vec<&Value> =
        events[..6].iter().map(|event| &event["choices"][0]["token_ids"]).collect();
    assert!(ids.iter().all(|ids| ids.as_array().is_some_and(|ids| ids.len() == 1)), "{ids:?}");
    let texts: Vec<&str> = events[..6]
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().expect("a text"))
        .collect();
    assert_eq!(texts, ["", "", "é", "", "", "é"]);
    assert_eq!(events[5]["choices"][0]["finish_reason"], "length");
    let ids: Vec<&Value> = events.iter().map(|event| &event["id"]).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn usage_is_counted_as_it_grows_where_that_is_asked_for() {
    let test_server = TestServer::new();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3,
        "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = test_server.post(CHAT, &body).events();
    let counts: Vec<u64> = events
        .iter()
        .map(|event| event["usage"]["completion_tokens"].as_u64().expect("a count"))
        .collect();
    assert_eq!(counts, [1, 2, 3, 3]);
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "<"}));
    assert_eq!(events[1]["choices"][0]["delta"], json!({"content": "u"}));
    let plain = json!({"prompt": "a", "max_tokens": 2, "stream": true});
    let events = test_server.post(COMPLETIONS, &plain).events();
    assert!(!events[0].as_object().expect("an object").contains_key("usage"));
}

#[test]
fn a_streamed_echo_begins_with_its_prompt() {
    let test_server = TestServer::new();
    let body = json!({"prompt": [97, 98, 99], "echo": true, "logprobs": 1, "max_tokens": 2});
    let whole = test_server.post(COMPLETIONS, &body).json();
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = test_server.post(COMPLETIONS, &streamed).events();
    assert_eq!(events[0]["choices"][0]["text"], "abc");
    assert_eq!(joined(&events, 1), of_whole(&whole));
    let offsets: Vec<Value> = events
        .iter()
        .flat_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(json!(offsets), whole["choices"][0]["logprobs"]["text_offset"]);
}

#[test]
fn what_fails_is_told_in_the_answer_or_in_the_stream() {
    let manner = FakeEngineOptions { fails_at: Some(99), ..FakeEngineOptions::default() };
    let test_server = TestServer::with_options(manner, ServerOptions::default());
    let mut body = json!({"prompt": "abc", "max_tokens": 8});
    let reply = test_server.post(COMPLETIONS, &body);
    assert_eq!(reply.status, 500);
    assert_eq!(reply.json()["error"]["message"], "The device is on fire.");
    body["stream"] = json!(true);
    let events = test_server.post(COMPLETIONS, &body).events();
    assert_eq!(events.last().expect("an event")["error"]["type"], "server_error");
    assert_eq!(test_server.get("/health").status, 200);
}

#[test]
fn an_answer_that_takes_too_long_is_cut() {
    let manner = FakeEngineOptions {
        step: Duration::from_millis(5),
        context: 4096,
        ..FakeEngineOptions::default()
    };
    let timeout = Some(Duration::from_millis(100));
    let test_server =
        TestServer::with_options(manner, ServerOptions { timeout, ..ServerOptions::default() });
    let mut body = json!({"prompt": "abc", "max_tokens": 4000});
    let reply = test_server.post(COMPLETIONS, &body);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (504, &json!("timeout")));
    body["stream"] = json!(true);
    let events = test_server.post(COMPLETIONS, &body).events();
    assert!(events.len() > 1, "some tokens came in time");
    assert_eq!(events.last().expect("an event")["error"]["code"], "timeout");
    super::test_server::wait_until("cancelled", || test_server.engine.open() == 0);
}

#[test]
fn a_form_is_passed_on_and_checked() {
    let test_server = TestServer::new();
    let body = json!({"prompt": "[1]", "max_tokens": 8, "structured_outputs": {"choice": ["a"]}});
    let reply = test_server.post(COMPLETIONS, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_ne!(test_server.engine.submissions()[0].grammar, AnswerGrammar::None);
    // The engine of these tests ignores the grammar, and the answer ends at a token of its own.
    let body = json!({"prompt": [98, 257], "structured_outputs": {"choice": ["a"]}});
    let choice = &test_server.post(COMPLETIONS, &body).json()["choices"][0];
    assert_eq!(choice["finish_reason"], "error");
    assert!(choice["error"].as_str().is_some_and(|error| error.contains("form")), "{choice}");
    let wrong = json!({"prompt": "a", "structured_outputs": {"regex": "("}});
    assert_eq!(test_server.post(COMPLETIONS, &wrong).status, 400);
}

#[test]
fn a_prompt_and_its_answer_are_the_text_of_both() {
    let card = ModelCard { codec: Some(Arc::new(ByteCodec::STRIPPING)), ..card("echo") };
    let test_server =
        TestServer::with_model(FakeEngineOptions::default(), ServerOptions::default(), card);
    let prompts = [json!(" ab"), json!([97, 195, 169, 195]), json!([97, 195]), json!([257, 195])];
    for (prompt, tokens) in prompts.iter().flat_map(|prompt| [(prompt, 0), (prompt, 5)]) {
        let mut body = json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0});
        let alone = (tokens > 0).then(|| test_server.post(COMPLETIONS, &body).json());
        body["echo"] = json!(true);
        let whole = test_server.post(COMPLETIONS, &body).json();
        body["stream"] = json!(true);
        let streamed = joined(&test_server.post(COMPLETIONS, &body).events(), 1);
        let text = |answer: &Value| answer["text"].as_str().expect("a text").to_owned();
        let alone = alone.map_or(String::new(), |alone| text(&alone["choices"][0]));
        let whole = text(&whole["choices"][0]);
        assert_eq!(text(&streamed[0]), whole, "{body}");
        assert!(whole.ends_with(&alone), "{body}: {whole:?} {alone:?}");
        if prompt == " ab" {
            let expected = if tokens == 0 { "ab" } else { "ab ab" };
            assert_eq!(whole, expected);
        }
    }
}
