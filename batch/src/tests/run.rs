//! Tests of running jobs: groups, answers, last lines, interruption.

use engine_api::batch::{BatchEngine, EngineError};
use openai::fingerprint::content_id;
use openai::output::{Choice, FinishReason, OutputLine};

use super::fake::{EchoEngine, TestJob};
use crate::error::JobError;
use crate::outcome::JobOutcome;
use crate::progress::{EtaConfig, LineProgress, SilentProgress};
use crate::sink::OutputMode;
use crate::summary::{JobSummary, UnansweredRequest};

fn prompts(count: usize) -> Vec<u8> {
    let lines = (0..count).map(|i| format!("{{\"prompt\": \"prompt {i}\", \"max_tokens\": 5}}\n"));
    lines.collect::<String>().into_bytes()
}

/// Returns the IDs of these lines of [`prompts`].
fn ids_of(lines: impl IntoIterator<Item = usize>) -> Vec<String> {
    let line = |i| format!("{{\"prompt\": \"prompt {i}\", \"max_tokens\": 5}}");
    lines.into_iter().map(|i| format!("line-{}", content_id(line(i).as_bytes()))).collect()
}

fn text(line: &OutputLine) -> Option<&str> {
    match &line.response.as_ref().expect("an answer").body.choices[0] {
        Choice::Text { text, .. } => Some(text),
        Choice::Chat { message, .. } => message.content.as_deref(),
    }
}

fn tokens(choice: &Choice) -> &[u32] {
    match choice {
        Choice::Text { token_ids, .. } | Choice::Chat { token_ids, .. } => token_ids,
    }
}

fn finish_reason(line: &OutputLine) -> FinishReason {
    match line.response.as_ref().expect("an answer").body.choices[0] {
        Choice::Text { finish_reason, .. } | Choice::Chat { finish_reason, .. } => finish_reason,
    }
}

#[test]
fn answers_in_input_order_in_groups() {
    let test_job = TestJob::new(&prompts(7));
    let mut engine = EchoEngine::new(3);
    let summary = test_job.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [3, 3, 1]);
    assert_eq!(summary.outcome(), JobOutcome::Complete);
    assert_eq!(
        summary.to_string(),
        "7 answered, 0 failed; 7 cut at max_tokens (lines 1, 2, 3, 4, 5, 6, 7)"
    );
    let lines = test_job.lines();
    let ids: Vec<&str> = lines.iter().map(|line| line.custom_id.as_str()).collect();
    assert_eq!(ids, ids_of(0..7));
    // The echo begins with BOS, which has no text.
    assert_eq!(text(&lines[2]), Some("prom"));
    let body = &lines[0].response.as_ref().unwrap().body;
    assert_eq!(body.object, "text_completion");
    assert_eq!((body.model.as_str(), body.system_fingerprint.as_str()), ("echo", "fp_test"));
    assert_eq!((body.usage.prompt_tokens, body.usage.completion_tokens), (9, 5));
    assert_eq!(body.usage.total_tokens, 14);
    assert_eq!(test_job.names(), ["in.jsonl", "out.jsonl"]);
}

#[test]
fn the_group_size_does_not_show_in_the_answers() {
    let input = b"{\"prompt\": [\"a\", \"bc\", \"d\"], \"temperature\": 0.7}\nnot \
     json\n{\"prompt\": \"e\", \"temperature\": 1, \"seed\": 4}\n{\"messages\": \
     [{\"role\": \"user\", \"content\": \"f\"}]}\n";
    let mut outputs = (1..6).map(|capacity| {
        let test_job = TestJob::new(input);
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1234);
        std::fs::File::options()
            .write(true)
            .open(test_job.path("in.jsonl"))
            .unwrap()
            .set_modified(time)
            .unwrap();
        let summary = test_job.run(&mut EchoEngine::new(capacity)).unwrap();
        assert_eq!(
            summary.to_string(),
            "3 answered with 5 answers, 1 failed (line 2); 3 cut at max_tokens (lines 1, 3, 4)"
        );
        assert_eq!(test_job.lines()[0].response.as_ref().unwrap().body.created, 1234);
        test_job.output()
    });
    let first = outputs.next().unwrap();
    assert!(outputs.all(|output| output == first));
}

