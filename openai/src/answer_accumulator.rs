//! Streaming of an answer that is being generated.
//!
//! The streamed pieces add up to the result of [`finish`] for all tokens, which determines the last
//! piece. Only parts that may still be cut are held back: text that may begin a stop string, and
//! tokens that may belong to one.

use crate::stop::GeneratedTokens;
use engine_api::codec::{TextCodec, TextStream};
use engine_api::event::{FinishCause, Logprob};

use super::answer_options::AnswerOptions;
use super::answer_parser::AnswerParser;
use super::answer_parts::{AnswerParts, CallDelta, PartsDelta};
use super::logprobs::{Logprobs, Spelling};
use super::raw_logprobs::RawLogprobs;
use super::stop::{Answer, finish};
use super::stop_strings::StopScanner;

/// Continuation of a streamed answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerDelta {
    /// New text; may be empty.
    pub text: String,
    /// New reasoning; may be empty.
    pub reasoning: String,
    /// Continuations of tool calls.
    pub calls: Vec<CallDelta>,
    /// New tokens, possibly none. They are those whose place in the answer is certain, and need not
    /// be the tokens of the new text.
    pub token_ids: Vec<u32>,
    /// Log-probabilities of `token_ids`; `None` if none were requested.
    pub logprobs: Option<Logprobs>,
}

impl AnswerDelta {
    /// Returns the continuation without tokens.
    pub fn into_parts(self) -> PartsDelta {
        let AnswerDelta { text: content, reasoning, calls, .. } = self;
        PartsDelta { reasoning, content, calls }
    }
}

/// An answer that is being generated.
pub struct AnswerAccumulator<'a> {
    codec: Option<&'a dyn TextCodec>,
    options: AnswerOptions,
    /// Incremental decoder; `None` if the text is not needed before the end.
    stream: Option<Box<dyn TextStream + 'a>>,
    scanner: StopScanner,
    tokens: Vec<u32>,
    logprobs: Vec<Logprob>,
    text: String,
    /// Length of the text in bytes and characters after each number of tokens, from none to all.
    ends: Vec<(usize, usize)>,
    /// Number of bytes of the text that have been read.
    read_bytes: usize,
    /// Number of tokens that have been read.
    read_tokens: usize,
    streamed_tokens: usize,
    /// Reader of the answer's parts; `None` if the answer is not streamed or is only text.
    reader: Option<AnswerParser>,
    streamed: AnswerParts,
}

