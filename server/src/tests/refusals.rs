//! Requests that are refused, and their errors.

use engine_api::serving::EngineState;
use serde_json::{Value, json};

use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, connect, exchange, read_reply, request};
use super::test_server::{CHAT, COMPLETIONS, TestServer, wait_until};
use crate::api_key::ApiKey;
use crate::config::ServerOptions;

/// Returns the status, code and field of an error.
fn error(test_server: &TestServer, path: &str, body: &[u8]) -> (u16, String, Value) {
    let reply = exchange(test_server.address, &request("POST", path, "", body));
    let error = reply.json()["error"].clone();
    let message = error["message"].as_str().expect("a sentence");
    assert!(message.ends_with('.') && message.len() > 10, "{message}");
    assert!(error["type"].is_string());
    (reply.status, error["code"].as_str().expect("a code").to_owned(), error["param"].clone())
}

#[test]
fn what_is_wrong_is_named() {
    let test_server = TestServer::new();
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let deep_field = [b"{\"prompt\": ".as_slice(), &deep, b"}"].concat();
    let long = json!({"prompt": "a".repeat(300)}).to_string();
    let cases: &[(&[u8], u16, &str, Value)] = &[
        (b"", 400, "invalid_json", json!(null)),
        (b"{\"prompt\": \"a\"", 400, "invalid_json", json!(null)),
        (b"[1]", 400, "invalid_json", json!(null)),
        (b"{\"prompt\": \"\xff\"}", 400, "invalid_utf8", json!(null)),
        (&deep, 400, "invalid_json", json!(null)),
        (&deep_field, 400, "invalid_json", json!(null)),
        (b"{}", 400, "missing_field", json!("prompt")),
        (b"{\"prompt\": []}", 400, "empty_prompt", json!("prompt")),
        (b"{\"prompt\": [300]}", 400, "token_out_of_vocabulary", json!(null)),
        (b"{\"prompt\": \"a\", \"max_tokens\": 0}", 400, "invalid_value", json!("max_tokens")),
        (b"{\"prompt\": \"a\", \"top_p\": 2}", 400, "invalid_value", json!("top_p")),
        (b"{\"prompt\": \"a\", \"suffix\": \"b\"}", 400, "unsupported_field", json!("suffix")),
        (
            b"{\"prompt\": \"a\", \"tempreature\": 1}",
            400,
            "unsupported_field",
            json!("tempreature"),
        ),
        (b"{\"prompt\": \"a\", \"model\": \"gpt\"}", 404, "model_not_found", json!("model")),
        (
            b"{\"prompt\": \"a\", \"stream_options\": 1}",
            400,
            "invalid_value",
            json!("stream_options"),
        ),
        (long.as_bytes(), 400, "context_length_exceeded", json!("prompt")),
    ];
    for (body, status, code, param) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let expected = (*status, (*code).to_owned(), param.clone());
        assert_eq!(error(&test_server, COMPLETIONS, body), expected, "{shown}");
    }
    let echo = br#"{"messages": [{"role": "user", "content": "a"}], "echo": true}"#;
    assert_eq!(error(&test_server, CHAT, echo), (400, "invalid_value".to_owned(), json!("echo")));
    let image = br#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
    assert_eq!(error(&test_server, CHAT, image).1, "unsupported_field");
    assert_eq!(test_server.engine.submissions().len(), 0);
}

