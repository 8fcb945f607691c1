//! Matcher of the part of an answer before its marker.

use std::sync::Arc;

use crate::calls::Trigger;
use crate::marker::Marker;
use crate::mask::clear;
use crate::parser::Parser;
use crate::syntax::SyntaxElement;
use crate::trigger_scanner::TriggerScanner;
use crate::vocabulary::Vocabulary;

/// State of an answer before its marker.
#[derive(Clone)]
pub(crate) struct MarkerScanner {
    pub(crate) parser: Arc<Parser>,
    pub(crate) key_tokens: Arc<[u32]>,
    trigger_scanner: TriggerScanner,
    /// The last tokens, at most as many as the marker has.
    last_tokens: Vec<u32>,
}

impl MarkerScanner {
    /// Creates the state before the marker; `parser` begins after it.
    pub(crate) fn new(parser: Arc<Parser>, key_tokens: Arc<[u32]>) -> MarkerScanner {
        MarkerScanner {
            parser,
            key_tokens,
            trigger_scanner: TriggerScanner::default(),
            last_tokens: Vec::new(),
        }
    }

    /// Allows all tokens except those that end the answer.
    pub(crate) fn fill_mask(vocabulary: &Vocabulary, mask: &mut [u32]) {
        mask.fill(u32::MAX);
        let beyond = vocabulary.words.len()..mask.len() * 32;
        beyond.for_each(|token| clear(mask, token as u32));
        vocabulary.ends.iter().for_each(|end| clear(mask, *end));
    }

    /// Advances by a token. If it completes the marker, returns its bytes after the marker, or none
    /// if they are only whitespace.
    pub(crate) fn accept_token(
        &mut self,
        vocabulary: &Vocabulary,
        marker: &Marker,
        token: u32,
    ) -> Option<Vec<u8>> {
        match marker {
            Marker::Text(text) => {
                let word = vocabulary.word(token).unwrap_or_default();
                let trigger = Trigger { word: SyntaxElement::Text(text.clone()), at_start: false };
                let found = self.trigger_scanner.advance(&[trigger], word)?;
                let behind = &found[text.len()..];
                let is_blank = behind.iter().all(u8::is_ascii_whitespace);
                Some(if is_blank { Vec::new() } else { behind.to_vec() })
            }
            Marker::Tokens(tokens) => {
                self.last_tokens.push(token);
                let surplus = self.last_tokens.len().saturating_sub(tokens.len());
                self.last_tokens.drain(..surplus);
                (self.last_tokens == *tokens).then(Vec::new)
            }
        }
    }
}
