//! What a model thinks before it answers: how its chat template shows it, and where in an answer it
//! is.

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

/// How the answers to a prompt think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    pub syntax: ReasoningSyntax,
    /// The prompt ends within thoughts.
    pub is_open: bool,
}

/// Tells thoughts from the rest, however an answer comes in pieces.
#[derive(Debug, Clone)]
pub enum ReasoningReader {
    Tags(TagReader),
    Harmony(HarmonyReader),
}

impl Reasoning {
    /// A form that the answer must have, behind what is thought first.
    pub fn before(&self, grammar: Grammar) -> Grammar {
        let behind =
            |marker: Marker| Grammar::Behind(Box::new(Behind { marker, grammar: grammar.clone() }));
        match &self.syntax {
            ReasoningSyntax::Tags(tags) if self.is_open => behind(tags.closing()),
            // Calls have headers of their own.
            ReasoningSyntax::Harmony(_) if matches!(grammar, Grammar::Calls(_)) => grammar,
            ReasoningSyntax::Harmony(harmony) => behind(Marker::Tokens(harmony.answer.clone())),
            ReasoningSyntax::Tags(_) => grammar,
        }
    }
}

impl ReasoningReader {
    /// At the beginning of an answer that may call these functions.
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

    /// Whether a token has a meaning here.
    pub fn has_token(&self, token: u32) -> bool {
        match self {
            ReasoningReader::Tags(tags) => tags.has_token(token),
            ReasoningReader::Harmony(harmony) => harmony.has_token(token),
        }
    }

    /// Whether calls are told as such, and not as a text that is still to be read.
    pub fn reads_calls(&self) -> bool {
        matches!(self, ReasoningReader::Harmony(_))
    }

    /// Goes on; what that makes certain is added to `pieces`.
    pub fn push(&mut self, said: Said, pieces: &mut Vec<Piece>) {
        match self {
            ReasoningReader::Tags(tags) => tags.push(said, pieces),
            ReasoningReader::Harmony(harmony) => harmony.push(said, pieces),
        }
    }

    /// What was not certain of an answer that ends here.
    pub fn end(self, pieces: &mut Vec<Piece>) {
        match self {
            ReasoningReader::Tags(tags) => tags.end(pieces),
            ReasoningReader::Harmony(harmony) => harmony.end(pieces),
        }
    }
}
