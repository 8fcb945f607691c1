//! Streaming of an answer that is being generated.
//!
//! The streamed pieces add up to the result of [`finish`] for all tokens, which determines the last
//! piece. Only parts that may still be cut are held back: text that may begin a stop string, and
//! tokens that may belong to one.

use super::following::Following;
use super::found_logprobs::FoundLogprobs;
use super::logprobs::Logprobs;
use super::parts::{CallDelta, Found, Parts};
use super::reader::AnswerReader;
use super::stop::{Answer, finish_unspelled};
use super::stop_strings::StopScanner;
use crate::boundary::codec::{TextCodec, TextStream};
use crate::boundary::engine::{Finish, Generated, Logprob};

/// Continuation of a streamed answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
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

/// An answer that is being generated.
pub struct Growing<'a> {
    codec: Option<&'a dyn TextCodec>,
    following: Following,
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
    given_tokens: usize,
    /// Reader of the answer's parts; `None` if the answer is not streamed or is only text.
    reader: Option<AnswerReader>,
    told: Parts,
}

impl std::fmt::Debug for Growing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl<'a> Growing<'a> {
    /// Creates an answer without tokens.
    pub fn new(codec: Option<&'a dyn TextCodec>, following: Following) -> Growing<'a> {
        let looks = following.is_streamed || !following.stop.is_empty();
        Growing {
            codec,
            stream: codec.filter(|_| looks).map(|codec| codec.stream(&following.context)),
            reader: following.is_streamed.then(|| AnswerReader::new(&following)).flatten(),
            scanner: StopScanner::new(&following.stop),
            following,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            ends: vec![(0, 0)],
            read_bytes: 0,
            read_tokens: 0,
            given_tokens: 0,
            told: Parts::default(),
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
        let is_past_min = self.tokens.len() > self.following.min_tokens as usize;
        self.scanner.push(&piece).is_some() && is_past_min
    }

    /// Returns what can be streamed and was not returned before. If a stop string is complete,
    /// [`Growing::end`] returns the rest instead.
    pub fn take(&mut self) -> Delta {
        let safe = self.text.len() - self.scanner.held_bytes();
        let certain = if self.following.stop.is_empty() {
            self.tokens.len()
        } else {
            // Tokens without text of their own after the last complete piece may belong to the next
            // piece.
            let whole = self.ends.iter().rev().find(|end| end.0 <= safe).map_or(0, |end| end.0);
            self.ends.partition_point(|end| end.0 < whole)
        };
        let fresh = self.given_tokens..certain.max(self.given_tokens);
        let width = self.following.width;
        let logprobs = (width > 0).then(|| {
            let starts = self.ends[fresh.clone()].iter().map(|end| end.1).collect();
            let of_tokens = &self.logprobs[width * fresh.start..width * fresh.end];
            Logprobs::new(of_tokens, width, starts, self.codec)
        });
        let token_ids = self.tokens[fresh.clone()].to_vec();
        let found = self.read(safe, fresh.end);
        self.given_tokens = fresh.end;
        self.told.extend(&found);
        let Found { reasoning, content: text, calls } = found;
        Delta { text, reasoning, calls, token_ids, logprobs }
    }

    /// Reads the text up to `safe` bytes, and the first `certain` tokens.
    fn read(&mut self, safe: usize, certain: usize) -> Found {
        let from = self.read_bytes.min(safe);
        self.read_bytes = safe.max(self.read_bytes);
        let Some(reader) = &mut self.reader else {
            return Found { content: self.text[from..safe].to_owned(), ..Found::default() };
        };
        for (at, char) in self.text[from..safe].char_indices() {
            while self.read_tokens < self.tokens.len() && self.ends[self.read_tokens].0 <= from + at
            {
                reader.push_token(self.tokens[self.read_tokens]);
                self.read_tokens += 1;
            }
            reader.push_char(char);
        }
        while self.read_tokens < certain {
            reader.push_token(self.tokens[self.read_tokens]);
            self.read_tokens += 1;
        }
        reader.take()
    }

    /// Ends the answer, whose text is decoded elsewhere.
    pub fn into_ended(self, finish: Finish) -> EndedTokens {
        let Growing { following, tokens, logprobs, given_tokens, told, .. } = self;
        let generated = Generated { tokens, logprobs, prompt_logprobs: Vec::new(), finish };
        EndedTokens { generated, following, given_tokens, told }
    }

    /// Ends the answer; returns all of it and the part that was not streamed.
    pub fn end(self, finish: Finish) -> EndedAnswer {
        let codec = self.codec;
        self.into_ended(finish).finish(codec)
    }
}

/// The tokens of an answer that has ended. Its text is not decoded yet, which takes long for long
/// answers.
#[derive(Debug)]
pub struct EndedTokens {
    generated: Generated,
    following: Following,
    given_tokens: usize,
    told: Parts,
}

/// A complete answer.
#[derive(Debug)]
pub struct EndedAnswer {
    /// Part of a streamed answer that was not streamed before.
    pub rest: Delta,
    /// The answer without log-probabilities.
    pub answer: Answer,
    /// Log-probabilities of an answer that is not streamed, if they were requested.
    pub logprobs: Option<FoundLogprobs>,
}

impl EndedTokens {
    /// Returns the number of tokens that were generated.
    pub fn len(&self) -> usize {
        self.generated.tokens.len()
    }

    /// Returns true if no token was generated.
    pub fn is_empty(&self) -> bool {
        self.generated.tokens.is_empty()
    }

    /// Decodes the text and separates the parts of the answer.
    pub fn finish(self, codec: Option<&dyn TextCodec>) -> EndedAnswer {
        let EndedTokens { generated, following, given_tokens, told } = self;
        let (answer, logprobs) = finish_unspelled(generated, &following, codec);
        if !following.is_streamed {
            return EndedAnswer { rest: Delta::default(), answer, logprobs };
        }
        let all = Parts {
            reasoning: answer.reasoning.clone(),
            content: answer.text.clone().unwrap_or_default(),
            calls: answer.calls.clone(),
        };
        let Found { reasoning, content: text, calls } = all.beyond(&told);
        let rest = Delta {
            text,
            reasoning,
            calls,
            token_ids: answer.token_ids.get(given_tokens..).unwrap_or_default().to_vec(),
            logprobs: logprobs.map(|found| found.skip(given_tokens).spelled(codec)),
        };
        EndedAnswer { rest, answer, logprobs: None }
    }
}
