//! Reasoning between two markers, before the answer.

use super::piece::AnswerPiece;
use super::syntax::{Tag, Tags};
use crate::char_or_token::CharOrToken;

/// Reader that separates the text between the markers from what follows. Whitespace around
/// reasoning belongs to neither.
#[derive(Debug, Clone)]
pub struct TagParser {
    tags: Tags,
    state: TagState,
    /// Text that is not classified yet: the beginning of a marker, and whitespace before it.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagState {
    /// At the beginning, with nothing but whitespace so far.
    Start,
    /// In the reasoning; `is_first`: none has been found yet.
    Reasoning {
        is_first: bool,
    },
    /// After the reasoning, before the answer.
    AfterReasoning,
    Answer,
}

impl TagParser {
    /// Creates a reader at the beginning of an answer, which is within reasoning if `is_open`.
    pub fn new(tags: Tags, is_open: bool) -> TagParser {
        let state = if is_open { TagState::Reasoning { is_first: true } } else { TagState::Start };
        TagParser { tags, state, held: String::new() }
    }

    /// Returns true if `token` is one of the markers.
    pub fn has_token(&self, token: u32) -> bool {
        [&self.tags.open, &self.tags.close].contains(&&Tag::Token(token))
    }

    /// Returns true between the markers.
    pub fn is_in_reasoning(&self) -> bool {
        matches!(self.state, TagState::Reasoning { .. })
    }

    /// Appends a character or a token, and adds what becomes certain to `pieces`.
    pub fn push(&mut self, unit: CharOrToken, pieces: &mut Vec<AnswerPiece>) {
        match (self.state, unit) {
            (TagState::Answer, unit) => pieces.push(AnswerPiece::Content(unit)),
            (TagState::Start, CharOrToken::Char(char)) => {
                self.held.push(char);
                self.scan_for_open(pieces);
            }
            (TagState::Reasoning { .. }, CharOrToken::Char(char)) => {
                self.held.push(char);
                self.scan_for_close(pieces);
            }
            (TagState::AfterReasoning, CharOrToken::Char(char)) if char.is_whitespace() => {}
            (TagState::AfterReasoning, unit) => {
                self.state = TagState::Answer;
                pieces.push(AnswerPiece::Content(unit));
            }
            (TagState::Start, CharOrToken::Token(token)) => {
                if self.tags.open == Tag::Token(token) {
                    self.held.clear();
                    self.state = TagState::Reasoning { is_first: true };
                } else {
                    self.flush_as_content(pieces);
                    pieces.push(AnswerPiece::Content(unit));
                }
            }
            (TagState::Reasoning { .. }, CharOrToken::Token(token)) => {
                if self.tags.close == Tag::Token(token) {
                    self.push_reasoning(self.held.trim_end().len(), pieces);
                    self.held.clear();
                    self.state = TagState::AfterReasoning;
                }
            }
        }
    }

    /// Ends the answer, and adds what was not certain to `pieces`.
    pub fn end(mut self, pieces: &mut Vec<AnswerPiece>) {
        match self.state {
            TagState::Start => self.flush_as_content(pieces),
            TagState::Reasoning { .. } => self.push_reasoning(self.held.trim_end().len(), pieces),
            TagState::AfterReasoning | TagState::Answer => {}
        }
    }

    fn scan_for_open(&mut self, pieces: &mut Vec<AnswerPiece>) {
        let trimmed = self.held.trim_start();
        match &self.tags.open {
            Tag::Text(open) if trimmed == open => {
                self.held.clear();
                self.state = TagState::Reasoning { is_first: true };
            }
            Tag::Text(open) if open.starts_with(trimmed) => {}
            Tag::Token(_) if trimmed.is_empty() => {}
            _ => self.flush_as_content(pieces),
        }
    }

    fn scan_for_close(&mut self, pieces: &mut Vec<AnswerPiece>) {
        let mut kept = 0;
        if let Tag::Text(close) = &self.tags.close {
            if self.held.ends_with(close.as_str()) {
                self.push_reasoning(
                    self.held[..self.held.len() - close.len()].trim_end().len(),
                    pieces,
                );
                self.held.clear();
                self.state = TagState::AfterReasoning;
                return;
            }
            let starts = (1..close.len()).rev();
            kept = starts
                .map(|length| &close[..length])
                .find(|start| self.held.ends_with(start))
                .map_or(0, str::len);
        }
        let certain = self.held[..self.held.len() - kept].trim_end().len();
        self.push_reasoning(certain, pieces);
    }

    /// Classifies the first `bytes` bytes of the held text as reasoning.
    fn push_reasoning(&mut self, bytes: usize, pieces: &mut Vec<AnswerPiece>) {
        let TagState::Reasoning { is_first } = &mut self.state else { return };
        for char in self.held.drain(..bytes) {
            if *is_first && char.is_whitespace() {
                continue;
            }
            *is_first = false;
            pieces.push(AnswerPiece::Reasoning(char));
        }
    }

    /// Classifies the held text as part of an answer without reasoning.
    fn flush_as_content(&mut self, pieces: &mut Vec<AnswerPiece>) {
        pieces
            .extend(self.held.drain(..).map(|char| AnswerPiece::Content(CharOrToken::Char(char))));
        self.state = TagState::Answer;
    }
}
