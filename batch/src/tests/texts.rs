//! Tests of the text of answers, which continues their prompts, and of tokenizers that fail.

use openai::output::Choice;

use super::fake::{EchoEngine, TestJob};
use testkit::byte_codec::ByteCodec;

use crate::error::JobError;
use crate::sink::OutputMode;

fn texts(test_job: &TestJob) -> Vec<String> {
    let text = |choice: &Choice| match choice {
        Choice::Text { text, .. } => text.clone(),
        Choice::Chat { message, .. } => message.content.clone().unwrap_or_default(),
    };
    let lines = test_job.lines();
    lines
        .iter()
        .map(|line| text(&line.response.as_ref().expect("answered").body.choices[0]))
        .collect()
}

#[test]
fn answers_stand_behind_their_prompts() {
    // The engine repeats its prompt, which begins with a token that has no text.
    let input = br#"{"prompt": " ab", "max_tokens": 4}
{"prompt": " ab", "max_tokens": 4, "echo": true, "logprobs": 0}
{"prompt": " ab", "max_tokens": 4, "stop": " a"}
{"prompt": [97, 195, 169, 195], "max_tokens": 2, "echo": true}
{"prompt": [97, 195], "max_tokens": 0, "echo": true}
"#;
    let mut test_job = TestJob::new(input);
    test_job.codec = Some(ByteCodec::STRIPPING);
    test_job.run(&mut EchoEngine::new(8)).unwrap();
    // Prompt and answer together are the text of all tokens.
    assert_eq!(texts(&test_job), [" ab", "ab ab", "", "aé\u{fffd}a\u{fffd}", "a\u{fffd}"]);
    let raw = String::from_utf8(test_job.output()).unwrap();
    assert!(raw.contains("\"text_offset\":[0,0,0,1,2,2,3,4]"), "{raw}");
}

#[test]
fn min_tokens_hold_against_stop_strings() {
    let input = br#"{"prompt": "op", "max_tokens": 12, "stop": ["op"], "min_tokens": 6}
{"prompt": "op", "max_tokens": 12, "stop": ["op"]}
"#;
    let test_job = TestJob::new(input);
    test_job.run(&mut EchoEngine::new(8)).unwrap();
    assert_eq!(texts(&test_job), ["opop", ""]);
    let tokens: Vec<u64> = test_job
        .lines()
        .iter()
        .map(|line| line.response.as_ref().unwrap().body.usage.completion_tokens)
        .collect();
    assert_eq!(tokens, [9, 3]);
}

#[test]
fn a_tokenizer_that_keeps_failing_ends_the_job_and_loses_no_answer() {
    // The second answer has a token that cannot be decoded at the moment.
    let input = b"{\"prompt\": \"a\"}\n{\"prompt\": [98, 290]}\n{\"prompt\": \"c\"}\n";
    let mut test_job = TestJob::new(input);
    let failed = test_job.run(&mut EchoEngine::new(1));
    assert!(matches!(failed, Err(JobError::Tokenizer(_))), "{failed:?}");
    let written = String::from_utf8(test_job.output()).unwrap();
    assert!(!written.contains("error\":\"") && written.lines().count() <= 1, "{written}");
    // A later run computes the remaining requests.
    std::fs::write(test_job.path("in.jsonl"), "{\"prompt\": \"a\"}\n").unwrap();
    test_job.options.mode = OutputMode::Resume;
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    assert_eq!(test_job.lines().len(), 1);
}

#[test]
fn a_prompt_that_is_not_read_ends_the_job_before_it_begins() {
    let test_job = TestJob::new(b"{\"prompt\": \"a\"}\n{\"prompt\": \"\\u0002\"}\n");
    let failed = test_job.run(&mut EchoEngine::new(1));
    let Err(error @ JobError::Tokenizer(_)) = failed else { panic!("{failed:?}") };
    assert!(error.to_string().contains("line 2: The prompt cannot be tokenised"), "{error}");
    assert!(!test_job.path("out.jsonl").exists(), "nothing was written");
}