impl std::fmt::Debug for AnswerAccumulator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerAccumulator")
            .field("tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

impl<'a> AnswerAccumulator<'a> {
    /// Creates an answer without tokens.
    pub fn new(codec: Option<&'a dyn TextCodec>, options: AnswerOptions) -> AnswerAccumulator<'a> {
        let needs_text = options.is_streamed || !options.stop.is_empty();
        AnswerAccumulator {
            codec,
            stream: codec.filter(|_| needs_text).map(|codec| codec.stream(&options.context)),
            reader: options.is_streamed.then(|| AnswerParser::new(&options)).flatten(),
            scanner: StopScanner::new(&options.stop),
            options,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            ends: vec![(0, 0)],
            read_bytes: 0,
            read_tokens: 0,
            streamed_tokens: 0,
            streamed: AnswerParts::default(),
        }
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if there is no token yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds the next token. Returns true if a stop string is complete, so that the answer ends.
    pub fn push(&mut self, token: u32, logprobs: &[Logprob]) -> bool {
        self.tokens.push(token);
        self.logprobs.extend_from_slice(logprobs);
        let Some(stream) = &mut self.stream else {
            self.ends.push((0, 0));
            return false;
        };
        // An error of the decoder is reported when the answer has ended.
        let piece = stream.push(token).unwrap_or_default();
        self.text.push_str(&piece);
        let characters = self.ends.last().map_or(0, |end| end.1) + piece.chars().count();
        self.ends.push((self.text.len(), characters));
        let is_past_min = self.tokens.len() > self.options.min_tokens as usize;
        self.scanner.push(&piece).is_some() && is_past_min
    }

    /// Returns what can be streamed and was not returned before. If a stop string is complete,
    /// [`AnswerAccumulator::end`] returns the rest instead.
    pub fn take(&mut self) -> AnswerDelta {
        let safe = self.text.len() - self.scanner.held_bytes();
        let certain = if self.options.stop.is_empty() {
            self.tokens.len()
        } else {
            // Tokens without text of their own after the last complete piece may belong to the next
            // piece.
            let whole = self.ends.iter().rev().find(|end| end.0 <= safe).map_or(0, |end| end.0);
            self.ends.partition_point(|end| end.0 < whole)
        };
        let fresh = self.streamed_tokens..certain.max(self.streamed_tokens);
        let width = self.options.logprobs_per_token;
        let logprobs = (width > 0).then(|| {
            let starts = self.ends[fresh.clone()].iter().map(|end| end.1).collect();
            let of_tokens = &self.logprobs[width * fresh.start..width * fresh.end];
            let spells_ids = self.options.output.spells_token_ids;
            Logprobs::new(of_tokens, width, starts, Spelling { codec: self.codec, spells_ids })
        });
        let token_ids = self.tokens[fresh.clone()].to_vec();
        let delta = self.read(safe, fresh.end);
        self.streamed_tokens = fresh.end;
        self.streamed.extend(&delta);
        let PartsDelta { reasoning, content: text, calls } = delta;
        AnswerDelta { text, reasoning, calls, token_ids, logprobs }
    }

    /// Reads the text up to `safe` bytes, and the first `certain_tokens` tokens.
    fn read(&mut self, safe: usize, certain_tokens: usize) -> PartsDelta {
        let from = self.read_bytes.min(safe);
        self.read_bytes = safe.max(self.read_bytes);
        let Some(reader) = &mut self.reader else {
            return PartsDelta {
                content: self.text[from..safe].to_owned(),
                ..PartsDelta::default()
            };
        };
        for (at, char) in self.text[from..safe].char_indices() {
            while self.read_tokens < self.tokens.len() && self.ends[self.read_tokens].0 <= from + at
            {
                reader.push_token(self.tokens[self.read_tokens]);
                self.read_tokens += 1;
            }
            reader.push_char(char);
        }
        while self.read_tokens < certain_tokens {
            reader.push_token(self.tokens[self.read_tokens]);
            self.read_tokens += 1;
        }
        reader.take()
    }

    /// Ends the answer, whose text is decoded elsewhere.
    pub fn into_finished_tokens(self, finish: FinishCause) -> FinishedTokens {
        let AnswerAccumulator { options, tokens, logprobs, streamed_tokens, streamed, .. } = self;
        let generated = GeneratedTokens { tokens, logprobs, finish };
        FinishedTokens { generated, options, streamed_tokens, streamed }
    }

    /// Ends the answer; returns all of it and the part that was not streamed.
    pub fn end(self, finish: FinishCause) -> FinishedAnswer {
        let codec = self.codec;
        self.into_finished_tokens(finish).finish(codec)
    }
}

/// The tokens of an answer that has ended. Its text is not decoded yet, which takes long for long
/// answers.
#[derive(Debug)]
pub struct FinishedTokens {
    generated: GeneratedTokens,
    options: AnswerOptions,
    streamed_tokens: usize,
    streamed: AnswerParts,
}

/// A complete answer.
#[derive(Debug)]
pub struct FinishedAnswer {
    /// Part of a streamed answer that was not streamed before.
    pub rest: AnswerDelta,
    /// The answer without log-probabilities.
    pub answer: Answer,
    /// Log-probabilities of an answer that is not streamed, if they were requested.
    pub logprobs: Option<RawLogprobs>,
}

impl FinishedAnswer {
    /// Returns an answer that is not streamed, with the tokens of its log-probabilities spelled.
    pub fn into_answer(self, codec: Option<&dyn TextCodec>) -> Answer {
        let logprobs = self.logprobs.map(|found| found.decode(codec));
        Answer { logprobs, ..self.answer }
    }
}

impl FinishedTokens {
    /// Returns the number of tokens that were generated.
    pub fn len(&self) -> usize {
        self.generated.tokens.len()
    }

    /// Returns true if no token was generated.
    pub fn is_empty(&self) -> bool {
        self.generated.tokens.is_empty()
    }

    /// Decodes the text and separates the parts of the answer.
    pub fn finish(self, codec: Option<&dyn TextCodec>) -> FinishedAnswer {
        let FinishedTokens { generated, options, streamed_tokens, streamed } = self;
        let (answer, logprobs) = finish(generated, &options, codec);
        if !options.is_streamed {
            return FinishedAnswer { rest: AnswerDelta::default(), answer, logprobs };
        }
        let all = AnswerParts {
            reasoning: answer.reasoning.clone(),
            content: answer.text.clone().unwrap_or_default(),
            calls: answer.calls.clone(),
        };
        let PartsDelta { reasoning, content: text, calls } = all.delta_since(&streamed);
        let rest = AnswerDelta {
            text,
            reasoning,
            calls,
            token_ids: answer.token_ids.get(streamed_tokens..).unwrap_or_default().to_vec(),
            logprobs: logprobs.map(|found| found.skip(streamed_tokens).decode(codec)),
        };
        FinishedAnswer { rest, answer, logprobs: None }
    }
}
