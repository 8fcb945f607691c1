//! Batches: their answers are those of a job, whatever happens meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use batch::prepare::{JobOptions, ModelInfo, PreparedJob};
use batch::progress::SilentProgress;
use batch::progress_counter::ProgressCounter;
use batch::serving_adapter::ServingAdapter;
use batch::sink::{IoTarget, OutputMode};
use engine_api::serving::{EngineState, Priority};
use openai::body::defaults::Defaults;
use openai::chats::ChatOptions;
use openai::prompt::ModelLimits;
use serde_json::{Value, json};
use testkit::byte_codec::ByteCodec;

use super::batch_client::{
    BATCHES, batch, content, create, line, lines, send, server, storage, upload, wait_for,
};
use super::fake_engine::{FakeEngine, FakeEngineOptions};
use super::test_server::{COMPLETIONS, TestServer, wait_until};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Returns the output of a job with the stored file as its input.
fn job_output(folder: &Path, file: &str) -> String {
    let (engine, steps) = FakeEngine::start(FakeEngineOptions::default());
    let output = folder.join("expected");
    let options = JobOptions {
        input: IoTarget::File(folder.join(format!("{file}.jsonl"))),
        output: IoTarget::File(output.clone()),
        mode: OutputMode::Overwrite,
        chat: false,
        chat_options: ChatOptions::default(),
        max_tokens: None,
        seed: 0,
        defaults: Defaults::default(),
        ignore_unknown_fields: false,
        bounds: None,
    };
    let limits = ModelLimits { context: 256, vocab_size: 300, unsupported_tokenizer: None };
    let codec = ByteCodec::CHAT;
    let (name, aliases) = ("echo".to_owned(), vec!["org/echo".to_owned()]);
    let model = ModelInfo { name, aliases, limits, codec: Some(&codec) };
    let job = PreparedJob::prepare(&options, model, &mut ProgressCounter::silent(), &|| false);
    let job = job.and_then(|job| job.resume("fp_test".to_owned())).expect("a job");
    let grammars = job.grammars().into_iter().map(Arc::new).collect();
    let mut adapter = ServingAdapter::new(&*engine, grammars, &|| false);
    job.run(Some(&mut adapter), &mut SilentProgress, &|| false).expect("answers");
    engine.set_state(EngineState::Ended);
    steps.join().expect("it ends");
    std::fs::read_to_string(&output).expect("an output")
}

#[test]
fn the_output_of_a_batch_is_that_of_a_job() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    let file = upload(&server, lines(40).as_bytes());
    let id = create(&server, &file, "24h");
    let done = wait_for(&server, &id, "completed");
    assert_eq!(done["request_counts"], json!({"total": 40, "completed": 40, "failed": 0}));
    assert_eq!(content(&server, &done["output_file_id"]), job_output(folder.path(), &file));
    for null in ["errors", "error_file_id", "failed_at", "expired_at", "cancelled_at"] {
        assert!(done[null].is_null(), "{null}: {done}");
    }
    for time in ["created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at"] {
        assert!(done[time].as_u64() > Some(1_700_000_000), "{time}: {done}");
    }
    assert_eq!(done["metadata"], json!({"name": "a batch"}));
    assert_eq!((&done["object"], &done["model"]), (&"batch".into(), &"echo".into()));
    let usage = &done["usage"];
    assert!(usage["output_tokens"].as_u64() > Some(0), "{usage}");
    let output = server.get(&format!("/v1/files/{}", done["output_file_id"].as_str().expect("id")));
    assert_eq!(output.json()["purpose"], "batch_output");
    assert_eq!(output.json()["filename"], format!("{id}_output.jsonl"));
    let submissions = server.engine.submissions();
    assert!(submissions.iter().all(|request| request.priority == Priority::Background));
    let metrics = server.get("/metrics").text();
    for found in [
        "tandem_batches_ended_total{status=\"completed\"} 1",
        "tandem_batch_requests_total{outcome=\"completed\"} 40",
        "tandem_batches_open 0",
        "tandem_batch_files 2",
    ] {
        assert!(metrics.contains(found), "{found}: {metrics}");
    }
}

