//! Tests of jobs of embeddings, from input to output, and of resuming them.

use std::sync::{Arc, Mutex};

use engine_api::event::FinishCause;
use engine_api::request::Pooling;
use engine_api::serving::{
    Engine, EngineEvent, EngineLimits, EngineState, EngineStatus, EventSink, GenerationId,
    GenerationRequest, PreparedGrammar, SubmitError,
};
use grammar::Grammar;
use openai::body::defaults::Defaults;
use openai::chats::ChatOptions;
use openai::embeddings::line::EmbeddingLine;
use openai::embeddings::model::EmbeddingModel;
use openai::embeddings::response::EncodedVector;
use openai::prompt::ModelLimits;
use tempfile::TempDir;

use crate::error::JobError;
use crate::outcome::JobOutcome;
use crate::prepare::{JobOptions, ModelInfo, PreparedInput};
use crate::progress::SilentProgress;
use crate::progress_counter::ProgressCounter;
use crate::serving_adapter::ServingAdapter;
use crate::sink::{IoTarget, OutputMode};
use crate::summary::JobSummary;

/// Token whose hidden states are not finite.
const BROKEN: u32 = 66;

/// Engine that answers a submission at once: its hidden state is the last token and the length.
#[derive(Debug, Default)]
struct PoolingEngine {
    /// Number of sequences after which the engine fails.
    max: Option<usize>,
    submissions: Mutex<Vec<GenerationRequest>>,
}

impl Engine for PoolingEngine {
    fn limits(&self) -> EngineLimits {
        EngineLimits { slots: 2, context: 64, logprobs: 0 }
    }

    fn status(&self) -> EngineStatus {
        EngineStatus::new(EngineState::Ready)
    }

    fn prepare(&self, grammar: Arc<Grammar>) -> PreparedGrammar {
        PreparedGrammar { grammar, compiled: None }
    }

    fn submit(
        &self,
        submission: GenerationRequest,
        mut sink: Box<dyn EventSink>,
    ) -> Result<GenerationId, SubmitError> {
        let mut submissions = self.submissions.lock().expect("no thread of a test panics");
        let id = GenerationId(submissions.len() as u64);
        if self.max.is_some_and(|max| submissions.len() >= max) {
            let _ = sink.on_event(EngineEvent::Failed("The device is on fire.".to_owned()));
            return Ok(id);
        }
        let last = submission.prompt[submission.prompt.len() - 1];
        let first = if last == BROKEN { f32::NAN } else { last as f32 };
        let hidden = vec![first, submission.prompt.len() as f32];
        submissions.push(submission);
        let queue_time = std::time::Duration::ZERO;
        for event in [
            EngineEvent::Prompt { cached_tokens: 0, queue_time, logprobs: Vec::new() },
            EngineEvent::Pooled(hidden),
            EngineEvent::Token { token: 1, logprobs: Vec::new() },
            EngineEvent::Finished(FinishCause::Length),
        ] {
            let _ = sink.on_event(event);
        }
        Ok(id)
    }

    fn cancel(&self, _: GenerationId) {}

    fn drain(&self) {}
}

struct JobFixture {
    folder: TempDir,
}

