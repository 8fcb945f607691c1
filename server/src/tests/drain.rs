//! Shutdown of a server.

use std::io::Write;
use std::time::Duration;

use engine_api::serving::{Engine, EngineState};
use serde_json::json;

use super::fake_engine::FakeEngineOptions;
use super::http::{connect, read_reply, request};
use super::test_server::{COMPLETIONS, TestServer, wait_until};
use crate::config::{LogTarget, ServerOptions};
use crate::{ServerError, ShutdownSummary};

#[test]
fn what_has_begun_is_finished_and_nothing_more_begins() {
    let test_server = TestServer::new();
    test_server.engine.hold(true);
    let mut open: Vec<_> = [true, false]
        .map(|stream| {
            let body = json!({"prompt": "abc", "max_tokens": 20, "stream": stream}).to_string();
            let mut connection = connect(test_server.address);
            let bytes = request("POST", COMPLETIONS, "", body.as_bytes());
            connection.write_all(&bytes).expect("sent");
            connection
        })
        .into();
    wait_until("taken", || test_server.engine.open() == 2);
    test_server.request_stop();
    wait_until("draining", || test_server.engine.status().state == EngineState::Draining);
    let health = test_server.get("/health");
    assert_eq!((health.status, &health.json()["error"]["code"]), (503, &json!("draining")));
    assert_eq!(test_server.post(COMPLETIONS, &json!({"prompt": "a"})).status, 503);
    test_server.engine.hold(false);
    let whole = read_reply(&mut open.pop().expect("two"));
    assert_eq!(whole.json()["usage"]["completion_tokens"], 20);
    assert_eq!(read_reply(&mut open.pop().expect("two")).events().len(), 20);
    let address = test_server.address;
    assert_eq!(test_server.join().expect("no error"), ShutdownSummary { aborted_requests: 0 });
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn answers_that_take_too_long_are_cut_at_the_deadline() {
    let drain_timeout = Duration::from_millis(100);
    let manner = FakeEngineOptions {
        step: Duration::from_millis(2),
        context: 1 << 16,
        ..FakeEngineOptions::default()
    };
    let options = ServerOptions { drain_timeout, ..ServerOptions::default() };
    let test_server = TestServer::with_options(manner, options);
    let body = json!({"prompt": "abc", "max_tokens": 4000, "stream": true}).to_string();
    let mut stream = connect(test_server.address);
    stream.write_all(&request("POST", COMPLETIONS, "", body.as_bytes())).expect("sent");
    wait_until("begun", || test_server.engine.open() == 1);
    test_server.request_stop();
    let events = read_reply(&mut stream).events();
    assert_eq!(events.last().expect("an event")["error"]["code"], "shutdown");
    let engine = test_server.engine.clone();
    assert_eq!(test_server.join().expect("no error"), ShutdownSummary { aborted_requests: 1 });
    assert_eq!(engine.cancelled(), 1);
}

#[test]
fn a_server_without_its_engine_ends() {
    let test_server = TestServer::new();
    test_server.engine.set_state(EngineState::Ended);
    assert!(matches!(test_server.join(), Err(ServerError::EngineEnded)));
}

#[test]
fn a_line_is_logged_for_each_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.jsonl");
    let log = Some(LogTarget::File(path.clone()));
    let test_server = TestServer::with_options(
        FakeEngineOptions::default(),
        ServerOptions { log, ..ServerOptions::default() },
    );
    test_server.post(COMPLETIONS, &json!({"prompt": "abc", "max_tokens": 5}));
    test_server
        .post(COMPLETIONS, &json!({"prompt": "abc", "max_tokens": 3, "stream": true, "n": 2}));
    test_server.request_stop();
    test_server.join().expect("no error");
    let text = std::fs::read_to_string(&path).expect("a log");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!(lines[0]["outcome"], "length");
    assert_eq!(lines[0]["completion_tokens"], 5);
    assert_eq!((&lines[1]["answers"], &lines[1]["stream"]), (&json!(2), &json!(true)));
    assert_eq!(lines[1]["outcome"], "length,length");
    assert!(lines.iter().all(|line| line["status"] == 200 && line["prompt_tokens"] == 4));
    assert!(lines.iter().all(|line| line["first_token_ms"].is_number()));
}
