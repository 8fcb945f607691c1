//! Tests that a resumed job ends in the bytes of an undisturbed one, wherever it was cut.

use engine_api::batch::EngineError;

use super::fake::{EchoEngine, TestJob};
use crate::error::JobError;
use crate::sink::OutputMode;

/// Requests of several kinds between invalid lines.
const INPUT: &[u8] = b"{\n{\"custom_id\": \"a\", \"prompt\": \"one\", \"max_tokens\": 3}\n{\"custom_id\": \"b\", \"prompt\": [\"x\", \"y\"], \"max_tokens\": 2, \"temperature\": 1}\n{\"custom_id\": \"a\", \"prompt\": \"again\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"\xc3\xa9\"}], \"max_tokens\": 2}\n\n{\"prompt\": \"\"}\n{\"prompt\": \"six\", \"max_tokens\": 1}\n{\"tools\": 2}\n";

fn undisturbed(test_job: &TestJob) -> Vec<u8> {
    let _ = std::fs::remove_file(test_job.output_path());
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    test_job.output()
}

fn test_job() -> (TestJob, Vec<u8>) {
    let mut test_job = TestJob::new(INPUT);
    let whole = undisturbed(&test_job);
    test_job.options.mode = OutputMode::Resume;
    (test_job, whole)
}

fn index_of_lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

#[test]
fn cut_anywhere() {
    let (test_job, whole) = test_job();
    for cut in 0..=whole.len() {
        std::fs::write(test_job.output_path(), &whole[..cut]).unwrap();
        let mut engine = EchoEngine::new(1 + cut % 4);
        let summary = test_job.run(&mut engine).unwrap();
        assert_eq!(test_job.output(), whole, "cut at {cut}");
        assert_eq!((summary.answered, summary.failed_lines.len()), (4, 4), "cut at {cut}");
        let complete = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(engine.groups.is_empty(), complete >= 7, "cut at {cut}");
    }
    assert_eq!(test_job.names(), ["in.jsonl", "out.jsonl"]);
}

#[test]
fn what_is_answered_is_not_computed_again() {
    let (test_job, whole) = test_job();
    let lines = index_of_lines(&whole);
    std::fs::write(test_job.output_path(), lines[..3].concat()).unwrap();
    let mut engine = EchoEngine::new(8);
    test_job.run(&mut engine).unwrap();
    // a and b (two prompts) are answered; the chat request and "six" are left.
    assert_eq!(engine.groups, [2]);
    assert_eq!(test_job.output(), whole);
}

#[test]
fn lines_missing_in_the_middle_are_filled_in() {
    let (test_job, whole) = test_job();
    let lines = index_of_lines(&whole);
    for missing in 0..lines.len() {
        let mut some = lines.clone();
        some.remove(missing);
        std::fs::write(test_job.output_path(), some.concat()).unwrap();
        test_job.run(&mut EchoEngine::new(2)).unwrap();
        assert_eq!(test_job.output(), whole, "without line {missing}");
    }
    assert_eq!(test_job.names(), ["in.jsonl", "out.jsonl"]);
}

#[test]
fn error_lines_are_tried_again_and_repaired_ones_take_their_place() {
    let (mut test_job, _) = test_job();
    let mut codec = test_job.codec.take();
    test_job.options.mode = OutputMode::Overwrite;
    let without_tokenizer = undisturbed(&test_job);
    assert_eq!(test_job.lines().iter().filter(|line| line.error.is_some()).count(), 8);
    test_job.codec = codec.take();
    test_job.options.mode = OutputMode::Overwrite;
    let whole = undisturbed(&test_job);
    test_job.options.mode = OutputMode::Resume;
    std::fs::write(test_job.output_path(), &without_tokenizer).unwrap();
    test_job.run(&mut EchoEngine::new(3)).unwrap();
    assert_eq!(test_job.output(), whole);

    // Some lines are repaired and others were answered before: the file is sorted at the end.
    let (answered, failed) = (index_of_lines(&whole), index_of_lines(&without_tokenizer));
    for pattern in 0..1_usize << answered.len() {
        let mixed: Vec<Vec<u8>> = (0..answered.len())
            .map(|i| if pattern >> i & 1 == 0 { answered[i].clone() } else { failed[i].clone() })
            .collect();
        std::fs::write(test_job.output_path(), mixed.concat()).unwrap();
        test_job.run(&mut EchoEngine::new(2)).unwrap();
        assert_eq!(test_job.output(), whole, "pattern {pattern:b}");
    }
}

