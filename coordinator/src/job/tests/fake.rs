//! Tokenizer with one token per byte, and an engine whose answers repeat their prompts.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::engine_api::batch::{
    BatchEngine, BatchSequence, EngineError, FinishCause, GenerationOutput, Logprob, Observer,
};
use crate::engine_api::codec::{
    ChatTurn, CodecError, Conversation, TextCodec, TextContext, TextStream,
};
use crate::job::error::JobError;
use crate::job::input::InputOptions;
use crate::job::prepare::{JobOptions, ModelInfo, PreparedJob};
use crate::job::progress::SilentProgress;
use crate::job::progress_counter::ProgressCounter;
use crate::job::read;
use crate::job::run::BatchJob;
use crate::job::sink::{IoTarget, OutputMode};
use crate::job::summary::JobSummary;
use crate::openai::body::defaults::Defaults;
use crate::openai::chats::ChatOptions;
use crate::openai::input_line::InputLine;
use crate::openai::output::OutputLine;
use crate::openai::prompt::ModelLimits;

/// Reads a whole input.
pub(super) fn read_items(bytes: &[u8], options: &InputOptions<'_>) -> Vec<InputLine> {
    read::parse_input(bytes, options, &mut |_, _| ControlFlow::Continue(())).expect("read")
}

/// Token at the beginning of a text.
pub(crate) const BOS: u32 = 256;
/// Token that ends an answer.
pub(crate) const EOS: u32 = 257;

/// Token that cannot be decoded: the tokenizer reports itself unavailable.
pub(crate) const SLEEP: u32 = 290;

/// Character that a chat encodes as `EOS`.
pub(crate) const END_OF_TEXT: char = '\u{3}';

/// Tokenizer whose tokens are the bytes of UTF-8, with `BOS` before a raw prompt, and a chat
/// template in angle brackets that describes tool calls as Hermes does.
#[derive(Debug)]
pub(crate) struct ByteCodec {
    /// `None` if the model has no chat template.
    template: Option<&'static str>,
    /// Strips the first space of a text, as SentencePiece decoders do.
    strips: bool,
}

impl ByteCodec {
    /// A tokenizer without a chat template.
    pub(crate) const PLAIN: ByteCodec = ByteCodec { template: None, strips: false };
    pub(crate) const STRIPPING: ByteCodec = ByteCodec { template: None, strips: true };
    pub(crate) const CHAT: ByteCodec = ByteCodec {
        template: Some("tools: <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>"),
        strips: false,
    };
    /// A model that thinks before it answers; with the variable `think`, prompts end within
    /// thoughts.
    pub(crate) const THINKING: ByteCodec = ByteCodec {
        template: Some(
            "tools: <think></think><tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>",
        ),
        strips: false,
    };
}

impl TextCodec for ByteCodec {
    fn encode(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, CodecError> {
        if text.contains('\u{1}') {
            return Err(CodecError::Refused("the vocabulary has no such character".to_owned()));
        }
        if text.contains('\u{2}') {
            return Err(CodecError::Unavailable("the tokenizer is asleep".to_owned()));
        }
        if text.len() > max_tokens.saturating_mul(8) {
            return Err(CodecError::TooLong { tokens: text.len() });
        }
        Ok(std::iter::once(BOS).chain(text.bytes().map(u32::from)).collect())
    }

    fn encode_part(&self, text: &str) -> Result<Vec<u32>, CodecError> {
        Ok(self.encode(text, usize::MAX)?.split_off(1))
    }

    fn encode_chat(
        &self,
        chat: &Conversation,
        _now_s: u64,
        _max_tokens: usize,
    ) -> Result<Vec<u32>, CodecError> {
        if self.template.is_none() {
            return Err(CodecError::Refused("this model has no chat template".to_owned()));
        }
        let more = |turn: &ChatTurn| -> String {
            turn.extra_fields.iter().map(|(name, value)| format!(" {name}={value}")).collect()
        };
        let tools: String = chat.tools.iter().map(|tool| format!("<tool>{tool}")).collect();
        let turns = chat.turns.iter();
        let turns = turns.map(|turn| format!("<{}{}>{}", turn.role, more(turn), turn.content));
        let thinks = chat.variables.iter().any(|(name, value)| name == "think" && value == "true");
        let end = match (thinks, chat.continues_last_turn) {
            _ if chat.omits_generation_prompt => "<end>",
            (true, _) => "<think>\n",
            (false, true) => "<continued>",
            (false, false) => "",
        };
        let rendered = tools + &turns.collect::<String>() + end;
        let token = |byte| if byte == END_OF_TEXT as u8 { EOS } else { u32::from(byte) };
        Ok(rendered.bytes().map(token).collect())
    }

    fn tools_template(&self) -> Result<Option<String>, CodecError> {
        Ok(self.template.map(str::to_owned))
    }

    fn special_token(&self, _text: &str) -> Result<Option<u32>, CodecError> {
        Ok(None)
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn pieces(&self, context: &TextContext, tokens: &[u32]) -> Result<Vec<String>, CodecError> {
        if tokens.contains(&SLEEP) {
            return Err(CodecError::Unavailable("the tokenizer is asleep".to_owned()));
        }
        let mut stream = ByteStream::behind(context, self.strips);
        let mut pieces: Vec<String> = tokens.iter().map(|token| stream.take(*token)).collect();
        let rest = if tokens.is_empty() { Vec::new() } else { stream.waiting };
        pieces.push(String::from_utf8_lossy(&rest).into_owned());
        Ok(pieces)
    }

    fn stream(&self, context: &TextContext) -> Box<dyn TextStream + '_> {
        Box::new(ByteStream::behind(context, self.strips))
    }
}

struct ByteStream {
    waiting: Vec<u8>,
    /// True if the next space is the first one of a text, which is stripped.
    strips: bool,
}

impl TextStream for ByteStream {
    fn push(&mut self, token: u32) -> Result<String, CodecError> {
        if token == SLEEP {
            return Err(CodecError::Unavailable("the tokenizer is asleep".to_owned()));
        }
        Ok(self.take(token))
    }
}

impl ByteStream {
    fn behind(context: &TextContext, strips: bool) -> ByteStream {
        let mut stream = ByteStream { waiting: Vec::new(), strips };
        for token in &context.tokens {
            stream.take(*token);
        }
        stream.strips &= !context.keeps_leading_space;
        stream
    }