#[test]
fn a_list_of_prompts_has_a_choice_each() {
    let test_job = TestJob::new(
        b"{\"prompt\": [[5, 6], [7]], \"max_tokens\": 2}\n{\"prompt\": [8], \"max_tokens\": 1}\n",
    );
    let mut engine = EchoEngine::new(2);
    test_job.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [2, 1]);
    let lines = test_job.lines();
    let body = &lines[0].response.as_ref().unwrap().body;
    let all: Vec<&[u32]> = body.choices.iter().map(tokens).collect();
    assert_eq!(all, [&[5, 6][..], &[7, 7][..]]);
    assert_eq!((body.usage.prompt_tokens, body.usage.completion_tokens), (3, 4));
}

#[test]
fn n_answers_to_each_prompt_draw_apart() {
    let test_job = TestJob::new(
        b"{\"prompt\": [[50, 60], [70]], \"n\": 3, \"max_tokens\": 8, \"temperature\": 1}\n{\"prompt\": [8], \"max_tokens\": 1}\n",
    );
    let mut engine = EchoEngine::new(4);
    test_job.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [4, 3]);
    let lines = test_job.lines();
    let body = &lines[0].response.as_ref().unwrap().body;
    let all: Vec<&[u32]> = body.choices.iter().map(tokens).collect();
    assert_eq!(all.len(), 6);
    // The echo moves a token by less than 7.
    assert!(all[..3].iter().all(|tokens| tokens.len() == 8 && tokens[1] / 10 == 6), "{all:?}");
    assert!(all[3..].iter().all(|tokens| tokens[1] / 7 == 10), "{all:?}");
    for (i, tokens) in all.iter().enumerate() {
        assert!(!all[..i].contains(tokens), "{all:?}");
    }
    assert_eq!((body.usage.prompt_tokens, body.usage.completion_tokens), (3, 48));
    let demand =
        TestJob::new(b"{\"prompt\": [[5], [6]], \"n\": 3}\n").prepare().unwrap().workload();
    assert_eq!(demand.unwrap().sequences, 6);
}

#[test]
fn log_probabilities_stand_beside_their_tokens() {
    // A character of two bytes, and a stop string that cuts.
    let mut test_job = TestJob::new(
        "{\"prompt\": [97, 195, 169, 98, 46], \"logprobs\": 2, \"max_tokens\": 9, \"stop\": \".\"}\n\
         {\"prompt\": [98, 99], \"logprobs\": 0, \"max_tokens\": 2}\n\
         {\"messages\": \
         [{\"role\": \"user\", \"content\": \"x\"}], \"logprobs\": true, \"top_logprobs\": 1, \
         \"max_tokens\": 2}\n\
         {\"prompt\": [97], \"max_tokens\": 1}\n"
            .as_bytes(),
    );
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    let logprobs = |test_job: &TestJob| -> Vec<serde_json::Value> {
        let lines = test_job.output();
        let lines = lines.split_inclusive(|byte| *byte == b'\n');
        let line = |line| serde_json::from_slice::<serde_json::Value>(line).unwrap();
        lines.map(|text| line(text)["response"]["body"]["choices"][0]["logprobs"].clone()).collect()
    };
    let found = logprobs(&test_job);
    let expected = serde_json::json!({
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-0.25, -0.25, -0.25, -0.25],
        "top_logprobs": [
            {"`": -0.75, "_": -1.25, "a": -0.25},
            {"bytes:\\xc2": -0.75, "bytes:\\xc1": -1.25, "bytes:\\xc3": -0.25},
            {"bytes:\\xa8": -0.75, "bytes:\\xa7": -1.25, "bytes:\\xa9": -0.25},
            {"a": -0.75, "`": -1.25, "b": -0.25},
        ],
        "text_offset": [0, 1, 1, 2],
    });
    assert_eq!(found[0], expected);
    assert_eq!(found[1]["token_logprobs"], serde_json::json!([-0.25, -0.25]));
    assert_eq!(found[1]["top_logprobs"], serde_json::Value::Null);
    let shown = |token: &str, logprob: f32| serde_json::json!({"token": token, "logprob": logprob, "bytes": token.as_bytes()});
    let with_top = |token: &str, before: &str| {
        let mut entry = shown(token, -0.25);
        entry["top_logprobs"] = serde_json::json!([shown(before, -0.75)]);
        entry
    };
    let content = serde_json::json!([with_top("<", ";"), with_top("u", "t")]);
    assert_eq!(found[2], serde_json::json!({"content": content, "refusal": null}));
    assert_eq!(found[3], serde_json::Value::Null);
    // The written lines can be read again.
    assert_eq!(test_job.lines().len(), 4);
    test_job.options.mode = OutputMode::Resume;
    let before = test_job.output();
    assert_eq!(test_job.prepare().unwrap().workload(), None);
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(test_job.output(), before);
    // Without a tokenizer, tokens are named by their IDs.
    let mut test_job = TestJob::new(b"{\"prompt\": [5], \"logprobs\": 0, \"max_tokens\": 1}\n");
    test_job.codec = None;
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(logprobs(&test_job)[0]["tokens"], serde_json::json!(["token_id:5"]));
}