#[test]
fn an_interrupted_resume_keeps_everything_and_can_be_resumed() {
    let (test_job, whole) = test_job();
    let lines = index_of_lines(&whole);
    let last_request = lines[6].clone();
    std::fs::write(test_job.output_path(), last_request).unwrap();
    let mut engine = EchoEngine::new(1);
    engine.ends = Some((2, EngineError::Interrupted));
    let summary = test_job.run(&mut engine).unwrap();
    assert_eq!(summary.answered, 2, "what was there, and \"a\", whose answer is the longest");
    let mut kept = index_of_lines(&test_job.output());
    let begun = kept.remove(2);
    assert!(String::from_utf8_lossy(&begun).contains("\"unfinished\""), "one of two of \"b\"");
    let expected: Vec<_> = [0, 1, 3, 5, 6, 7].into_iter().map(|i| lines[i].clone()).collect();
    assert!(kept == expected, "in input order");
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    assert_eq!(test_job.output(), whole);
}

#[test]
fn a_log_left_by_a_killed_resume_is_understood() {
    let (test_job, whole) = test_job();
    let lines = index_of_lines(&whole);
    // Lines out of order, a repeated line, a torn end, and the temporary file of a killed rename.
    let order = [6, 0, 1, 6, 4];
    let mut log: Vec<u8> = order.iter().flat_map(|i| lines[*i].clone()).collect();
    log.extend_from_slice(&lines[2][..20]);
    std::fs::write(test_job.output_path(), log).unwrap();
    std::fs::write(test_job.path(".out.jsonl.settling"), "half").unwrap();
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(test_job.output(), whole);
    assert_eq!(test_job.names(), ["in.jsonl", "out.jsonl"]);
}

fn write_input(test_job: &TestJob, text: &str) {
    let modified = std::fs::metadata(test_job.path("in.jsonl")).unwrap().modified().unwrap();
    std::fs::write(test_job.path("in.jsonl"), text).unwrap();
    let input = std::fs::File::options().write(true).open(test_job.path("in.jsonl")).unwrap();
    input.set_modified(modified).unwrap();
}

#[test]
fn a_changed_request_is_answered_anew_only_where_replacing_is_asked_for() {
    let (mut test_job, whole) = test_job();
    let input = String::from_utf8(INPUT.to_vec()).unwrap();
    write_input(&test_job, &input.replace("one", "another").replace("six", "seven"));
    let error = test_job.run(&mut EchoEngine::new(4)).unwrap_err();
    assert!(
        matches!(&error, JobError::ResumeOther { kept: 2, changed: 1, unasked: 1, line: 2, custom_id, .. }
            if custom_id == "a"),
        "{error:?}"
    );
    assert!(error.to_string().contains("keep the 2 and lose the other 2"), "{error}");
    assert_eq!(test_job.output(), whole, "nothing is changed");
    test_job.options.mode = OutputMode::ResumeReplacing;
    let job = test_job.prepare().unwrap();
    let resumed = job.resume_summary().unwrap();
    assert_eq!(resumed, "2 answers kept, 2 replaced or dropped, 2 remaining");
    drop(job);
    let mut engine = EchoEngine::new(4);
    test_job.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [2]);
    let resumed = test_job.output();
    test_job.options.mode = OutputMode::Overwrite;
    assert_eq!(resumed, undisturbed(&test_job));
}

