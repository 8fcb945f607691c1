//! An engine whose answers repeat their prompts, and a job with files of its own.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine_api::batch::{BatchEngine, BatchRequests, EngineError};
use engine_api::codec::TextCodec;
use engine_api::event::{BatchSink, EngineEvent, FinishCause, Logprob};
use engine_api::request::GenerationRequest;
use openai::body::defaults::Defaults;
use openai::chats::ChatOptions;
use openai::input_line::InputLine;
use openai::output::OutputLine;
use openai::prompt::ModelLimits;
use testkit::byte_codec::{ByteCodec, EOS};

use crate::completions::BatchJob;
use crate::error::JobError;
use crate::input::InputOptions;
use crate::prepare::{JobOptions, ModelInfo, PreparedJob};
use crate::progress::SilentProgress;
use crate::progress_counter::ProgressCounter;
use crate::read;
use crate::sink::{IoTarget, OutputMode};
use crate::summary::JobSummary;

/// Reads a whole input.
pub(super) fn read_items(bytes: &[u8], options: &InputOptions<'_>) -> Vec<InputLine> {
    read::parse_input(bytes, options, &mut |_, _| ControlFlow::Continue(())).expect("read")
}

/// Engine that repeats the prompt until `max_new`; an `EOS` in the prompt ends the answer there.
/// With a temperature every token is mixed with the sampling key, so that a wrong key is detected.
#[derive(Debug)]
pub(super) struct EchoEngine {
    pub(super) capacity: usize,
    /// Sizes of the groups that ran.
    pub(super) groups: Vec<usize>,
    /// Number of groups to run and the error that ends the run after them.
    pub(super) ends: Option<(usize, EngineError)>,
    /// Number of sequences of the failing group that finish before it fails, taken from its end.
    pub(super) saved: usize,
}

impl EchoEngine {
    pub(super) fn new(capacity: usize) -> EchoEngine {
        EchoEngine { capacity, groups: Vec::new(), ends: None, saved: 0 }
    }

    /// Reports the answer to a request.
    fn answer(&self, index: usize, request: &GenerationRequest, sink: &mut dyn BatchSink) {
        // The token itself, then those before it in the vocabulary.
        let logprobs = |tokens: &[u32], wanted: u16| -> Vec<Logprob> {
            let of_token = |token: u32| {
                (0..u32::from(wanted)).map(move |i| Logprob {
                    token: token.saturating_sub(i),
                    logprob: -0.5 * i as f32 - 0.25,
                })
            };
            tokens.iter().copied().flat_map(of_token).collect()
        };
        let prompt = EngineEvent::Prompt {
            cached_tokens: 0,
            queue_time: Duration::ZERO,
            logprobs: logprobs(&request.prompt[1..], request.prompt_logprobs),
        };
        let _ = sink.on_event(index, prompt);
        for step in 0..request.max_new as usize {
            let mut token = request.prompt[step % request.prompt.len()];
            if request.sampling.temperature > 0.0 {
                let key = request.seed.wrapping_mul(31).wrapping_add(request.id_hash);
                token = (u64::from(token) + (key >> (step % 8)) % 7) as u32;
            }
            if token == EOS && !request.ignore_eos {
                let _ = sink.on_event(index, EngineEvent::Finished(FinishCause::Stop));
                return;
            }
            let logprobs = logprobs(&[token], request.logprobs);
            if sink.on_event(index, EngineEvent::Token { token, logprobs }).is_break() {
                return;
            }
        }
        let _ = sink.on_event(index, EngineEvent::Finished(FinishCause::Length));
    }
}

impl BatchEngine for EchoEngine {
    fn run(
        &mut self,
        requests: &dyn BatchRequests,
        sink: &mut dyn BatchSink,
    ) -> Result<(), EngineError> {
        let count = requests.count();
        assert!(count > 0);
        for first in (0..count).step_by(self.capacity) {
            let group = first..count.min(first + self.capacity);
            let fails = self.ends.clone().filter(|(after, _)| self.groups.len() == *after);
            let order =
                if fails.is_some() { group.end - self.saved..group.end } else { group.clone() };
            if fails.is_none() {
                self.groups.push(group.len());
            }
            for index in order {
                self.answer(index, &requests.request(index), sink);
                if sink.has_failed() {
                    return Err(EngineError::Interrupted);
                }
            }
            if let Some((_, error)) = fails {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Directory with an input and an output, and the options of the job between them.
#[derive(Debug)]
pub(super) struct TestJob {
    folder: tempfile::TempDir,
    pub(super) options: JobOptions,
    pub(super) context: usize,
    pub(super) codec: Option<ByteCodec>,
    pub(super) fingerprint: String,
}

impl TestJob {
    pub(super) fn new(input: &[u8]) -> TestJob {
        TestJob::named("in.jsonl", input)
    }

    pub(super) fn named(name: &str, input: &[u8]) -> TestJob {
        // In memory if possible: a test of every truncation point syncs often.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.expect("a temporary folder");
        let path = folder.path().join(name);
        std::fs::write(&path, input).expect("writable");
        // Answers take their creation time from the input: equal jobs need equal times.
        let file = std::fs::File::options().write(true).open(&path).expect("written");
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        file.set_modified(then).expect("ours");
        let options = JobOptions {
            input: IoTarget::File(path),
            output: IoTarget::File(folder.path().join("out.jsonl")),
            mode: OutputMode::New,
            chat: false,
            chat_options: ChatOptions::default(),
            max_tokens: None,
            seed: 0,
            defaults: Defaults::default(),
            ignore_unknown_fields: false,
            bounds: None,
        };
        let codec = Some(ByteCodec::CHAT);
        TestJob { folder, options, context: 64, codec, fingerprint: "fp_test".to_owned() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn output_path(&self) -> &Path {
        match &self.options.output {
            IoTarget::File(path) => path,
            IoTarget::Standard => panic!("tests write files"),
        }
    }

    pub(super) fn output(&self) -> Vec<u8> {
        std::fs::read(self.output_path()).expect("an output")
    }

    pub(super) fn lines(&self) -> Vec<OutputLine> {
        let bytes = self.output();
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        lines.map(|line| serde_json::from_slice(line).expect("an output line")).collect()
    }

    pub(super) fn prepare(&self) -> Result<BatchJob<'_>, JobError> {
        let facts = ModelInfo {
            name: "echo".to_owned(),
            aliases: vec!["org/echo".to_owned()],
            limits: ModelLimits {
                context: self.context,
                vocab_size: 300,
                unsupported_tokenizer: None,
            },
            codec: self.codec.as_ref().map(|codec| codec as &dyn TextCodec),
        };
        let read =
            PreparedJob::prepare(&self.options, facts, &mut ProgressCounter::silent(), &|| false)?;
        read.resume(self.fingerprint.clone())
    }

    pub(super) fn run(&self, engine: &mut EchoEngine) -> Result<JobSummary, JobError> {
        let job = self.prepare()?;
        match job.workload() {
            Some(_) => job.run(Some(engine), &mut SilentProgress, &|| false),
            None => job.run(None, &mut SilentProgress, &|| false),
        }
    }

    /// Returns the sorted names in the directory, to check that nothing is left over.
    pub(super) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("readable").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}
