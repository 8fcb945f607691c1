//! Reasoning of a model before its answer: its syntax, detected from the chat template, and its
//! separation from the answer.

mod harmony;
pub mod piece;
pub mod syntax;
mod tags;

use grammar::{Behind, Grammar, Marker};

use super::said::Said;
use harmony::HarmonyReader;
use piece::Piece;
use syntax::ReasoningSyntax;
use tags::TagReader;

/// Reasoning of the answers to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    pub syntax: ReasoningSyntax,
    /// The prompt ends within reasoning.
    pub is_open: bool,
}

/// Reader that separates reasoning from the rest of an answer. The result does not depend on how
/// the answer is split.
#[derive(Debug, Clone)]
pub enum ReasoningReader {
    Tags(TagReader),
    Harmony(HarmonyReader),
}

impl Reasoning {
    /// Returns the grammar of an answer that follows `grammar` after its reasoning.
    pub fn before(&self, grammar: Grammar) -> Grammar {
        let behind =
            |marker: Marker| Grammar::Behind(Box::new(Behind { marker, grammar: grammar.clone() }));
        match &self.syntax {
            ReasoningSyntax::Tags(tags) if self.is_open => behind(tags.closing()),
            // Calls have their own headers.
            ReasoningSyntax::Harmony(_) if matches!(grammar, Grammar::Calls(_)) => grammar,
            ReasoningSyntax::Harmony(harmony) => behind(Marker::Tokens(harmony.answer.clone())),
            ReasoningSyntax::Tags(_) => grammar,
        }
    }
}

impl ReasoningReader {
    /// Creates a reader at the beginning of an answer that may call these functions.
    pub fn new(reasoning: &Reasoning, functions: &[String]) -> ReasoningReader {
        match &reasoning.syntax {
            ReasoningSyntax::Tags(tags) => {
                ReasoningReader::Tags(TagReader::new(tags.clone(), reasoning.is_open))
            }
            ReasoningSyntax::Harmony(harmony) => {
                ReasoningReader::Harmony(HarmonyReader::new(harmony.clone(), functions.to_vec()))
            }
        }
    }

    /// Returns true if `token` is part of the syntax of reasoning.
    pub fn has_token(&self, token: u32) -> bool {
        match self {
            ReasoningReader::Tags(tags) => tags.has_token(token),
            ReasoningReader::Harmony(harmony) => harmony.has_token(token),
        }
    }

    /// Returns true if the reader itself finds tool calls, and does not return them as text that is
    /// still to be read.
    pub fn reads_calls(&self) -> bool {
        matches!(self, ReasoningReader::Harmony(_))
    }

    /// Appends a character or a token, and adds what becomes certain to `pieces`.
    pub fn push(&mut self, said: Said, pieces: &mut Vec<Piece>) {
        match self {
            ReasoningReader::Tags(tags) => tags.push(said, pieces),
            ReasoningReader::Harmony(harmony) => harmony.push(said, pieces),
        }
    }

    /// Ends the answer, and adds what was not certain to `pieces`.
    pub fn end(self, pieces: &mut Vec<Piece>) {
        match self {
            ReasoningReader::Tags(tags) => tags.end(pieces),
            ReasoningReader::Harmony(harmony) => harmony.end(pieces),
        }
    }
}
