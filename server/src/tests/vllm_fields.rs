//! Fields and endpoints that vLLM and llama.cpp added.

use std::sync::Arc;

use engine_api::serving::DraftCounts;
use serde_json::{Value, json};
use testkit::byte_codec::{ByteCodec, END_OF_TEXT};

use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::test_server::{CHAT, COMPLETIONS, TestServer};
use crate::config::{ModelCard, ServerOptions};

fn biases(server: &TestServer) -> Vec<(u32, f32)> {
    let submitted = server.engine.submissions().pop().expect("a request");
    submitted.token_rules.map(|rules| rules.logit_bias.clone()).unwrap_or_default()
}

#[test]
fn tokens_are_allowed_and_words_excluded() {
    let server = TestServer::new();
    let mut body = json!({"prompt": "a", "max_tokens": 1, "allowed_token_ids": [98, 99],
        "logit_bias": {"98": 1}});
    assert_eq!(server.post(COMPLETIONS, &body).status, 200);
    assert_eq!(biases(&server), [(98, 1.0), (98, 1024.0), (99, 1024.0)]);
    body = json!({"prompt": "a", "max_tokens": 1, "bad_words": ["x"]});
    assert_eq!(server.post(COMPLETIONS, &body).status, 200);
    assert_eq!(biases(&server), [(120, -1024.0)]);
    for (field, value, word) in [
        ("allowed_token_ids", json!([]), "'allowed_token_ids'"),
        ("allowed_token_ids", json!([300]), "out of vocabulary"),
        ("allowed_token_ids", json!(["a"]), "'allowed_token_ids'"),
        ("bad_words", json!([""]), "'bad_words'"),
        ("bad_words", json!(["word"]), "more than one token"),
        ("bad_words", json!(vec!["a"; 129]), "at most 128"),
        ("truncate_prompt_tokens", json!(0), "'truncate_prompt_tokens'"),
        ("truncate_prompt_tokens", json!("a"), "'truncate_prompt_tokens'"),
        ("skip_special_tokens", json!(false), "'skip_special_tokens'"),
    ] {
        let mut wrong = json!({"prompt": "a", "max_tokens": 1});
        wrong[field] = value;
        let reply = server.post(COMPLETIONS, &wrong);
        assert_eq!(reply.status, 400, "{field}: {}", reply.text());
        assert!(reply.text().contains(word), "{field}: {}", reply.text());
    }
}

#[test]
fn a_stop_string_may_be_part_of_the_answer() {
    let server = TestServer::new();
    for stream in [false, true] {
        let mut body = json!({"prompt": "abcd", "max_tokens": 9, "stop": ["bc"], "stream": stream});
        let text = |body: &Value| {
            let reply = server.post(COMPLETIONS, body);
            if !stream {
                return reply.json()["choices"][0]["text"].as_str().expect("a text").to_owned();
            }
            let texts = reply
                .events()
                .into_iter()
                .map(|event| event["choices"][0]["text"].as_str().unwrap_or_default().to_owned());
            texts.collect()
        };
        assert_eq!(text(&body), "a");
        body["include_stop_str_in_output"] = json!(true);
        assert_eq!(text(&body), "abc");
    }
}

#[test]
fn tokens_of_logprobs_may_be_ids() {
    let server = TestServer::new();
    let body = json!({"prompt": "ab", "max_tokens": 3, "logprobs": 1, "echo": true,
        "return_tokens_as_token_ids": true});
    let logprobs = server.post(COMPLETIONS, &body).json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"][1], "token_id:97");
    assert!(logprobs["top_logprobs"][1]["token_id:97"].is_number(), "{logprobs}");
    let mut chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2,
        "logprobs": true, "return_tokens_as_token_ids": true});
    let answer = server.post(CHAT, &chat).json();
    let first = &answer["choices"][0]["logprobs"]["content"][0];
    assert_eq!((&first["token"], &first["bytes"]), (&json!("token_id:60"), &json!([60])));
    chat["stream"] = json!(true);
    let events = server.post(CHAT, &chat).events();
    let tokens = events.iter().map(|event| &event["choices"][0]["logprobs"]["content"][0]["token"]);
    assert!(tokens.into_iter().any(|token| token == "token_id:60"));
}

