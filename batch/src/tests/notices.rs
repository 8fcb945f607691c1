//! Tests of the notes that a job prints before it runs, about requests that are answered in another
//! way than they ask for.

use serde_json::{Value, json};

use super::fake::{EchoEngine, TestJob};

fn batch_line(id: usize, body: &Value) -> String {
    let url = "/v1/completions";
    let line = json!({"custom_id": id.to_string(), "method": "POST", "url": url, "body": body});
    format!("{line}\n")
}

fn test_job(bodies: &[Value]) -> TestJob {
    let lines = bodies.iter().enumerate().map(|(id, body)| batch_line(id, body));
    TestJob::new(lines.collect::<String>().as_bytes())
}

#[test]
fn requests_for_other_models_are_told_of_once() {
    let named = |model: Value| json!({"model": model, "prompt": "a", "max_tokens": 1});
    let own = test_job(&[named(json!("echo")), named(json!("org/echo")), named(json!(null))]);
    assert_eq!(own.prepare().expect("prepared").notes(), [""; 0]);
    let mut bodies = vec![named(json!("echo"))];
    bodies.extend((0..3).map(|_| named(json!("gpt-4o\u{1b}[2J"))));
    bodies.push(named(json!("another")));
    let test_job = test_job(&bodies);
    let expected = "echo answers all requests, including those for other models: another, \
                    gpt-4o\u{fffd}[2J.";
    assert_eq!(test_job.prepare().expect("prepared").notes(), [expected]);
    // These requests are answered nevertheless.
    assert_eq!(test_job.run(&mut EchoEngine::new(2)).expect("runs").answered, 5);
}

#[test]
fn answers_that_the_context_shortens_are_told_of_once() {
    let body = |max_tokens: u32| json!({"prompt": [97, 98], "max_tokens": max_tokens});
    let job_with_warning = test_job(&[body(62), body(63)]);
    let warning = "max_tokens was reduced to 62: the maximum context length is 64 tokens and the \
                   prompt has 2.";
    assert_eq!(
        job_with_warning.prepare().expect("prepared").notes(),
        [format!("line 2: {warning}")]
    );
    let test_job = test_job(&[body(5), body(100), body(9999)]);
    let expected = format!(
        "2 of 3 lines have warnings, which are part of their answers; the first warning is in \
         line 2: {warning}"
    );
    assert_eq!(test_job.prepare().expect("prepared").notes(), [expected]);
    test_job.run(&mut EchoEngine::new(2)).expect("runs");
    let output = String::from_utf8(test_job.output()).expect("UTF-8");
    let warnings = output.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["response"]["body"].get("warnings").cloned()
    });
    let expected = [None, Some(json!([warning])), Some(json!([warning]))];
    assert_eq!(warnings.collect::<Vec<_>>(), expected);
}

#[test]
fn an_answer_with_a_form_must_fit_the_context() {
    let form = json!({"choice": ["a"]});
    let test_job =
        test_job(&[json!({"prompt": "a", "max_tokens": 64, "structured_outputs": form})]);
    assert_eq!(test_job.run(&mut EchoEngine::new(1)).expect("runs").failed_lines, [1]);
    let output = String::from_utf8(test_job.output()).expect("UTF-8");
    let line: Value = serde_json::from_str(output.trim()).expect("JSON");
    assert_eq!(line["error"]["code"], "context_length_exceeded");
}

#[test]
fn several_answers_to_a_request_are_counted_apart_from_it() {
    let test_job = test_job(&[json!({"prompt": "a", "n": 3, "max_tokens": 1, "ignore_eos": true})]);
    let summary = test_job.run(&mut EchoEngine::new(2)).expect("runs");
    assert_eq!(summary.to_string(), "1 answered with 3 answers, 0 failed");
}
