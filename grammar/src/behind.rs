//! Forms that begin behind a marker: what a model thinks before it is held to nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::calls::{Trigger, Word};
use crate::form::Grammar;
use crate::mask::clear;
use crate::parser::Parser;
use crate::vocabulary::Vocabulary;
use crate::watch::Watch;

/// An answer that is a text of `grammar` from behind its first `marker` on, which must come.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Behind {
    pub marker: Marker,
    /// No such form itself.
    pub grammar: Grammar,
}

/// What a model writes between its thoughts and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Marker {
    /// Not empty.
    Text(String),
    /// At least one; they follow each other.
    Tokens(Vec<u32>),
}

impl Marker {
    /// The bytes that an answer's tokens have behind the marker; `None` where it has none. `bytes`
    /// are those of a token.
    pub fn behind(&self, tokens: &[u32], bytes: impl Fn(u32) -> Vec<u8>) -> Option<Vec<u8>> {
        let spelled = |tokens: &[u32]| tokens.iter().flat_map(|token| bytes(*token)).collect();
        match self {
            Marker::Text(text) => {
                let mut said: Vec<u8> = spelled(tokens);
                let place = said.windows(text.len()).position(|window| window == text.as_bytes());
                Some(said.split_off(place? + text.len()))
            }
            Marker::Tokens(marker) => {
                let place = tokens.windows(marker.len()).position(|window| window == marker);
                Some(spelled(&tokens[place? + marker.len()..]))
            }
        }
    }
}

/// An answer before its marker.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub(crate) parser: Arc<Parser>,
    pub(crate) marked: Arc<[u32]>,
    watch: Watch,
    /// The last tokens, as many as a marker may have.
    last: Vec<u32>,
}

impl Waiting {
    /// Before the marker of a form whose parser begins behind it.
    pub(crate) fn new(parser: Arc<Parser>, marked: Arc<[u32]>) -> Waiting {
        Waiting { parser, marked, watch: Watch::default(), last: Vec::new() }
    }

    /// Sets the bits of all tokens but those that end the answer.
    pub(crate) fn allow(vocabulary: &Vocabulary, mask: &mut [u32]) {
        mask.fill(u32::MAX);
        let beyond = vocabulary.words.len()..mask.len() * 32;
        beyond.for_each(|token| clear(mask, token as u32));
        vocabulary.ends.iter().for_each(|end| clear(mask, *end));
    }

    /// Goes on with a token; where it completes the marker, what it says behind it, but for blanks.
    pub(crate) fn take(
        &mut self,
        vocabulary: &Vocabulary,
        marker: &Marker,
        token: u32,
    ) -> Option<Vec<u8>> {
        match marker {
            Marker::Text(text) => {
                let word = vocabulary.word(token).unwrap_or_default();
                let trigger = Trigger { word: Word::Text(text.clone()), at_start: false };
                let found = self.watch.take(&[trigger], word)?;
                let behind = &found[text.len()..];
                let is_blank = behind.iter().all(u8::is_ascii_whitespace);
                Some(if is_blank { Vec::new() } else { behind.to_vec() })
            }
            Marker::Tokens(tokens) => {
                self.last.push(token);
                let surplus = self.last.len().saturating_sub(tokens.len());
                self.last.drain(..surplus);
                (self.last == *tokens).then(Vec::new)
            }
        }
    }
}
