//! Tests of requests with many answers: finished answers survive an interruption of the others.

use engine_api::batch::EngineError;

use super::fake::{EchoEngine, TestJob};
use crate::sink::OutputMode;

const LINES: &[u8] = br#"{"custom_id": "a", "prompt": ["abc", "de"], "n": 3, "max_tokens": 5, "temperature": 1, "logprobs": 2}
{"custom_id": "b", "prompt": "xyz", "max_tokens": 9}
{"custom_id": "c", "prompt": ["f", "g", "h"], "max_tokens": 3}
{"custom_id": "chat", "messages": [{"role": "user", "content": "q"}], "n": 4, "max_tokens": 4, "logprobs": true}
"#;

/// Returns the output of a run that answers everything.
fn whole() -> Vec<u8> {
    let test_job = TestJob::new(LINES);
    test_job.run(&mut EchoEngine::new(3)).expect("a run");
    test_job.output()
}

#[test]
fn finished_choices_of_an_interrupted_request_are_kept() {
    let whole = whole();
    for groups in 1..7 {
        let mut test_job = TestJob::new(LINES);
        let mut engine = EchoEngine::new(2);
        engine.ends = Some((groups, EngineError::Interrupted));
        test_job.run(&mut engine).expect("an interrupted run");
        // Each request with any answer has one line.
        let lines = test_job.lines();
        let ids: Vec<&str> = lines.iter().map(|line| line.custom_id.as_str()).collect();
        let mut once = ids.clone();
        once.dedup();
        assert_eq!(ids, once, "after {groups} groups");
        let made = lines.iter().map(|line| match (&line.response, &line.error) {
            (Some(response), _) => response.body.choices.len(),
            (_, Some(error)) => {
                assert_eq!(error.code, "unfinished");
                assert!(error.message.contains("--resume"), "{}", error.message);
                error.made.as_ref().expect("answers").choices.len()
            }
            _ => panic!("neither answers nor an error"),
        });
        let made: usize = made.sum();
        assert_eq!(made, 2 * groups, "nothing that was finished is lost");
        test_job.options.mode = OutputMode::Resume;
        let mut engine = EchoEngine::new(2);
        test_job.run(&mut engine).expect("a resumed run");
        assert_eq!(engine.groups.iter().sum::<usize>(), 14 - made, "and nothing is made again");
        assert_eq!(test_job.output(), whole, "after {groups} groups");
    }
}

#[test]
fn whatever_of_a_log_is_left_is_resumed() {
    let whole = whole();
    let mut test_job = TestJob::new(LINES);
    let mut engine = EchoEngine::new(2);
    engine.ends = Some((5, EngineError::Failed("lost".to_owned())));
    test_job.run(&mut engine).expect_err("an engine that failed");
    let log = test_job.output();
    test_job.options.mode = OutputMode::Resume;
    for bytes in (0..=log.len()).step_by(7).chain([log.len() - 1]) {
        std::fs::write(test_job.output_path(), &log[..bytes]).expect("writable");
        test_job.run(&mut EchoEngine::new(3)).expect("a resumed run");
        assert_eq!(test_job.output(), whole, "{bytes} bytes of {}", log.len());
    }
}

#[test]
fn choices_of_a_request_that_is_now_put_differently_are_refused_and_kept() {
    let mut test_job = TestJob::new(LINES);
    let mut engine = EchoEngine::new(2);
    engine.ends = Some((1, EngineError::Interrupted));
    test_job.run(&mut engine).expect("an interrupted run");
    let before = test_job.output();
    test_job.options.mode = OutputMode::Resume;
    test_job.options.chat = true;
    test_job.run(&mut EchoEngine::new(2)).expect_err("other requests");
    assert_eq!(test_job.output(), before);
}
