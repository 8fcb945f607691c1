//! Tests of scoring jobs, from input to output, and of resuming them.

use std::path::{Path, PathBuf};

use engine_api::batch::{BatchEngine, BatchRequests, EngineError};
use engine_api::event::BatchSink;
use openai::prompt::ModelLimits;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::byte_codec::ByteCodec;

use super::fake::{Fake, LIKELY, logprob};
use crate::error::JobError;
use crate::outcome::JobOutcome;
use crate::progress::SilentProgress;
use crate::progress_counter::ProgressCounter;
use crate::score::line::LineOptions;
use crate::score::prepare::{PreparedScoreJob, ScoreJobOptions};
use crate::score::question::ScoreDetails;
use crate::score::summary::ScoreSummary;
use crate::score::tokens::PrefixToken;
use crate::score::windows::WindowSizes;
use crate::serving_adapter::ServingAdapter;
use crate::sink::{IoTarget, OutputMode};

struct JobFixture {
    _folder: TempDir,
    input: PathBuf,
    output: PathBuf,
}

impl JobFixture {
    fn new(input: &str) -> JobFixture {
        let folder = tempfile::tempdir().expect("a folder");
        let (input_path, output) = (folder.path().join("in.jsonl"), folder.path().join("out"));
        std::fs::write(&input_path, input).expect("writable");
        JobFixture { _folder: folder, input: input_path, output }
    }

    fn run(
        &self,
        mode: OutputMode,
        details: ScoreDetails,
        engine: &Fake,
    ) -> Result<ScoreSummary, JobError> {
        self.run_on(&mut ServingAdapter::new(engine, Vec::new(), &|| false), mode, details)
    }

