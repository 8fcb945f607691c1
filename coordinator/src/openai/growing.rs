//! An answer while it grows: what of it can be told already.
//!
//! What is told in pieces is what [`finish`] says of all tokens, which has the last word at the
//! end. Held back is only what may still be cut: text that may begin a stop string, and tokens that
//! may belong to one.

use super::logprobs::Logprobs;
use super::stop::{Answer, completed, finish, may_begin};
use crate::boundary::codec::{TextCodec, TextStream};
use crate::boundary::engine::{Finish, Generated, Logprob};

/// What an answer has more than before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// May be empty.
    pub text: String,
    /// May be none, and of other tokens than the text: those whose place in the answer is certain.
    pub token_ids: Vec<u32>,
    /// Of `token_ids`; `None` where none were asked for.
    pub logprobs: Option<Logprobs>,
}

/// How an answer is followed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Following {
    /// It is told while it grows.
    pub is_streamed: bool,
    /// It ends before the first of these; none is empty.
    pub stop: Vec<String>,
    /// Log-probabilities of each token.
    pub width: usize,
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
    given_bytes: usize,
    given_tokens: usize,
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
            stream: codec.filter(|_| looks).map(|codec| codec.stream()),
            following,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            ends: vec![(0, 0)],
            given_bytes: 0,
            given_tokens: 0,
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
        completed(&self.text, before, &self.following.stop).is_some()
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
        let text = self.text[self.given_bytes.min(safe)..safe].to_owned();
        let fresh = self.given_tokens..certain.max(self.given_tokens);
        let width = self.following.width;
        let logprobs = (width > 0).then(|| {
            let starts = self.ends[fresh.clone()].iter().map(|end| end.1).collect();
            let of_tokens = &self.logprobs[width * fresh.start..width * fresh.end];
            Logprobs::new(of_tokens, width, starts, self.codec)
        });
        let token_ids = self.tokens[fresh.clone()].to_vec();
        (self.given_bytes, self.given_tokens) = (safe.max(self.given_bytes), fresh.end);
        Delta { text, token_ids, logprobs }
    }

    /// The whole answer, and what of it was not told.
    pub fn end(self, finish_reason: Finish) -> (Delta, Answer) {
        let Growing { codec, following, tokens, logprobs, given_bytes, given_tokens, .. } = self;
        let generated = Generated { tokens, logprobs, finish: finish_reason };
        let answer = finish(generated, &following.stop, following.width, codec);
        let text = answer.text.as_deref().and_then(|text| text.get(given_bytes..));
        let delta = Delta {
            text: text.unwrap_or_default().to_owned(),
            token_ids: answer.token_ids.get(given_tokens..).unwrap_or_default().to_vec(),
            logprobs: answer.logprobs.clone().map(|logprobs| logprobs.skip(given_tokens)),
        };
        (delta, answer)
    }
}
