//! Reasoning between two markers, before the answer.

use super::piece::Piece;
use super::syntax::{Tag, Tags};
use crate::openai::said::Said;

/// Reader that separates the text between the markers from what follows. Whitespace around
/// reasoning belongs to neither.
#[derive(Debug, Clone)]
pub struct TagReader {
    tags: Tags,
    place: Place,
    /// Text that is not classified yet: the beginning of a marker, and whitespace before it.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning, with nothing but whitespace so far.
    Start,
    /// In the reasoning; `is_first`: none has been found yet.
    Within {
        is_first: bool,
    },
    /// After the reasoning, before the answer.
    Behind,
    Answer,
}

impl TagReader {
    /// Creates a reader at the beginning of an answer, which is within reasoning if `is_open`.
    pub fn new(tags: Tags, is_open: bool) -> TagReader {
        let place = if is_open { Place::Within { is_first: true } } else { Place::Start };
        TagReader { tags, place, held: String::new() }
    }

    /// Returns true if `token` is one of the markers.
    pub fn has_token(&self, token: u32) -> bool {
        [&self.tags.open, &self.tags.close].contains(&&Tag::Token(token))
    }

    /// Appends a character or a token, and adds what becomes certain to `pieces`.
    pub fn push(&mut self, said: Said, pieces: &mut Vec<Piece>) {
        match (self.place, said) {
            (Place::Answer, said) => pieces.push(Piece::Said(said)),
            (Place::Start, Said::Char(char)) => {
                self.held.push(char);
                self.look_for_open(pieces);
            }
            (Place::Within { .. }, Said::Char(char)) => {
                self.held.push(char);
                self.look_for_close(pieces);
            }
            (Place::Behind, Said::Char(char)) if char.is_whitespace() => {}
            (Place::Behind, said) => {
                self.place = Place::Answer;
                pieces.push(Piece::Said(said));
            }
            (Place::Start, Said::Token(token)) => {
                if self.tags.open == Tag::Token(token) {
                    self.held.clear();
                    self.place = Place::Within { is_first: true };
                } else {
                    self.answer(pieces);
                    pieces.push(Piece::Said(said));
                }
            }
            (Place::Within { .. }, Said::Token(token)) => {
                if self.tags.close == Tag::Token(token) {
                    self.think(self.held.trim_end().len(), pieces);
                    self.held.clear();
                    self.place = Place::Behind;
                }
            }
        }
    }

    /// Ends the answer, and adds what was not certain to `pieces`.
    pub fn end(mut self, pieces: &mut Vec<Piece>) {
        match self.place {
            Place::Start => self.answer(pieces),
            Place::Within { .. } => self.think(self.held.trim_end().len(), pieces),
            Place::Behind | Place::Answer => {}
        }
    }

    fn look_for_open(&mut self, pieces: &mut Vec<Piece>) {
        let begun = self.held.trim_start();
        match &self.tags.open {
            Tag::Text(open) if begun == open => {
                self.held.clear();
                self.place = Place::Within { is_first: true };
            }
            Tag::Text(open) if open.starts_with(begun) => {}
            Tag::Token(_) if begun.is_empty() => {}
            _ => self.answer(pieces),
        }
    }

    fn look_for_close(&mut self, pieces: &mut Vec<Piece>) {
        let mut kept = 0;
        if let Tag::Text(close) = &self.tags.close {
            if self.held.ends_with(close.as_str()) {
                self.think(self.held[..self.held.len() - close.len()].trim_end().len(), pieces);
                self.held.clear();
                self.place = Place::Behind;
                return;
            }
            let starts = (1..close.len()).rev();
            kept = starts
                .map(|length| &close[..length])
                .find(|start| self.held.ends_with(start))
                .map_or(0, str::len);
        }
        let certain = self.held[..self.held.len() - kept].trim_end().len();
        self.think(certain, pieces);
    }

    /// Classifies the first `bytes` bytes of the held text as reasoning.
    fn think(&mut self, bytes: usize, pieces: &mut Vec<Piece>) {
        let Place::Within { is_first } = &mut self.place else { return };
        for char in self.held.drain(..bytes) {
            if *is_first && char.is_whitespace() {
                continue;
            }
            *is_first = false;
            pieces.push(Piece::Thought(char));
        }
    }

    /// Classifies the held text as part of an answer without reasoning.
    fn answer(&mut self, pieces: &mut Vec<Piece>) {
        pieces.extend(self.held.drain(..).map(|char| Piece::Said(Said::Char(char))));
        self.place = Place::Answer;
    }
}