#[test]
fn other_options_never_empty_an_output() {
    type Change = fn(&mut TestJob);
    let changes: [Change; 3] = [
        |test_job| test_job.options.max_tokens = Some(4000),
        |test_job| test_job.options.chat = true,
        |test_job| write_input(test_job, "{\"prompt\": \"something else\"}\n"),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut test_job = TestJob::new(b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
        test_job.run(&mut EchoEngine::new(2)).unwrap();
        let whole = test_job.output();
        test_job.options.mode = OutputMode::Resume;
        change(&mut test_job);
        let mut engine = EchoEngine::new(2);
        engine.ends = Some((0, EngineError::Interrupted));
        let error = test_job.run(&mut engine).unwrap_err();
        assert!(matches!(error, JobError::ResumeOther { kept: 0, .. }), "{index}: {error:?}");
        assert_eq!(test_job.output(), whole, "{index}");
    }
}

#[test]
fn inserted_lines_keep_the_answers_of_the_others() {
    let mut test_job = TestJob::new(b"{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    test_job.options.mode = OutputMode::Resume;
    write_input(&test_job, "{\"prompt\": \"new\"}\n{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
    let mut engine = EchoEngine::new(2);
    test_job.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [1], "only the new one");
    let resumed = test_job.output();
    test_job.options.mode = OutputMode::Overwrite;
    assert_eq!(resumed, undisturbed(&test_job));
}

#[test]
fn an_input_that_was_touched_is_the_same_job() {
    let (test_job, whole) = test_job();
    let lines = index_of_lines(&whole);
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(99);
    let input = std::fs::File::options().write(true).open(test_job.path("in.jsonl")).unwrap();
    input.set_modified(time).unwrap();
    // The first answer in the output records the creation time; without one there is nothing to
    // compare.
    for kept in 2..lines.len() {
        std::fs::write(test_job.output_path(), lines[..kept].concat()).unwrap();
        test_job.run(&mut EchoEngine::new(2)).unwrap();
        assert_eq!(test_job.output(), whole, "{kept} lines");
    }
}

#[test]
fn outputs_of_another_kind_are_refused_and_kept() {
    let (mut test_job, whole) = test_job();
    "fp_other".clone_into(&mut test_job.fingerprint);
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::ResumeFingerprint { line: 2, .. }), "{error}");
    assert!(error.to_string().contains("--force"), "{error}");
    "fp_test_amx".clone_into(&mut test_job.fingerprint);
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::ResumeFingerprint { line: 2, .. }), "{error}");
    "fp_test".clone_into(&mut test_job.fingerprint);
    for foreign in [
        "{}\n",
        "not json\n",
        "{\"id\":\"x\",\"custom_id\":\"a\",\"response\":null,\"error\":null}\n",
    ] {
        std::fs::write(test_job.output_path(), foreign).unwrap();
        let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
        assert!(matches!(error, JobError::ResumeForeign { line: 1, .. }), "{error}");
        assert_eq!(test_job.output(), foreign.as_bytes());
    }
    std::fs::write(test_job.output_path(), &whole).unwrap();
    std::fs::write(test_job.path("in.jsonl"), "{\"custom_id\": \"a\", \"prompt\": \"one\"}\n")
        .unwrap();
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(
        matches!(&error, JobError::ResumeOther { custom_id, unasked: 3, changed: 1, .. }
            if custom_id == "a"),
        "{error:?}"
    );
    assert_eq!(test_job.output(), whole);
}

#[test]
fn resuming_what_is_not_there_begins() {
    let (test_job, whole) = test_job();
    std::fs::remove_file(test_job.output_path()).unwrap();
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(test_job.output(), whole);
}

#[test]
fn an_existing_output_is_refused_without_resume_or_force() {
    let (mut test_job, whole) = test_job();
    test_job.options.mode = OutputMode::New;
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::OutputExists { .. }), "{error}");
    assert!(error.to_string().contains("--resume") && error.to_string().contains("--force"));
    assert_eq!(test_job.output(), whole);
    test_job.options.mode = OutputMode::Overwrite;
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    assert_eq!(test_job.output(), whole);
}

#[test]
fn answers_of_other_kernels_are_refused_by_name_and_kept() {
    let (mut test_job, _) = test_job();
    test_job.options.mode = OutputMode::Overwrite;
    "fp_test_avx2".clone_into(&mut test_job.fingerprint);
    test_job.run(&mut EchoEngine::new(4)).unwrap();
    let whole = test_job.output();
    test_job.options.mode = OutputMode::Resume;
    "fp_test_avx512_cuda".clone_into(&mut test_job.fingerprint);
    let error = test_job.run(&mut EchoEngine::new(1)).unwrap_err();
    assert!(matches!(error, JobError::ResumeKernels { line: 2, .. }), "{error}");
    let words = ["the kernels avx2,", "are avx512_cuda,", "TANDEM_KERNELS", "--force"];
    assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    assert_eq!(test_job.output(), whole);
}