#[test]
fn sampling_is_keyed_by_seed_id_and_entry() {
    let line = |id: &str, seed: Option<u64>| {
        let seed = seed.map_or(String::new(), |seed| format!(", \"seed\": {seed}"));
        format!(
            "{{\"custom_id\": \"{id}\", \"prompt\": [[9, 9], [9, 9]], \"temperature\": 1{seed}}}\n"
        )
    };
    let choices = |id: &str, seed, of_job| -> Vec<Vec<u32>> {
        let mut test_job = TestJob::new(line(id, seed).as_bytes());
        test_job.options.seed = of_job;
        test_job.run(&mut EchoEngine::new(8)).unwrap();
        let lines = test_job.lines();
        let body = &lines[0].response.as_ref().unwrap().body;
        body.choices.iter().map(|choice| tokens(choice).to_vec()).collect()
    };
    let reference = choices("a", Some(1), 0);
    assert_eq!(reference, choices("a", Some(1), 0));
    assert_ne!(reference[0], reference[1]);
    assert_ne!(reference, choices("a", Some(2), 0));
    // A seed in the request determines the tokens, whatever the ID; otherwise different IDs draw
    // different tokens.
    assert_eq!(reference, choices("b", Some(1), 5));
    assert_eq!(choices("a", None, 1), choices("a", None, 1));
    assert_ne!(choices("a", None, 1), choices("b", None, 1));
    assert_ne!(choices("a", None, 1), choices("a", None, 2));
    assert_ne!(choices("a", None, 1), reference);
}

#[test]
fn chat_answers_have_messages() {
    let test_job = TestJob::new(
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 6}\n",
    );
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    let lines = test_job.lines();
    let body = &lines[0].response.as_ref().unwrap().body;
    assert_eq!(body.object, "chat.completion");
    assert!(body.id.starts_with("chatcmpl-"), "{}", body.id);
    assert!(
        matches!(&body.choices[0], Choice::Chat { message, .. } if message.role == "assistant")
    );
    assert_eq!(text(&lines[0]), Some("<user>"));
}

#[test]
fn finish_reasons() {
    let test_job = TestJob::new(
        b"{\"prompt\": [5, 257], \"max_tokens\": \
         9}\n{\"prompt\": [5], \"max_tokens\": 2}\n{\"prompt\": \"abc\", \"stop\": \"c\"}\n",
    );
    test_job.run(&mut EchoEngine::new(8)).unwrap();
    let lines = test_job.lines();
    let reasons: Vec<FinishReason> = lines.iter().map(finish_reason).collect();
    assert_eq!(reasons, [FinishReason::Stop, FinishReason::Length, FinishReason::Stop]);
    let first = &lines[0].response.as_ref().unwrap().body;
    assert_eq!(tokens(&first.choices[0]), [5], "the final EOS is omitted");
    assert_eq!(first.usage.completion_tokens, 2, "and counts");
    assert_eq!(text(&lines[2]), Some("ab"));
}

