//! Tests of answers with details of their prompts: echo and log-probabilities.

use serde_json::{Value, json};
use testkit::schema::{assert_shape, chat_completion, completion};

use super::fake::{EchoEngine, TestJob};
use crate::outcome::JobOutcome;
use crate::sink::OutputMode;

fn run(lines: &[Value]) -> Vec<Value> {
    let test_job = test_job(lines);
    assert_eq!(
        test_job.run(&mut EchoEngine::new(2)).expect("runs").outcome(),
        JobOutcome::Complete
    );
    written(&test_job)
}

fn test_job(lines: &[Value]) -> TestJob {
    TestJob::new(lines.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes())
}

fn written(test_job: &TestJob) -> Vec<Value> {
    let output = String::from_utf8(test_job.output()).expect("UTF-8");
    output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn choice(line: &Value) -> &Value {
    &line["response"]["body"]["choices"][0]
}

#[test]
fn an_echo_begins_the_answer() {
    let line = json!({"prompt": [97, 98, 99], "echo": true, "logprobs": 1, "max_tokens": 1});
    let lines = run(&[line, json!({"prompt": [100, 101], "echo": true, "max_tokens": 2})]);
    let found = choice(&lines[0]);
    assert_eq!((&found["text"], &found["token_ids"]), (&json!("abca"), &json!([97])));
    let logprobs = &found["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c", "a"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.25, -0.25, -0.25]));
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(logprobs["top_logprobs"][1], json!({"a": -0.75, "b": -0.25}));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(found.get("prompt_logprobs"), Some(&json!(null)));
    let found = choice(&lines[1]);
    assert_eq!((&found["text"], &found["logprobs"]), (&json!("dede"), &json!(null)));
}

#[test]
fn a_prompt_alone_has_no_new_tokens_and_is_not_cut() {
    let lines = [
        json!({"prompt": [97, 98], "echo": true, "logprobs": 0, "max_tokens": 0}),
        json!({"prompt": [97], "echo": true, "logprobs": 0, "max_tokens": 0}),
        json!({"prompt": [97, 98], "prompt_logprobs": 0, "max_tokens": 0}),
    ];
    let test_job = test_job(&lines);
    let summary = test_job.run(&mut EchoEngine::new(2)).expect("runs");
    assert_eq!(summary.to_string(), "3 answered, 0 failed");
    let lines = written(&test_job);
    let known = [json!([null, -0.25]), json!([null]), json!(null)];
    for ((line, text), known) in lines.iter().zip(["ab", "a", ""]).zip(known) {
        let found = choice(line);
        assert_eq!((&found["text"], &found["token_ids"]), (&json!(text), &json!([])));
        assert_eq!(found["finish_reason"], "length");
        assert_eq!(found["logprobs"]["token_logprobs"], known);
        assert_eq!(line["response"]["body"]["usage"]["completion_tokens"], 0);
    }
}

#[test]
fn log_probabilities_of_prompts_are_told_by_token_ids() {
    let lines = [
        json!({"prompt": [97, 98, 99], "prompt_logprobs": 2, "max_tokens": 1}),
        json!({"messages": [{"role": "user", "content": "b"}], "prompt_logprobs": 0}),
    ];
    let lines = run(&lines);
    let found = choice(&lines[0]);
    let token = |logprob: f64, rank: Option<u32>, text: &str| -> Value {
        json!({"logprob": logprob, "rank": rank, "decoded_token": text})
    };
    // The engine returns the token itself and the ones before it in the vocabulary.
    let second = json!({"98": token(-0.25, None, "b"), "97": token(-0.75, Some(1), "a"),
        "96": token(-1.25, Some(2), "`")});
    assert_eq!(found["prompt_logprobs"][0], json!(null));
    assert_eq!(found["prompt_logprobs"][1], second);
    assert_eq!(found["prompt_logprobs"].as_array().map(Vec::len), Some(3));
    assert_eq!((&found["text"], &found["logprobs"]), (&json!("a"), &json!(null)));
    let of_chat = &lines[1]["response"]["body"]["prompt_logprobs"];
    assert_eq!(of_chat.as_array().map(Vec::len), Some("<user>b".len()));
}

#[test]
fn they_ask_for_another_engine_and_survive_an_interruption() {
    let plain = test_job(&[json!({"prompt": "a", "echo": true})]);
    assert!(!plain.prepare().expect("prepared").workload().expect("a demand").evaluates_prompts);
    let mut test_job = test_job(&[
        json!({"prompt": [97, 98], "echo": true, "logprobs": 1, "n": 2, "max_tokens": 2}),
        json!({"prompt": [98, 99], "prompt_logprobs": 1, "max_tokens": 2}),
        json!({"messages": [{"role": "user", "content": "b"}], "prompt_logprobs": 0, "n": 3,
            "return_token_ids": true, "max_tokens": 2}),
    ]);
    let demand = test_job.prepare().expect("prepared").workload().expect("a demand");
    assert!(demand.evaluates_prompts && demand.logprobs == 2);
    test_job.run(&mut EchoEngine::new(2)).expect("runs");
    let of_chat = &written(&test_job)[2]["response"]["body"];
    assert_eq!(of_chat["prompt_logprobs"].as_array().map(Vec::len), Some("<user>b".len()));
    assert_eq!(of_chat["prompt_token_ids"][0], json!(b'<'));
    let whole = test_job.output();
    test_job.options.mode = OutputMode::Resume;
    for bytes in 0..whole.len() {
        std::fs::write(test_job.output_path(), &whole[..bytes]).expect("writable");
        test_job.run(&mut EchoEngine::new(2)).expect("runs");
        assert_eq!(test_job.output(), whole, "{bytes} bytes");
    }
}

#[test]
fn what_has_no_place_for_them_is_refused() {
    let refused = |line: Value, expected: &str| {
        let test_job = test_job(&[line]);
        let _ = test_job.run(&mut EchoEngine::new(1)).expect("runs");
        let message = written(&test_job)[0]["error"]["message"].to_string();
        assert!(message.contains(expected), "{message}");
    };
    refused(json!({"messages": [{"role": "user", "content": "a"}], "echo": true}), "echo");
    refused(json!({"prompt": "a", "prompt_logprobs": -1}), "prompt_logprobs");
    refused(json!({"prompt": "a", "max_tokens": 0}), "max_tokens");
}

#[test]
fn answers_in_files_have_the_fields_of_the_published_schema() {
    let lines = run(&[
        json!({"prompt": "a", "logprobs": 2, "n": 2}),
        json!({"messages": [{"role": "user", "content": "b"}], "logprobs": true, "max_tokens": 3}),
    ]);
    assert_shape(&lines[0]["response"]["body"], &completion());
    assert_shape(&lines[1]["response"]["body"], &chat_completion());
}
