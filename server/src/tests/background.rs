//! Responses in the background.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::byte_codec::{ByteCodec, END_OF_TEXT};

use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, exchange, request};
use super::test_server::{TestServer, wait_until};
use crate::config::{ModelCard, ResponseStorage, ServerOptions};

const RESPONSES: &str = "/v1/responses";

/// Starts a server that stores responses in a directory; each step of its engine takes `step`.
fn server(path: &Path, step: Duration) -> TestServer {
    let engine = FakeEngineOptions { context: 2048, step, ..FakeEngineOptions::default() };
    let card = ModelCard { codec: Some(Arc::new(ByteCodec::CHAT)), ..card("echo") };
    let response_storage = Some(ResponseStorage { path: path.to_owned(), max_bytes: 1 << 20 });
    let options = ServerOptions { response_storage, ..ServerOptions::default() };
    TestServer::with_model(engine, options, card)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn body(text: &str) -> Value {
    json!({"input": format!("{text}{END_OF_TEXT}"), "background": true, "temperature": 0})
}

fn send(server: &TestServer, method: &str, path: &str) -> Reply {
    exchange(server.address, &request(method, path, "", b""))
}

/// Creates a response; returns its path.
fn create(server: &TestServer, body: &Value) -> String {
    let reply = server.post(RESPONSES, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let queued = reply.json();
    assert_eq!((&queued["status"], &queued["background"]), (&"queued".into(), &true.into()));
    assert_eq!((&queued["output"], &queued["usage"]), (&json!([]), &Value::Null));
    format!("{RESPONSES}/{}", queued["id"].as_str().expect("an id"))
}

fn get(server: &TestServer, path: &str) -> Value {
    let reply = server.get(path);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn wait_for(server: &TestServer, path: &str, status: &str) -> Value {
    wait_until(&format!("{path} is never {status}"), || get(server, path)["status"] == status);
    get(server, path)
}

#[test]
fn a_response_is_polled_until_it_is_that_of_a_synchronous_request() {
    let folder = folder();
    let server = server(folder.path(), Duration::from_millis(2));
    let path = create(&server, &body("a question"));
    let mut seen = Vec::new();
    let done = loop {
        let response = get(&server, &path);
        let status = response["status"].as_str().expect("a status").to_owned();
        let has_ended = !["queued", "in_progress"].contains(&&*status);
        seen.push(status);
        if has_ended {
            break response;
        }
    };
    let known = ["queued", "in_progress", "completed"];
    let places: Vec<usize> = seen
        .iter()
        .map(|status| known.iter().position(|one| one == status).expect("a known status"))
        .collect();
    assert!(places.is_sorted(), "{seen:?}");
    let mut synchronous = body("a question");
    synchronous["background"] = json!(false);
    let expected = server.post(RESPONSES, &synchronous).json();
    let content = |response: &Value| response["output"][0]["content"].clone();
    assert_eq!(content(&done), content(&expected));
    assert_eq!(done["usage"]["output_tokens"], expected["usage"]["output_tokens"]);
    // A response that has ended is not changed, and can be continued.
    let cancelled = send(&server, "POST", &format!("{path}/cancel"));
    assert_eq!((cancelled.status, cancelled.json()), (200, done.clone()));
    let next = json!({"input": "more", "previous_response_id": done["id"], "max_output_tokens": 1});
    assert_eq!(server.post(RESPONSES, &next).status, 200);
    let id = expected["id"].as_str().expect("an id");
    let refused = send(&server, "POST", &format!("{RESPONSES}/{id}/cancel"));
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].clone()),
        (400, "response_not_cancellable".into())
    );
}

#[test]
fn a_response_is_cancelled_or_deleted_while_it_is_computed() {
    let folder = folder();
    let server = server(folder.path(), Duration::from_millis(20));
    let long = "long ".repeat(200);
    let path = create(&server, &body(&long));
    wait_for(&server, &path, "in_progress");
    let early = json!({"input": "x", "previous_response_id": path.rsplit('/').next()});
    assert_eq!(server.post(RESPONSES, &early).status, 400);
    let cancelled = send(&server, "POST", &format!("{path}/cancel"));
    assert_eq!((cancelled.status, cancelled.json()["status"].clone()), (200, "cancelled".into()));
    assert_eq!(get(&server, &path), cancelled.json());
    let running = |server: &TestServer| {
        let metrics = server.get("/metrics").text();
        !metrics.contains("tandem_num_requests_open 0")
    };
    wait_until("the engine still computes it", || !running(&server));
    let path = create(&server, &body(&long));
    assert_eq!(send(&server, "DELETE", &path).status, 200);
    wait_until("the engine still computes it", || !running(&server));
    assert_eq!(server.get(&path).status, 404);
    let names = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(names, 1, "the cancelled response alone is stored");
}

#[test]
fn a_response_that_a_server_left_behind_has_failed() {
    let folder = folder();
    let first = server(folder.path(), Duration::ZERO);
    let path = create(&first, &body("x"));
    let done = wait_for(&first, &path, "completed");
    first.request_stop();
    first.join().expect("it ends");
    let file = folder.path().join(format!("{}.json", done["id"].as_str().expect("an id")));
    let mut record: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    record["response"]["status"] = json!("queued");
    std::fs::write(&file, record.to_string()).expect("writable");
    let second = server(folder.path(), Duration::ZERO);
    let found = get(&second, &path);
    assert_eq!(
        (&found["status"], &found["error"]["code"]),
        (&"failed".into(), &"server_error".into())
    );
    let cancelled = send(&second, "POST", &format!("{path}/cancel"));
    assert_eq!(cancelled.json()["status"], "failed");
}

#[test]
fn a_server_that_ends_waits_for_responses_in_the_background() {
    let folder = folder();
    let first = server(folder.path(), Duration::from_millis(5));
    let path = create(&first, &body(&"text ".repeat(10)));
    first.request_stop();
    first.join().expect("it ends");
    let second = server(folder.path(), Duration::ZERO);
    assert_eq!(get(&second, &path)["status"], "completed");
}

#[test]
fn what_cannot_be_in_the_background_is_refused() {
    let folder = folder();
    let stores = server(folder.path(), Duration::ZERO);
    let plain = TestServer::new();
    let cases = [
        (&plain, json!({"input": "x", "background": true}), "background", "--store-responses"),
        (&stores, json!({"input": "x", "background": true, "store": false}), "background", "store"),
        (&stores, json!({"input": "x", "background": true, "stream": true}), "background", "Poll"),
        (&stores, json!({"input": "x", "background": 1}), "background", "boolean"),
        (
            &stores,
            json!({"input": "x", "conversation": "conv_1"}),
            "conversation",
            "'previous_response_id'",
        ),
        (&stores, json!({"prompt": {"id": "pmpt_1"}}), "prompt", "'instructions'"),
    ];
    for (server, body, param, part) in cases {
        let reply = server.post(RESPONSES, &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["param"], param, "{body}: {error}");
        assert!(error["message"].as_str().is_some_and(|text| text.contains(part)), "{error}");
    }
}