#[test]
fn lines_that_are_refused_are_in_the_error_file() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    let good = json!({"prompt": "a", "max_tokens": 2});
    let wide = json!({"prompt": vec!["a"; 200], "n": 128, "max_tokens": 2});
    let large = json!({"prompt": vec!["a"; 8], "max_tokens": 200, "n": 128, "logprobs": 20});
    let chat = "{\"custom_id\": \"c\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \
                \"body\": {\"messages\": []}}\n";
    let input = [
        line("a", &good),
        "not JSON\n".to_owned(),
        line("a", &good),
        chat.to_owned(),
        "{\"prompt\": \"short\"}\n".to_owned(),
        line("m", &json!({"model": "gpt-x", "prompt": "a"})),
        line("w", &wide),
        line("s", &json!({"prompt": "a", "stream": true})),
        line("l", &large),
        line("b", &good),
    ]
    .concat();
    let file = upload(&server, input.as_bytes());
    let id = create(&server, &file, "24h");
    let done = wait_for(&server, &id, "completed");
    assert_eq!(done["request_counts"], json!({"total": 10, "completed": 2, "failed": 8}));
    let parse = |id: &Value| -> Vec<Value> {
        let text = content(&server, id);
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let output = parse(&done["output_file_id"]);
    let ids: Vec<&Value> = output.iter().map(|line| &line["custom_id"]).collect();
    assert_eq!(ids, ["a", "b"]);
    let errors = parse(&done["error_file_id"]);
    let found: Vec<(u64, &str)> = errors
        .iter()
        .map(|line| {
            let error = &line["error"];
            (error["line"].as_u64().expect("a line"), error["code"].as_str().expect("a code"))
        })
        .collect();
    let expected = [
        (2, "invalid_json"),
        (3, "duplicate_custom_id"),
        (4, "unsupported_url"),
        (5, "missing_field"),
        (6, "model_not_found"),
        (7, "invalid_value"),
        (8, "unsupported_field"),
        (9, "invalid_value"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_batch_that_cannot_run_fails_with_the_reason() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    let many = b"x\n".repeat(50_001);
    for (input, code) in [
        (b"\n \n".as_slice(), "empty_file"),
        (b"[{\"prompt\": \"a\"}]", "invalid_file_format"),
        (b"\x1f\x8b\x08 compressed", "invalid_file_format"),
        (&many, "too_many_requests"),
    ] {
        let file = upload(&server, input);
        let id = create(&server, &file, "24h");
        let done = wait_for(&server, &id, "failed");
        assert_eq!(done["errors"]["data"][0]["code"], code, "{done}");
        assert!(done["failed_at"].is_u64() && done["output_file_id"].is_null());
    }
    let missing = format!("file-{}", "0".repeat(32));
    let body = json!({"input_file_id": missing, "endpoint": "/v1/completions",
        "completion_window": "24h"});
    let reply = server.post(BATCHES, &body);
    assert_eq!(
        (reply.status, reply.json()["error"]["param"].clone()),
        (400, "input_file_id".into())
    );
    for path in ["/v1/batches/batch_0", "/v1/batches/..%2flock"] {
        let reply = server.get(path);
        assert_eq!(reply.status, 404);
        assert!(reply.text().contains("No batch found with id"), "{}", reply.text());
    }
}

#[test]
fn an_engine_that_keeps_failing_ends_the_batch_with_its_answers() {
    let folder = folder();
    let fails_at = Some(u32::from(b'!'));
    let step = Duration::from_millis(5);
    let engine = FakeEngineOptions { fails_at, step, ..FakeEngineOptions::default() };
    let server = TestServer::with_options(engine, storage(folder.path(), 1 << 20));
    let good = json!({"prompt": "abc", "max_tokens": 1});
    // It fails so late that the first attempt has written the other line's answer: an attempt that
    // adds an answer begins the count of failures anew.
    let late = json!({"prompt": "a".repeat(100) + "!", "max_tokens": 120});
    let input = line("a", &good) + &line("b", &late);
    let file = upload(&server, input.as_bytes());
    let id = create(&server, &file, "24h");
    let done = wait_for(&server, &id, "failed");
    assert_eq!(done["errors"]["data"][0]["code"], "engine_error", "{done}");
    assert_eq!(done["request_counts"], json!({"total": 2, "completed": 1, "failed": 0}));
    assert_eq!(content(&server, &done["output_file_id"]).lines().count(), 1);
    assert!(server.get("/metrics").text().contains("tandem_batch_retries_total 2"));
}

#[test]
fn a_cancelled_batch_keeps_its_answers() {
    let folder = folder();
    let server = server(folder.path(), Duration::from_millis(5));
    let file = upload(&server, lines(400).as_bytes());
    let [first, second] = [0; 2].map(|_| create(&server, &file, "24h"));
    wait_until("no answer is written", || {
        batch(&server, &first)["request_counts"]["completed"].as_u64() > Some(0)
    });
    let cancel = |id: &str| send(&server, "POST", &format!("{BATCHES}/{id}/cancel"));
    let waiting = cancel(&second).json();
    assert_eq!(waiting["status"], "cancelled", "it has not begun: {waiting}");
    let reply = cancel(&first).json();
    assert!(reply["cancelling_at"].is_u64(), "{reply}");
    let done = wait_for(&server, &first, "cancelled");
    let completed = done["request_counts"]["completed"].as_u64().expect("a number");
    assert!((1..400).contains(&completed), "{done}");
    assert_eq!(done["request_counts"]["total"], 400);
    let output = content(&server, &done["output_file_id"]);
    assert_eq!(output.lines().count() as u64, completed);
    let expected = job_output(folder.path(), &file);
    let expected: Vec<&str> = expected.lines().collect();
    assert!(output.lines().all(|line| expected.contains(&line)), "whole answers");
    let refused = cancel(&first);
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("Cannot cancel a batch with status 'cancelled'."));
    wait_until("its sequences still run", || server.engine.open() == 0);
}

#[test]
fn a_batch_expires_with_an_error_for_each_request_that_is_left() {
    let folder = folder();
    let server = server(folder.path(), Duration::ZERO);
    server.engine.hold(true);
    let input = lines(3) + "no JSON\n";
    let file = upload(&server, input.as_bytes());
    let id = create(&server, &file, "1s");
    let done = wait_for(&server, &id, "expired");
    assert_eq!(done["request_counts"], json!({"total": 4, "completed": 0, "failed": 4}));
    assert!(done["expired_at"].is_u64() && done["output_file_id"].is_null());
    let errors = content(&server, &done["error_file_id"]);
    let errors: Vec<Value> =
        errors.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let codes: Vec<&Value> = errors.iter().map(|line| &line["error"]["code"]).collect();
    assert_eq!(codes, ["invalid_json", "batch_expired", "batch_expired", "batch_expired"]);
    assert_eq!(errors[1]["custom_id"], "request-0");
    server.engine.hold(false);
}

#[test]
fn a_server_that_ends_continues_its_batches_with_the_next_start() {
    let folder = folder();
    let first = server(folder.path(), Duration::from_millis(2));
    let file = upload(&first, (lines(400) + "no JSON\n").as_bytes());
    let [id, later] = [0; 2].map(|_| create(&first, &file, "24h"));
    drop(first);
    let mut counts = Vec::new();
    for _ in 0..3 {
        let server = server(folder.path(), Duration::from_millis(2));
        wait_until("no progress", || {
            let completed = batch(&server, &id)["request_counts"]["completed"].as_u64();
            completed > counts.last().copied().or(Some(0))
        });
        counts.extend(batch(&server, &id)["request_counts"]["completed"].as_u64());
        assert_eq!(batch(&server, &later)["status"], "validating");
    }
    let server = server(folder.path(), Duration::ZERO);
    for id in [&id, &later] {
        let done = wait_for(&server, id, "completed");
        assert_eq!(done["request_counts"], json!({"total": 401, "completed": 400, "failed": 1}));
        let output = content(&server, &done["output_file_id"]);
        let expected = job_output(folder.path(), &file);
        let expected: Vec<&str> =
            expected.lines().filter(|line| line.contains("\"error\":null")).collect();
        assert_eq!(output.lines().collect::<Vec<_>>(), expected);
    }
    let page = server.get(&format!("{BATCHES}?limit=1")).json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&later.clone().into(), &true.into()));
    let page = server.get(&format!("{BATCHES}?limit=1&after={later}")).json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&id.into(), &false.into()));
}

#[test]
fn requests_are_answered_while_a_batch_runs() {
    let folder = folder();
    let server = server(folder.path(), Duration::from_millis(1));
    let file = upload(&server, lines(100).as_bytes());
    let id = create(&server, &file, "24h");
    for i in 0..20 {
        let body = json!({"prompt": format!("ask {i}"), "max_tokens": 3});
        let reply = server.post(COMPLETIONS, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(wait_for(&server, &id, "completed")["request_counts"]["completed"], 100);
}