#[test]
fn a_stop_string_ends_its_answer_and_counts() {
    let test_job =
        TestJob::new(b"{\"prompt\": \"a b c d e f\", \"stop\": [\"c\"], \"max_tokens\": 30}\n");
    test_job.run(&mut EchoEngine::new(1)).unwrap();
    let body = test_job.lines().remove(0).response.unwrap().body;
    assert_eq!(tokens(&body.choices[0]).len(), 5, "BOS and four bytes stand before the stop");
    assert_eq!(body.usage.completion_tokens, 6, "the stop counts");
    assert_eq!(finish_reason(&test_job.lines()[0]), FinishReason::Stop);
}

#[test]
fn token_ids_without_tokenizer_give_no_text() {
    let mut test_job =
        TestJob::new(b"{\"prompt\": [5, 6], \"max_tokens\": 3}\n{\"prompt\": \"a\"}\n");
    test_job.codec = None;
    let summary = test_job.run(&mut EchoEngine::new(4)).unwrap();
    assert_eq!(summary.outcome(), JobOutcome::Partial);
    let lines = test_job.lines();
    assert_eq!(text(&lines[0]), Some(""));
    assert_eq!(tokens(&lines[0].response.as_ref().unwrap().body.choices[0]), [5, 6, 5]);
    assert_eq!(lines[1].error.as_ref().unwrap().code, "no_tokenizer");
    let raw = String::from_utf8(test_job.output()).unwrap();
    assert!(raw.contains("\"text\":\"\""), "{raw}");
    assert!(raw.contains("\"finish_reason\":\"length\",\"logprobs\":null"), "{raw}");
}

#[test]
fn error_lines_stand_at_their_place_and_say_their_line() {
    let test_job = TestJob::new(
        b"{\n{\"prompt\": \"a\"}\n{\"prompt\": \"\"}\n{\"prompt\": \"b\", \"best_of\": 2}\n",
    );
    let summary = test_job.run(&mut EchoEngine::new(1)).unwrap();
    assert_eq!(
        summary.to_string(),
        "1 answered, 3 failed (lines 1, 3, 4); 1 cut at max_tokens (line 2)"
    );
    let lines = test_job.lines();
    let codes: Vec<Option<&str>> =
        lines.iter().map(|line| line.error.as_ref().map(|error| error.code.as_str())).collect();
    assert_eq!(
        codes,
        [Some("invalid_json"), None, Some("empty_prompt"), Some("unsupported_field")]
    );
    let error = lines[3].error.as_ref().unwrap();
    assert_eq!(
        error.message,
        "Line 4: Unsupported value: 'best_of' is only supported with its default value. Remove \
         it, or pass --ignore-unknown-fields."
    );
    assert_eq!(error.line, 4);
}

#[test]
fn nothing_to_run_needs_no_engine() {
    for (input, lines) in [(&b""[..], 0), (&b"\n\n"[..], 0), (&b"{\n"[..], 1)] {
        let test_job = TestJob::new(input);
        assert_eq!(test_job.prepare().unwrap().workload(), None);
        let _ = std::fs::remove_file(test_job.output_path());
        test_job.run(&mut EchoEngine::new(1)).unwrap();
        assert_eq!(test_job.lines().len(), lines);
    }
}

#[test]
fn demand_is_the_maximum_over_what_is_left() {
    let test_job = TestJob::new(
        b"{\"prompt\": [5, 6, 7], \"max_tokens\": \
     2}\n{\"prompt\": [[5], [6]], \"max_tokens\": 9}\n{\n",
    );
    let demand = test_job.prepare().unwrap().workload().unwrap();
    assert_eq!((demand.sequences, demand.max_prompt), (3, 3));
    assert_eq!((demand.max_new, demand.max_context), (9, 10));
}