impl JobFixture {
    fn new(input: &str) -> JobFixture {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("in.jsonl"), input).expect("writable");
        JobFixture { folder }
    }

    fn run(&self, mode: OutputMode, engine: &PoolingEngine) -> Result<JobSummary, JobError> {
        let target = |name: &str| IoTarget::File(self.folder.path().join(name));
        let options = JobOptions {
            input: target("in.jsonl"),
            output: target("out.jsonl"),
            mode,
            chat: false,
            chat_options: ChatOptions::default(),
            max_tokens: None,
            seed: 0,
            defaults: Defaults::default(),
            ignore_unknown_fields: false,
            bounds: None,
        };
        let limits = ModelLimits { context: 8, vocab_size: 100, unsupported_tokenizer: None };
        let info = ModelInfo { name: "m".to_owned(), aliases: Vec::new(), limits, codec: None };
        let model =
            EmbeddingModel { pooling: Ok(Pooling::Mean), hidden_size: 2, is_matryoshka: false };
        let mut reading = ProgressCounter::silent();
        let prepared = PreparedInput::prepare(&options, info, &model, &mut reading, &|| false)?;
        let PreparedInput::Embeddings(prepared) = prepared else { panic!("{prepared:?}") };
        let job = prepared.resume("fp_test".to_owned())?;
        let mut adapter = ServingAdapter::new(engine, Vec::new(), &|| false);
        job.run(Some(&mut adapter), &mut SilentProgress, &|| false)
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("out.jsonl")).expect("an output")
    }

    fn lines(&self) -> Vec<EmbeddingLine> {
        let output = self.output();
        output.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
    }
}

fn line(id: &str, input: &str) -> String {
    let body = format!("{{\"input\": {input}}}");
    format!(
        "{{\"custom_id\": \"{id}\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", \"body\": \
         {body}}}\n"
    )
}

fn vectors(line: &EmbeddingLine) -> Vec<Vec<f32>> {
    let response = line.response.as_ref().expect("a response");
    let floats = response.body.data.iter().map(|object| match &object.embedding {
        EncodedVector::Float(vector) => vector.clone(),
        EncodedVector::Base64(text) => panic!("{text}"),
    });
    floats.collect()
}

#[test]
fn lines_have_a_vector_for_each_input_and_their_own_errors() {
    let input = [
        "\n".to_owned(),
        line("a", "[[3, 4], [1, 1, 1]]"),
        line("b", "\"text\""),
        line("c", &format!("[[1], [{BROKEN}]]")),
        "{\"custom_id\": \"d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {}}\n"
            .to_owned(),
    ];
    let job = JobFixture::new(&input.concat());
    let engine = PoolingEngine::default();
    let summary = job.run(OutputMode::New, &engine).expect("it runs");
    assert_eq!(summary.outcome(), JobOutcome::Partial);
    assert_eq!((summary.answered, summary.failed_lines), (1, vec![3, 4, 5]));
    let lines = job.lines();
    let ids: Vec<&str> = lines.iter().map(|line| &*line.custom_id).collect();
    assert_eq!(ids, ["a", "b", "c", "d"]);
    let root = 20f32.sqrt();
    assert_eq!(vectors(&lines[0])[0], [4.0 / root, 2.0 / root]);
    let codes: Vec<&str> = lines[1..]
        .iter()
        .map(|line| line.error.as_ref().map_or("", |error| error.code.as_str()))
        .collect();
    assert_eq!(codes, ["no_tokenizer", "not_finite", "unsupported_url"]);
    let submissions = engine.submissions.lock().expect("no thread of a test panics");
    assert!(submissions.iter().all(|one| one.pooling == Some(Pooling::Mean) && one.max_new == 1));
}

#[test]
fn a_resumed_job_has_the_output_of_an_undisturbed_one() {
    let input: String =
        (0..6).map(|i| line(&format!("r{i}"), &format!("[[{i}, 7], [2]]"))).collect();
    let whole = JobFixture::new(&input);
    whole.run(OutputMode::New, &PoolingEngine::default()).expect("it runs");
    let cut = JobFixture::new(&input);
    let failing = PoolingEngine { max: Some(5), ..PoolingEngine::default() };
    cut.run(OutputMode::New, &failing).expect_err("the engine fails");
    let kept = cut.output().lines().count();
    assert!((1..6).contains(&kept), "{kept} lines");
    let rest = PoolingEngine::default();
    let summary = cut.run(OutputMode::Resume, &rest).expect("it runs");
    assert_eq!(summary.answered, 6);
    assert_eq!(rest.submissions.lock().expect("idle").len(), 2 * (6 - kept));
    assert_eq!(cut.output(), whole.output());
}