    fn take(&mut self, token: u32) -> String {
        let byte = u8::try_from(token).ok();
        if byte.is_some() && std::mem::take(&mut self.strips) && byte == Some(b' ') {
            return String::new();
        }
        self.waiting.extend(byte);
        match std::str::from_utf8(&self.waiting) {
            Ok(text) => {
                let text = text.to_owned();
                self.waiting.clear();
                text
            }
            Err(_) => String::new(),
        }
    }
}

/// Engine that repeats the prompt until `max_new`; an `EOS` in the prompt ends the answer there.
/// With a temperature every token is mixed with the sampling key, so that a wrong key is detected.
#[derive(Debug)]
pub(super) struct EchoEngine {
    pub(super) capacity: usize,
    /// Sizes of the groups that ran.
    pub(super) groups: Vec<usize>,
    /// Number of steps after which a stop verdict takes effect.
    pub(super) late: usize,
    /// Number of groups to run and the error that ends the run after them.
    pub(super) ends: Option<(usize, EngineError)>,
    /// Number of sequences of the failing group that finish before it fails, taken from its end.
    pub(super) saved: usize,
}

impl EchoEngine {
    pub(super) fn new(capacity: usize) -> EchoEngine {
        EchoEngine { capacity, groups: Vec::new(), late: 1, ends: None, saved: 0 }
    }

    fn answer(
        &self,
        sequence: &BatchSequence<'_>,
        mut each: impl FnMut(u32) -> ControlFlow<()>,
    ) -> GenerationOutput {
        let mut tokens = Vec::new();
        let ended = |tokens: Vec<u32>, finish| {
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
            GenerationOutput {
                logprobs: logprobs(&tokens, sequence.logprobs),
                prompt_logprobs: logprobs(&sequence.prompt[1..], sequence.prompt_logprobs),
                tokens,
                finish,
            }
        };
        let mut remaining_steps = usize::MAX;
        for step in 0..sequence.max_new as usize {
            let mut token = sequence.prompt[step % sequence.prompt.len()];
            if sequence.sampling.temperature > 0.0 {
                let key = sequence.seed.wrapping_mul(31).wrapping_add(sequence.id_hash);
                token = (u64::from(token) + (key >> (step % 8)) % 7) as u32;
            }
            if token == EOS && !sequence.ignore_eos {
                return ended(tokens, FinishCause::Stop);
            }
            tokens.push(token);
            if remaining_steps == usize::MAX && each(token).is_break() {
                remaining_steps = self.late;
            } else if remaining_steps != usize::MAX {
                remaining_steps -= 1;
            }
            if remaining_steps == 0 {
                return ended(tokens, FinishCause::Stop);
            }
        }
        ended(tokens, FinishCause::Length)
    }
}

impl BatchEngine for EchoEngine {
    fn run(
        &mut self,
        sequences: &[BatchSequence<'_>],
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        assert!(!sequences.is_empty());
        for first in (0..sequences.len()).step_by(self.capacity) {
            let group = first..sequences.len().min(first + self.capacity);
            let fails = self.ends.clone().filter(|(after, _)| self.groups.len() == *after);
            let order =
                if fails.is_some() { group.end - self.saved..group.end } else { group.clone() };
            if fails.is_none() {
                self.groups.push(group.len());
            }
            for index in order {
                let generated =
                    self.answer(&sequences[index], |token| observer.on_token(index, token));
                if observer.on_finished(index, generated).is_break() {
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