    fn run_on(
        &self,
        engine: &mut dyn BatchEngine,
        mode: OutputMode,
        details: ScoreDetails,
    ) -> Result<ScoreSummary, JobError> {
        let place = |path: &Path| IoTarget::File(path.to_owned());
        let windows = WindowSizes { context: 8, stride: 4 };
        let (input, output) = (place(&self.input), place(&self.output));
        let options = ScoreJobOptions { input, output, mode, windows, details };
        let of_lines = LineOptions {
            limits: ModelLimits { context: 1 << 20, vocab_size: 1000, unsupported_tokenizer: None },
            prefix: PrefixToken(Some(1)),
            codec: Some(&ByteCodec::PLAIN),
        };
        let silent = &mut ProgressCounter::silent();
        let read =
            PreparedScoreJob::prepare(&options, &of_lines, silent, &|| false).expect("readable");
        let job = read.resume("fp_0_test".to_owned())?;
        let needed = job.needs_engine();
        job.run(needed.then_some(engine), &mut SilentProgress, &|| false)
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.output).expect("written");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

#[test]
fn an_id_that_is_given_twice_is_kept() {
    let line = json!({"custom_id": "q", "prompt": [3], "continuations": [[5]]}).to_string();
    let job_fixture = JobFixture::new(&[line.as_str(); 3].join("\n"));
    job_fixture.run(OutputMode::New, ScoreDetails::default(), &Fake::default()).expect("runs");
    let dead = Fake { most: Some(0), ..Fake::default() };
    let again = job_fixture
        .run(OutputMode::Resume, ScoreDetails::default(), &dead)
        .expect("nothing is left");
    assert_eq!((again.continuations, again.failed), (1, 2));
}

/// Returns nine questions and an invalid line.
fn questions() -> String {
    let line = |i: u32| {
        let longer: Vec<u32> = (0..i % 4).map(|j| 20 + j).collect();
        let after = [vec![5], [&[5][..], &longer].concat(), vec![6, 5]];
        json!({"custom_id": format!("q{i}"), "prompt": [3 + i, 5], "continuations": after})
    };
    let mut lines: Vec<String> = (0..9).map(|i| line(i).to_string()).collect();
    lines.insert(4, "nonsense".to_owned());
    lines.join("\n")
}

#[test]
fn scores_are_in_the_order_of_lines_and_continuations() {
    let job_fixture = JobFixture::new(&questions());
    let engine = Fake::default();
    let summary = job_fixture
        .run(OutputMode::New, ScoreDetails { tokens: true, top: 3 }, &engine)
        .expect("runs");
    assert_eq!((summary.items, summary.failed, summary.not_run), (10, 1, 0));
    assert_eq!((summary.continuations, summary.outcome()), (27, JobOutcome::Partial));
    let lines = job_fixture.lines();
    let error = &lines[4];
    assert_eq!((&error["scores"], &error["error"]["line"]), (&Value::Null, &json!(5)));
    assert_eq!(lines[1]["custom_id"], json!("q1"));
    let scores = lines[1]["scores"].as_array().expect("scores");
    let [second, third] = [logprob(5, 20), logprob(6, 5)].map(f64::from);
    assert_eq!(scores[0]["greedy"], json!(true));
    assert_eq!(scores[1]["logprob"], json!(f64::from(LIKELY) + second));
    assert_eq!(scores[1]["greedy"], json!(false));
    assert_eq!(scores[2]["token_logprobs"], json!([logprob(5, 6), third as f32]));
    assert_eq!(scores[2]["tokens"], json!([6, 5]));
    let top = &scores[2]["top_logprobs"][1];
    assert_eq!(*top, json!([[6, LIKELY], [0, logprob(6, 0)], [1, logprob(6, 1)]]));
    for submission in engine.submissions.lock().expect("no thread panics").iter() {
        assert_eq!((submission.max_new, submission.prompt_logprobs_from), (0, 2));
    }
    assert_eq!(summary.cached_tokens, 0);
    assert!(summary.perplexity.is_some_and(f64::is_finite));
}

#[test]
fn a_run_that_failed_is_gone_on_with_to_the_same_bytes() {
    let whole = JobFixture::new(&questions());
    whole.run(OutputMode::New, ScoreDetails::default(), &Fake::default()).expect("runs");
    let expected = std::fs::read(&whole.output).expect("written");
    for most in [0, 1, 5, 13, 26] {
        let job_fixture = JobFixture::new(&questions());
        let dying = Fake { most: Some(most), ..Fake::default() };
        let failed = job_fixture.run(OutputMode::New, ScoreDetails::default(), &dying);
        let error = failed.expect_err("it fails").to_string();
        assert!(error.contains("on fire"), "{error}");
        // A torn line is truncated.
        let mut torn = std::fs::read(&job_fixture.output).unwrap_or_default();
        torn.extend(&expected[..expected.len() / 3][..17]);
        std::fs::write(&job_fixture.output, &torn).expect("writable");
        let engine = Fake::default();
        let summary =
            job_fixture.run(OutputMode::Resume, ScoreDetails::default(), &engine).expect("runs");
        assert_eq!(std::fs::read(&job_fixture.output).expect("written"), expected, "{most}");
        assert_eq!(summary.continuations, 27);
        let submitted = engine.submissions.lock().expect("no thread panics").len();
        assert!(submitted <= 27 && submitted % 3 == 0, "whole lines are kept: {submitted}");
    }
}

#[test]
fn what_is_asked_in_another_way_is_not_kept() {
    let job_fixture = JobFixture::new(&questions());
    job_fixture.run(OutputMode::New, ScoreDetails::default(), &Fake::default()).expect("runs");
    let again = job_fixture.run(
        OutputMode::Resume,
        ScoreDetails::default(),
        &Fake { most: Some(0), ..Fake::default() },
    );
    assert_eq!(again.expect("nothing is left").continuations, 27);
    let other = ScoreDetails { tokens: true, top: 0 };
    let refused = job_fixture.run(OutputMode::Resume, other, &Fake::default());
    assert!(
        matches!(refused, Err(JobError::ResumeOther { kept: 0, changed: 9, .. })),
        "{refused:?}"
    );
    job_fixture.run(OutputMode::ResumeReplacing, other, &Fake::default()).expect("runs");
    assert!(job_fixture.lines()[0]["scores"][0]["tokens"].is_array());
    std::fs::write(&job_fixture.output, "{\"custom_id\": \"q0\"}\n{\"a\": 1}\n").expect("writable");
    let foreign = job_fixture.run(OutputMode::Resume, other, &Fake::default());
    assert!(matches!(foreign, Err(JobError::ResumeForeign { line: 2, .. })), "{foreign:?}");
}

#[test]
fn logits_that_are_not_finite_are_an_error_line_that_is_tried_again() {
    let job_fixture = JobFixture::new(&questions());
    let broken = Fake { broken: Some(22), ..Fake::default() };
    let summary = job_fixture.run(OutputMode::New, ScoreDetails::default(), &broken).expect("runs");
    assert_eq!((summary.failed, summary.outcome()), (3, JobOutcome::Partial));
    let lines = job_fixture.lines();
    assert_eq!(lines[3]["error"]["code"], json!("not_finite"), "{}", lines[3]);
    let summary = job_fixture
        .run(OutputMode::Resume, ScoreDetails::default(), &Fake::default())
        .expect("runs");
    assert_eq!(summary.failed, 1);
}

/// An engine that is interrupted before it computes anything.
struct IdleEngine;

impl BatchEngine for IdleEngine {
    fn run(
        &mut self,
        requests: &dyn BatchRequests,
        _: &mut dyn BatchSink,
    ) -> Result<(), EngineError> {
        assert_eq!(requests.request(1).prompt.len(), 100_001);
        Err(EngineError::Interrupted)
    }
}

/// All sequences together would take 4 GB.
#[test]
fn sequences_are_created_one_by_one() {
    let line = json!({"prompt": vec![3; 100_000], "continuations": vec![[5]; 10_000]});
    let job_fixture = JobFixture::new(&line.to_string());
    let summary = job_fixture
        .run_on(&mut IdleEngine, OutputMode::New, ScoreDetails::default())
        .expect("an interrupted run");
    assert_eq!((summary.not_run, summary.outcome()), (1, JobOutcome::Interrupted));
}
