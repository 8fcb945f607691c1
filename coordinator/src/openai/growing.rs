//! An answer while it grows: what of it can be told already.
//!
//! What is told in pieces is what [`finish`] says of all tokens, which has the last word at the
//! end. Held back is only what may still be cut: text that may begin a stop string, and tokens that
//! may belong to one.

use super::following::Following;
use super::logprobs::Logprobs;
use super::parts::{CallDelta, Found, Parts};
use super::reader::AnswerReader;
use super::stop::{Answer, completed, finish, may_begin};
use crate::boundary::codec::{TextCodec, TextStream};
use crate::boundary::engine::{Finish, Generated, Logprob};

/// What an answer has more than before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// May be empty.
    pub text: String,
    /// What it thinks; may be empty.
    pub reasoning: String,
    /// Of functions that it calls.
    pub calls: Vec<CallDelta>,
    /// May be none, and of other tokens than the text: those whose place in the answer is certain.
    pub token_ids: Vec<u32>,
    /// Of `token_ids`; `None` where none were asked for.
    pub logprobs: Option<Logprobs>,
}

/// An answer that grows.
pub struct Growing<'a> {
    codec: Option<&'a dyn TextCodec>,
    following: Following,
    /// `None` where text need not be looked at before the end.
    stream: Option<Box<dyn TextStream + 'a>>,
    tokens: Vec<u32>,
    logprobs: Vec<Logprob>,
    text: String,
    /// Bytes and characters of the text after so many tokens.
    ends: Vec<(usize, usize)>,
    /// Bytes of the text that were read.
    read_bytes: usize,
    /// Tokens that were read.
    read_tokens: usize,
    given_tokens: usize,
    /// `None` where there is a text alone.
    reader: Option<AnswerReader>,
    told: Parts,
}

impl std::fmt::Debug for Growing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl<'a> Growing<'a> {
    /// An answer without tokens.
    pub fn new(codec: Option<&'a dyn TextCodec>, following: Following) -> Growing<'a> {
        let looks = following.is_streamed || !following.stop.is_empty();
        Growing {
            codec,
            stream: codec.filter(|_| looks).map(|codec| codec.stream(&following.context)),
            reader: following.is_streamed.then(|| AnswerReader::new(&following)).flatten(),
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

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Takes the next token; whether a stop string is now complete, so that the answer ends.
    pub fn push(&mut self, token: u32, logprobs: &[Logprob]) -> bool {
        self.tokens.push(token);
        self.logprobs.extend_from_slice(logprobs);
        let Some(stream) = &mut self.stream else {
            self.ends.push((0, 0));
            return false;
        };
        // What the decoder refuses is told when the answer has ended.
        let piece = stream.push(token).unwrap_or_default();
        let before = self.text.len();
        self.text.push_str(&piece);
        let characters = self.ends.last().map_or(0, |end| end.1) + piece.chars().count();
        self.ends.push((self.text.len(), characters));
        let is_past_least = self.tokens.len() > self.following.min_tokens as usize;
        completed(&self.text, before, &self.following.stop).is_some() && is_past_least
    }

    /// What can be told and was not, unless a stop string is complete.
    pub fn take(&mut self) -> Delta {
        let stop = &self.following.stop;
        let safe = self.text.len() - may_begin(&self.text, stop);
        let certain = if stop.is_empty() {
            self.tokens.len()
        } else {
            // What follows the last whole piece without text of its own may belong to what
            // follows it.
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

    /// Reads up to where the text is `safe`, with so many tokens that are `certain`.
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

    /// The whole answer, and what of it was not told.
    pub fn end(self, finish_reason: Finish) -> (Delta, Answer) {
        let Growing { codec, following, tokens, logprobs, given_tokens, told, .. } = self;
        let generated =
            Generated { tokens, logprobs, prompt_logprobs: Vec::new(), finish: finish_reason };
        let answer = finish(generated, &following, codec);
        let all = Parts {
            reasoning: answer.reasoning.clone(),
            content: answer.text.clone().unwrap_or_default(),
            calls: answer.calls.clone(),
        };
        let Found { reasoning, content: text, calls } = all.beyond(&told);
        let delta = Delta {
            text,
            reasoning,
            calls,
            token_ids: answer.token_ids.get(given_tokens..).unwrap_or_default().to_vec(),
            logprobs: answer.logprobs.clone().map(|logprobs| logprobs.skip(given_tokens)),
        };
        (delta, answer)
    }
}