#[test]
fn neutral_values_change_nothing() {
    let test_server = TestServer::new();
    let body = json!({
        "prompt": "a", "max_tokens": 1, "repetition_penalty": 1.0, "logprobs": null,
        "frequency_penalty": 0, "presence_penalty": 0.0, "parallel_tool_calls": true,
        "stream_options": {"include_usage": true}, "user": "me", "store": true, "metadata": {},
        "logit_bias": {}, "best_of": 1, "n": 1, "suffix": null, "tools": [], "tool_choice": "auto",
        "min_tokens": 0, "skip_special_tokens": true,
        "use_beam_search": false, "return_token_ids": true, "verbosity": "medium",
    });
    let reply = test_server.post(COMPLETIONS, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let options = ServerOptions { ignore_unknown_fields: true, ..ServerOptions::default() };
    let lenient = TestServer::with_options(FakeEngineOptions::default(), options);
    let body = json!({"prompt": "a", "max_tokens": 1, "nonsense": 5, "suffix": "b"});
    assert_eq!(lenient.post(COMPLETIONS, &body).status, 200);
}

#[test]
fn paths_and_methods_that_there_are_not() {
    let test_server = TestServer::new();
    let wrong = test_server.post("/v1/moderations", &json!({}));
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (404, &json!("unknown_url")));
    let wrong = test_server.get(CHAT);
    assert_eq!((wrong.status, &wrong.json()["error"]["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(wrong.header("allow").as_deref(), Some("POST"));
    assert_eq!(exchange(test_server.address, b"nonsense\r\n\r\n").status, 400);
}

#[test]
fn only_who_shows_the_key_is_answered() {
    let options = ServerOptions { api_key: Some(ApiKey::new("k3y")), ..ServerOptions::default() };
    let test_server = TestServer::with_options(FakeEngineOptions::default(), options);
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let send = |headers: &str| {
        exchange(test_server.address, &request("POST", COMPLETIONS, headers, body.as_bytes()))
    };
    for wrong in ["", "Authorization: Bearer k3\r\n", "Authorization: Basic k3y\r\n"] {
        let reply = send(wrong);
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (401, &json!("invalid_api_key"))
        );
        assert_eq!(reply.header("www-authenticate").as_deref(), Some("Bearer"));
    }
    assert_eq!(send("Authorization: Bearer k3y\r\n").status, 200);
    assert_eq!(test_server.get("/v1/models").status, 401);
    assert_eq!(test_server.get("/metrics").status, 401);
    assert_eq!(test_server.get("/health").status, 200, "a probe has no key");
}

#[test]
fn who_finds_no_room_is_told_when_to_come_back() {
    let manner = FakeEngineOptions { slots: 1, ..FakeEngineOptions::default() };
    let options = ServerOptions { max_queue: 1, max_queue_tokens: 40, ..ServerOptions::default() };
    let test_server = TestServer::with_options(manner, options);
    test_server.engine.hold(true);
    let send = |body: Value| {
        let mut stream = connect(test_server.address);
        let bytes = request("POST", COMPLETIONS, "", body.to_string().as_bytes());
        std::io::Write::write_all(&mut stream, &bytes).expect("sent");
        stream
    };
    let full = |reply: super::http::Reply, code: &str| {
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (429, &json!(code)));
        let seconds: u64 = reply.header("retry-after").expect("a time").parse().expect("seconds");
        assert!((1..=60).contains(&seconds));
    };
    let mut first = send(json!({"prompt": "a".repeat(100), "max_tokens": 2}));
    wait_until("taken", || test_server.engine.open() == 1);
    let prompt = "b".repeat(20);
    full(test_server.post(COMPLETIONS, &json!({"prompt": prompt})), "queue_tokens_full");
    let never = test_server.post(COMPLETIONS, &json!({"prompt": "a", "n": 3}));
    assert_eq!((never.status, &never.json()["error"]["code"]), (400, &json!("too_many_answers")));
    test_server.engine.hold(false);
    assert_eq!(read_reply(&mut first).status, 200);
    test_server.engine.hold(true);
    let mut others: Vec<_> =
        (0..2).map(|_| send(json!({"prompt": "a", "max_tokens": 2}))).collect();
    wait_until("taken", || test_server.engine.open() == 2);
    full(test_server.post(COMPLETIONS, &json!({"prompt": "a"})), "queue_full");
    full(test_server.post("/tokenize", &json!({"prompt": "a"})), "queue_full");
    test_server.engine.hold(false);
    assert!(others.iter_mut().all(|stream| read_reply(stream).status == 200));
    assert_eq!(test_server.post(COMPLETIONS, &json!({"prompt": "a"})).status, 200);
}

#[test]
fn a_server_that_is_not_ready_says_so() {
    let test_server = TestServer::new();
    let unavailable = |reply: Reply, code: &str| {
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!(code)));
        assert!(reply.header("retry-after").is_some());
    };
    test_server.engine.set_state(EngineState::Loading);
    unavailable(test_server.get("/health"), "loading");
    assert_eq!(test_server.post(COMPLETIONS, &json!({"prompt": "a"})).status, 200, "it is taken");
    test_server.engine.set_state(EngineState::Draining);
    unavailable(test_server.get("/health"), "draining");
    unavailable(test_server.post(COMPLETIONS, &json!({"prompt": "a"})), "draining");
    assert_eq!(test_server.get("/v1/models").status, 200);
    test_server.engine.set_state(EngineState::Ready);
    assert_eq!(test_server.post(COMPLETIONS, &json!({"prompt": "a"})).status, 200);
}

#[test]
fn a_tokenizer_that_keeps_failing_is_the_servers_fault() {
    let test_server = TestServer::new();
    let is_internal = |error: &Value| {
        assert_eq!(error["type"], "server_error", "{error}");
        assert_eq!(error["code"], "internal_error", "{error}");
        assert!(
            error["message"].as_str().is_some_and(|message| message.contains("asleep")),
            "{error}"
        );
    };
    // The tokenizer fails for a prompt, for a complete answer and, below, for a streamed one.
    let asked = [json!({"prompt": "\u{2}"}), json!({"prompt": [97, 290], "max_tokens": 3})];
    for body in asked {
        let reply = test_server.post(COMPLETIONS, &body);
        assert_eq!(reply.status, 500, "{}", reply.text());
        is_internal(&reply.json()["error"]);
    }
    let body = json!({"prompt": [97, 290], "max_tokens": 3, "stream": true});
    let events = test_server.post(COMPLETIONS, &body).events();
    is_internal(&events.last().expect("events")["error"]);
    let tokenize = test_server.post("/tokenize", &json!({"prompt": "\u{2}"}));
    assert_eq!(tokenize.status, 500);
    // Other requests are answered.
    assert_eq!(test_server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 3})).status, 200);
}
