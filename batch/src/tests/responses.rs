//! Tests of lines of the Responses API, between lines of other endpoints.

use openai::input_line::ErrorCode;
use serde_json::{Value, json};

use super::fake::{EchoEngine, TestJob};
use crate::outcome::JobOutcome;
use crate::sink::OutputMode;

fn line(id: &str, url: &str, body: &Value) -> String {
    format!("{}\n", json!({"custom_id": id, "method": "POST", "url": url, "body": body}))
}

fn response_line(id: &str, body: &Value) -> String {
    line(id, "/v1/responses", body)
}

fn input() -> String {
    let cut = json!({"input": "a long question", "max_output_tokens": 3, "instructions": "Be brief",
        "metadata": {"key": "value"}});
    // The echo ends at the token that ends its prompt's text.
    let whole = json!({"input": [{"role": "user", "content": "an end\u{3}"}], "temperature": 0,
        "top_logprobs": 1});
    let chat = json!({"messages": [{"role": "user", "content": "a chat"}], "max_tokens": 2});
    [
        response_line("cut", &cut),
        line("chat", "/v1/chat/completions", &chat),
        response_line("whole", &whole),
        response_line("bad", &json!({"input": "x", "stream": true})),
    ]
    .concat()
}

fn parsed(output: &[u8]) -> Vec<Value> {
    let lines = output.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| serde_json::from_slice(line).expect("a line")).collect()
}

#[test]
fn a_line_has_a_response_object() {
    let test_job = TestJob::new(input().as_bytes());
    let summary = test_job.run(&mut EchoEngine::new(3)).expect("answers");
    assert_eq!((summary.answered, summary.failed_lines.as_slice()), (3, &[4][..]));
    assert_eq!(summary.truncated_lines, [1, 2]);
    let lines = parsed(&test_job.output());
    let cut = &lines[0]["response"];
    assert_eq!((&cut["status_code"], &cut["system_fingerprint"]), (&json!(200), &"fp_test".into()));
    let body = &cut["body"];
    assert_eq!((&body["object"], &body["status"]), (&"response".into(), &"incomplete".into()));
    assert_eq!(body["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!((&body["created_at"], &body["completed_at"]), (&json!(1_700_000_000), &Value::Null));
    assert_eq!((&body["model"], &body["store"]), (&"echo".into(), &false.into()));
    assert_eq!(
        (&body["instructions"], &body["metadata"]["key"]),
        (&"Be brief".into(), &"value".into())
    );
    assert_eq!(body["usage"]["output_tokens"], 3);
    assert_eq!(body["output"][0]["status"], "incomplete");
    assert_eq!(lines[1]["response"]["body"]["object"], "chat.completion");
    let whole = &lines[2]["response"]["body"];
    assert_eq!(
        (&whole["status"], &whole["completed_at"]),
        (&"completed".into(), &whole["created_at"])
    );
    let part = &whole["output"][0]["content"][0];
    assert!(part["text"].as_str().is_some_and(|text| !text.is_empty()), "{whole}");
    let logprobs = part["logprobs"].as_array().expect("log-probabilities");
    assert!(
        logprobs.iter().all(|one| one["top_logprobs"].as_array().is_some_and(|top| top.len() == 1))
    );
}

#[test]
fn a_job_that_was_cut_anywhere_is_resumed() {
    let mut test_job = TestJob::new(input().as_bytes());
    test_job.run(&mut EchoEngine::new(2)).expect("answers");
    let output = test_job.output();
    test_job.options.mode = OutputMode::Resume;
    for cut in (0..=output.len()).step_by(7) {
        std::fs::write(test_job.output_path(), &output[..cut]).expect("writable");
        test_job.run(&mut EchoEngine::new(2)).expect("answers");
        assert_eq!(test_job.output(), output, "cut at {cut}");
    }
    // Answers of another system, and to other settings, are not continued.
    test_job.fingerprint = "fp_other".to_owned();
    assert!(test_job.prepare().is_err());
    let changed = input().replace("\"value\"", "\"other\"");
    let mut changed = TestJob::new(changed.as_bytes());
    std::fs::write(changed.output_path(), &output).expect("writable");
    changed.options.mode = OutputMode::Resume;
    assert!(changed.prepare().is_err());
}

#[test]
fn fields_that_need_a_server_are_refused_by_their_names() {
    let cases = [
        (json!({"input": "x", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "conversation": "conv_1"}), "conversation"),
        (json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), "item_reference"),
        (json!({"input": "x", "stream": true}), "stream"),
        (json!({"input": "x", "unheard": 1}), "unheard"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({}), "input"),
    ];
    let input: String = cases
        .iter()
        .enumerate()
        .map(|(i, (body, _))| response_line(&i.to_string(), body))
        .collect();
    let test_job = TestJob::new(input.as_bytes());
    let summary = test_job.run(&mut EchoEngine::new(1)).expect("errors");
    assert_eq!(summary.outcome(), JobOutcome::Partial);
    for ((body, named), line) in cases.iter().zip(parsed(&test_job.output())) {
        let message = line["error"]["message"].as_str().unwrap_or_else(|| panic!("{body}: {line}"));
        assert!(message.contains(named), "{body}: {message}");
        let internal = ErrorCode::InternalError.name();
        assert!(line["error"]["code"] != internal, "{body}: {line}");
    }
}

#[test]
fn a_conversation_is_truncated_if_that_is_allowed() {
    let turn = |text: &str| json!({"role": "user", "content": text});
    let body = |truncation: &str| {
        let items = [turn(&"long ".repeat(20)), turn("end")];
        json!({"input": items, "truncation": truncation, "max_output_tokens": 2})
    };
    let input = response_line("auto", &body("auto")) + &response_line("no", &body("disabled"));
    let test_job = TestJob::new(input.as_bytes());
    test_job.run(&mut EchoEngine::new(1)).expect("an answer");
    let lines = parsed(&test_job.output());
    assert_eq!(lines[0]["response"]["body"]["truncation"], "auto");
    assert_eq!(lines[1]["error"]["code"], ErrorCode::ContextLengthExceeded.name());
}
