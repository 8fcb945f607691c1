//! Unusual requests: each gets an answer, and each refusal has an error object.

use std::io::Write;
use std::net::Shutdown;

use serde_json::json;

use super::fake_engine::FakeEngineOptions;
use super::http::{connect, exchange, read_reply, request};
use super::test_server::{CHAT, COMPLETIONS, TestServer, wait_until};
use crate::config::{LogTarget, ServerOptions};

#[test]
fn a_head_that_is_too_large_or_malformed_gets_an_error_object() {
    let test_server = TestServer::new();
    let many: String = (0..500).map(|index| format!("X{index}: a\r\n")).collect();
    let large = format!("X: {}\r\n", "a".repeat(100_000));
    for (headers, status, code) in
        [(many, 431, "headers_too_large"), (large, 431, "headers_too_large")]
    {
        let reply = exchange(test_server.address, &request("GET", "/health", &headers, b""));
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (status, &json!(code)));
    }
    let reply = exchange(test_server.address, b"nonsense\r\n\r\n");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("invalid_http")));
    let some: String = (0..90).map(|index| format!("X{index}: a\r\n")).collect();
    assert_eq!(exchange(test_server.address, &request("GET", "/health", &some, b"")).status, 200);
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let test_server = TestServer::new();
    let body = "\u{feff}{\"prompt\": \"a\", \"max_tokens\": 1}";
    let reply = exchange(test_server.address, &request("POST", COMPLETIONS, "", body.as_bytes()));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn a_client_that_closes_its_side_gets_its_answer() {
    let test_server = TestServer::new();
    for streams in [false, true] {
        test_server.engine.hold(true);
        let body = json!({"prompt": "ab", "max_tokens": 20, "stream": streams}).to_string();
        let mut stream = connect(test_server.address);
        let bytes = request("POST", COMPLETIONS, "", body.as_bytes());
        stream.write_all(&bytes).expect("sent");
        stream.shutdown(Shutdown::Write).expect("a socket");
        wait_until("taken", || test_server.engine.open() == 1);
        // Exceeds the time after which the server notices that the client has shut down its sending
        // side.
        std::thread::sleep(std::time::Duration::from_millis(700));
        test_server.engine.hold(false);
        let reply = read_reply(&mut stream);
        assert_eq!(reply.status, 200);
        if streams {
            assert_eq!(reply.events().len(), 20);
        } else {
            assert_eq!(reply.json()["usage"]["completion_tokens"], 20);
        }
    }
}

#[test]
fn who_is_gone_while_a_whole_answer_is_computed_is_noticed() {
    let test_server = TestServer::new();
    for streams in [false, true] {
        test_server.engine.hold(true);
        let body = json!({"prompt": "ab", "max_tokens": 200, "stream": streams}).to_string();
        let mut stream = connect(test_server.address);
        let bytes = request("POST", COMPLETIONS, "", body.as_bytes());
        stream.write_all(&bytes).expect("sent");
        wait_until("taken", || test_server.engine.open() == 1);
        drop(stream);
        wait_until("its place is back", || test_server.engine.open() == 0);
        test_server.engine.hold(false);
    }
    assert!(test_server.engine.cancelled() > 0);
}

#[test]
fn a_path_that_is_no_text_has_no_model() {
    let test_server = TestServer::new();
    let reply = test_server.get("/v1/models/%ff");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn endpoints_are_named_and_need_no_prefix() {
    let test_server = TestServer::new();
    let wrong = test_server.post("/v1/moderations", &json!({}));
    let message = wrong.json()["error"]["message"].as_str().expect("a sentence").to_owned();
    for endpoint in ["POST /v1/chat/completions", "GET /v1/models", "POST /tokenize"] {
        assert!(message.contains(endpoint), "{message}");
    }
    let body = json!({"prompt": "a", "max_tokens": 1});
    assert_eq!(test_server.post("/completions", &body).status, 200);
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    assert_eq!(test_server.post("/chat/completions", &chat).status, 200);
    assert_eq!(test_server.get("/models").json(), test_server.get("/v1/models").json());
    assert_eq!(test_server.get("/models/org/echo").status, 200);
    assert_eq!(test_server.get(CHAT).status, 405);
}

#[test]
fn requests_have_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let options =
        ServerOptions { log: Some(LogTarget::File(path.clone())), ..ServerOptions::default() };
    let test_server = TestServer::with_options(FakeEngineOptions::default(), options);
    let body = br#"{"prompt": "a", "max_tokens": 1}"#;
    let named = |headers: &str| {
        let reply = exchange(test_server.address, &request("POST", COMPLETIONS, headers, body));
        reply.header("x-request-id").expect("a name")
    };
    assert_eq!(named("X-Request-Id: mine-1\r\n"), "mine-1");
    let (first, second) = (named(""), named(""));
    assert!(first.starts_with("req_") && first != second, "{first} {second}");
    for odd in ["a b".to_owned(), "x".repeat(200), "\u{e9}".to_owned()] {
        let name = named(&format!("X-Request-Id: {odd}\r\n"));
        assert!(name.starts_with("req_"), "{name}");
    }
    let refused =
        exchange(test_server.address, &request("POST", COMPLETIONS, "X-Request-Id: r\r\n", b""));
    assert_eq!((refused.status, refused.header("x-request-id").as_deref()), (400, Some("r")));
    assert!(test_server.get("/nothing").header("x-request-id").is_some());
    wait_until("logged", || {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        log.contains("\"request_id\":\"mine-1\"") && log.contains(&first)
    });
}