#[test]
fn an_interrupt_keeps_finished_groups() {
    let test_job = TestJob::new(&prompts(5));
    let mut engine = EchoEngine::new(2);
    engine.ends = Some((1, EngineError::Interrupted));
    let summary = test_job.run(&mut engine).unwrap();
    assert_eq!(summary.outcome(), JobOutcome::Interrupted);
    assert_eq!(
        summary.to_string(),
        "2 answered, 0 failed, 3 not run; interrupted, continue with --resume; 2 cut at \
         max_tokens (lines 1, 2)"
    );
    assert_eq!(test_job.lines().len(), 2);
    // Before anything runs, the job itself checks for an interruption.
    let test_job = TestJob::new(&prompts(5));
    let mut engine = EchoEngine::new(2);
    let summary =
        test_job.prepare().unwrap().run(Some(&mut engine), &mut SilentProgress, &|| true).unwrap();
    assert_eq!((summary.answered, summary.not_run.len(), engine.groups.len()), (0, 5, 0));
    assert_eq!(summary.outcome(), JobOutcome::Interrupted);
}

#[test]
fn the_longest_answers_begin_first() {
    let lengths = [9, 2, 9, 3, 2, 9];
    let input: String = lengths
        .iter()
        .zip(0..)
        .map(|(length, id): (&u32, u32)| {
            format!("{{\"custom_id\": \"{id}\", \"prompt\": [5, 6], \"max_tokens\": {length}}}\n")
        })
        .collect();
    let test_job = TestJob::new(input.as_bytes());
    let groups = test_job.prepare().unwrap().groups(2);
    let longest: Vec<u32> = groups.iter().map(|group| group.max_new).collect();
    assert_eq!(longest, [9, 9, 2], "9 and 9, 9 and 3, 2 and 2");
    assert!(groups.iter().all(|group| group.prompt_tokens == 4));
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    let ids: Vec<String> = test_job.lines().into_iter().map(|line| line.custom_id).collect();
    assert_eq!(ids, ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn what_was_finished_in_a_group_that_ends_early_is_kept() {
    let whole = TestJob::new(&prompts(5));
    whole.run(&mut EchoEngine::new(3)).unwrap();
    for error in [EngineError::Interrupted, EngineError::Failed("Killed.".to_owned())] {
        let mut test_job = TestJob::new(&prompts(5));
        let mut engine = EchoEngine::new(3);
        engine.ends = Some((0, error.clone()));
        engine.saved = 2;
        match test_job.run(&mut engine) {
            Ok(summary) => assert_eq!((summary.answered, summary.not_run.len()), (2, 3)),
            Err(failed) => assert_eq!(failed.to_string(), "Killed."),
        }
        let ids: Vec<String> = test_job.lines().into_iter().map(|line| line.custom_id).collect();
        assert_eq!(ids, ids_of([1, 2]), "{error:?}");
        test_job.options.mode = OutputMode::Resume;
        let mut engine = EchoEngine::new(3);
        test_job.run(&mut engine).unwrap();
        assert_eq!(engine.groups, [3], "only what was left");
        let answers = |test_job: &TestJob| -> Vec<Option<String>> {
            test_job.lines().iter().map(|line| text(line).map(str::to_owned)).collect()
        };
        assert_eq!(answers(&test_job), answers(&whole));
    }
}

#[test]
fn errors_are_written_before_the_first_group_ends() {
    let test_job = TestJob::new(b"{\"prompt\": \"a\"}\nnot json\n{\"prompt\": \"\"}\n");
    let text = test_job.prepare().unwrap().error_summary().unwrap();
    assert!(text.starts_with("2 of 3 lines have errors; the first error is in line 2: "), "{text}");
    let mut engine = EchoEngine::new(1);
    engine.ends = Some((0, EngineError::Interrupted));
    test_job.run(&mut engine).unwrap();
    assert_eq!(test_job.lines().len(), 2);
}

#[test]
fn a_failing_engine_keeps_finished_groups_and_says_why() {
    let test_job = TestJob::new(&prompts(5));
    let mut engine = EchoEngine::new(2);
    engine.ends = Some((2, EngineError::Failed("The cpu worker was killed.".to_owned())));
    let error = test_job.run(&mut engine).unwrap_err();
    assert!(matches!(&error, JobError::Engine(_)));
    assert_eq!(error.to_string(), "The cpu worker was killed.");
    assert_eq!(test_job.lines().len(), 4);
}

#[test]
fn a_run_that_writes_nothing_leaves_everything_as_it_was() {
    let failed = || {
        let mut engine = EchoEngine::new(2);
        engine.ends = Some((0, EngineError::Interrupted));
        engine
    };
    let mut test_job = TestJob::new(&prompts(3));
    test_job.run(&mut failed()).unwrap();
    assert_eq!(test_job.names(), ["in.jsonl"], "no empty output is left");
    std::fs::write(test_job.output_path(), "precious\n").unwrap();
    test_job.options.mode = OutputMode::Overwrite;
    test_job.run(&mut failed()).unwrap();
    assert_eq!(test_job.output(), b"precious\n");
    drop(test_job.prepare().unwrap());
    assert_eq!(test_job.output(), b"precious\n");
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    assert_eq!(test_job.lines().len(), 3);
}

#[test]
fn progress_counts_tokens() {
    let test_job = TestJob::new(
        b"{\"prompt\": [5, 6, 257], \"max_tokens\": 10}\n{\"prompt\": [7], \"max_tokens\": 4}\n",
    );
    let mut progress = LineProgress::new(Vec::new(), EtaConfig { slots: 1, prior: None });
    let mut engine = EchoEngine::new(1);
    let engine: &mut dyn BatchEngine = &mut engine;
    test_job.prepare().unwrap().run(Some(engine), &mut progress, &|| false).unwrap();
    let text = String::from_utf8(progress.into_inner()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "2 answers, at most 14 new tokens");
    // Tokens that an early end makes impossible are subtracted; the token that ended it counts.
    assert!(lines[1].starts_with("2 of 2 answers: 7 new tokens"), "{text}");
}

#[test]
fn last_lines() {
    let summary = |answered, failed: &[usize], not_run, interrupted| {
        let unanswered = |line| UnansweredRequest { line, custom_id: line.to_string() };
        let not_run = (0..not_run).map(unanswered).collect();
        let failed_lines = failed.to_vec();
        let truncated_lines = Vec::new();
        let answers = answered;
        let resumable = false;
        JobSummary {
            answered,
            answers,
            failed_lines,
            truncated_lines,
            not_run,
            interrupted,
            resumable,
        }
        .to_string()
    };
    assert_eq!(summary(3, &[], 4, true), "3 answered, 0 failed, 4 not run; interrupted");
    assert_eq!(summary(58, &[4, 17], 0, false), "58 answered, 2 failed (lines 4, 17)");
    assert_eq!(summary(1, &[9], 0, false), "1 answered, 1 failed (line 9)");
    let many: Vec<usize> = (1..=21).collect();
    assert!(summary(0, &many, 0, false).ends_with("19, 20, ...)"));
    assert!(summary(0, &many[..20], 0, false).ends_with("19, 20)"));
}

#[test]
fn answers_that_were_cut_are_counted_also_when_they_are_kept() {
    let mut test_job = TestJob::new(
        b"{\"prompt\": [5, 6, 257], \"max_tokens\": \
         10}\n{\"prompt\": [7], \"max_tokens\": 4}\n{\"prompt\": [7], \"max_tokens\": 4, \
         \"ignore_eos\": true}\n",
    );
    let text = "3 answered, 0 failed; 1 cut at max_tokens (line 2)";
    assert_eq!(test_job.run(&mut EchoEngine::new(1)).unwrap().to_string(), text);
    test_job.options.mode = OutputMode::Resume;
    assert_eq!(test_job.run(&mut EchoEngine::new(1)).unwrap().to_string(), text);
}