#[test]
fn a_prompt_may_be_shortened_to_its_end() {
    let server = TestServer::new();
    let long = "y".repeat(300) + "abc";
    let prompt = |fields: Value| {
        let mut body = json!({"prompt": long, "max_tokens": 1});
        body.as_object_mut()
            .expect("an object")
            .extend(fields.as_object().cloned().expect("an object"));
        let reply = server.post(COMPLETIONS, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let prompt = server.engine.submissions().pop().expect("a request").prompt;
        String::from_utf8(prompt.iter().map(|token| *token as u8).collect()).expect("UTF-8")
    };
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 3})), "abc");
    assert_eq!(prompt(json!({"truncate_prompt_tokens": -1})).len(), 255);
    assert_eq!(prompt(json!({"truncate_prompt_tokens": 1000, "max_tokens": 6})).len(), 250);
}

#[test]
fn reasoning_is_counted_and_may_be_left_out() {
    let manner = FakeEngineOptions { context: 2048, ..FakeEngineOptions::default() };
    let mut card = ModelCard { codec: Some(Arc::new(ByteCodec::THINKING)), ..card("echo") };
    card.sampling.temperature = 0.0;
    let server = TestServer::with_model(manner, ServerOptions::default(), card);
    let content = format!("So.\n</think>\n\nYes.{END_OF_TEXT}");
    let mut body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 900,
        "chat_template_kwargs": {"think": true}, "stream_options": {"include_usage": true}});
    let tokens = "<user>So.\n</think>".len();
    let reasoning = |usage: &Value| usage["completion_tokens_details"]["reasoning_tokens"].clone();
    let answer = server.post(CHAT, &body).json();
    assert_eq!(reasoning(&answer["usage"]), tokens);
    assert_eq!(answer["choices"][0]["message"]["reasoning_content"], "<user>So.");
    body["include_reasoning"] = json!(false);
    let answer = server.post(CHAT, &body).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("Yes.")));
    body["stream"] = json!(true);
    let events = server.post(CHAT, &body).events();
    assert_eq!(reasoning(&events.last().expect("usage")["usage"]), tokens);
    let shows = |event: &Value| !event["choices"][0]["delta"]["reasoning_content"].is_null();
    assert!(!events.iter().any(shows));
}

#[test]
fn drafted_tokens_are_counted_in_usage() {
    let drafts = DraftCounts { verified: 3, accepted: 2 };
    let options = FakeEngineOptions { drafts, ..FakeEngineOptions::default() };
    let server = TestServer::with_options(options, ServerOptions::default());
    let body = json!({"prompt": "abcd", "max_tokens": 4, "temperature": 0});
    let usage = &server.post(COMPLETIONS, &body).json()["usage"];
    let details = json!({"reasoning_tokens": 0, "accepted_prediction_tokens": 8,
        "rejected_prediction_tokens": 4});
    assert_eq!(usage["completion_tokens_details"], details, "{usage}");
    // The stop string is in the third token (the first is BOS), whose drafts count too.
    let body = json!({"prompt": "abcd", "max_tokens": 4, "temperature": 0, "stop": "b"});
    let usage = &server.post(COMPLETIONS, &body).json()["usage"];
    assert_eq!(usage["completion_tokens_details"]["accepted_prediction_tokens"], 6, "{usage}");
    let plain = TestServer::new().post(COMPLETIONS, &body).json();
    assert!(plain["usage"].get("completion_tokens_details").is_none(), "{plain}");
}

#[test]
fn texts_are_tokenised_as_in_llama_cpp() {
    let server = TestServer::new();
    let tokens = |body: Value| server.post("/tokenize", &body).json()["tokens"].clone();
    assert_eq!(tokens(json!({"content": "ab"})), json!([97, 98]));
    assert_eq!(tokens(json!({"content": "ab", "add_special": true})), json!([256, 97, 98]));
    let pieces =
        json!([{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]);
    assert_eq!(tokens(json!({"content": "aé", "with_pieces": true})), pieces);
    assert_eq!(server.post("/tokenize", &json!({"content": 5})).status, 400);
    let text = server.post("/detokenize", &json!({"tokens": [97, 98]})).json();
    assert_eq!((&text["content"], &text["prompt"]), (&json!("ab"), &json!("ab")));
    assert!(server.get("/version").json()["version"].is_string());
}
