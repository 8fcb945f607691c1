//! A client of the Files and Batch APIs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, exchange, request};
use super::test_server::{TestServer, wait_until};
use crate::config::{BatchStorageOptions, ServerOptions};

pub(super) const FILES: &str = "/v1/files";
pub(super) const BATCHES: &str = "/v1/batches";
const BOUNDARY: &str = "XX";

/// Returns options of a server with a directory of batches.
pub(super) fn storage(path: &Path, max_bytes: u64) -> ServerOptions {
    let (path, max_file_bytes) = (path.to_owned(), 1 << 20);
    let batch_storage = Some(BatchStorageOptions { path, max_bytes, max_file_bytes });
    ServerOptions { batch_storage, ..ServerOptions::default() }
}

/// Starts a server that keeps its batches in a directory; each step of its engine takes `step`.
pub(super) fn server(path: &Path, step: Duration) -> TestServer {
    let engine = FakeEngineOptions { step, slots: 2, ..FakeEngineOptions::default() };
    TestServer::with_options(engine, storage(path, 64 << 20))
}

/// Returns a multipart body of fields and a file.
pub(super) fn form(fields: &[(&str, &str)], file: Option<(&str, &[u8])>) -> Vec<u8> {
    let mut body = String::new();
    for (name, value) in fields {
        let _ = write!(
            body,
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
        );
    }
    let mut body = body.into_bytes();
    if let Some((name, content)) = file {
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; \
             filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        body.extend(head.into_bytes());
        body.extend(content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{BOUNDARY}--\r\n").into_bytes());
    body
}

pub(super) fn post_form(server: &TestServer, body: &[u8]) -> Reply {
    let kind = format!("Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n");
    exchange(server.address, &request("POST", FILES, &kind, body))
}

/// Uploads an input of batches; returns its id.
pub(super) fn upload(server: &TestServer, content: &[u8]) -> String {
    let reply = post_form(server, &form(&[("purpose", "batch")], Some(("in.jsonl", content))));
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["id"].as_str().expect("an id").to_owned()
}

/// Creates a batch of completions; returns its id.
pub(super) fn create(server: &TestServer, file: &str, window: &str) -> String {
    create_for(server, "/v1/completions", file, window)
}

/// Creates a batch for an endpoint; returns its id.
pub(super) fn create_for(server: &TestServer, url: &str, file: &str, window: &str) -> String {
    let body = json!({"input_file_id": file, "endpoint": url,
        "completion_window": window, "metadata": {"name": "a batch"}});
    let reply = server.post(BATCHES, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["id"].as_str().expect("an id").to_owned()
}

pub(super) fn send(server: &TestServer, method: &str, path: &str) -> Reply {
    exchange(server.address, &request(method, path, "", b""))
}

pub(super) fn batch(server: &TestServer, id: &str) -> Value {
    let reply = server.get(&format!("{BATCHES}/{id}"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// Waits until a batch has the status; returns it.
pub(super) fn wait_for(server: &TestServer, id: &str, status: &str) -> Value {
    let what = format!("batch {id} is never {status}");
    wait_until(&what, || batch(server, id)["status"] == status);
    batch(server, id)
}

/// Returns the content of a file that a batch names.
pub(super) fn content(server: &TestServer, id: &Value) -> String {
    let id = id.as_str().expect("a file");
    let reply = server.get(&format!("{FILES}/{id}/content"));
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.text()
}

/// Returns a line of an input.
pub(super) fn line(id: &str, body: &Value) -> String {
    let line = json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body});
    format!("{line}\n")
}

/// Returns an input of valid lines, some with several answers.
pub(super) fn lines(count: usize) -> String {
    let body = |i: usize| {
        json!({"model": "echo", "prompt": format!("prompt {i}"), "max_tokens": 3 + i % 9,
            "n": 1 + i % 3, "temperature": (i % 2) as f64})
    };
    (0..count).map(|i| line(&format!("request-{i}"), &body(i))).collect()
}
