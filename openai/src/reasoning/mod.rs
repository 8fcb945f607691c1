//! Reasoning of a model before its answer: its syntax, detected from the chat template, and its
//! separation from the answer.

mod harmony;
pub mod piece;
pub mod syntax;
mod tags;

use engine_api::token_rules::ReasoningBudget;
use grammar::{Behind, Grammar, Marker};

use super::char_or_token::CharOrToken;
use harmony::HarmonyParser;
use piece::AnswerPiece;
use syntax::{ReasoningSyntax, Tag, Tags};
use tags::TagParser;

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
pub enum ReasoningParser {
    Tags(TagParser),
    Harmony(HarmonyParser),
}

impl Reasoning {
    /// Returns the grammar of an answer that follows `grammar` after its reasoning.
    pub fn wrap_grammar(&self, grammar: Grammar) -> Grammar {
        let after_marker =
            |marker: Marker| Grammar::Behind(Box::new(Behind { marker, grammar: grammar.clone() }));
        match &self.syntax {
            ReasoningSyntax::Tags(tags) if self.is_open => after_marker(tags.closing_marker()),
            // Calls have their own headers.
            ReasoningSyntax::Harmony(_) if matches!(grammar, Grammar::Calls(_)) => grammar,
            ReasoningSyntax::Harmony(harmony) => {
                after_marker(Marker::Tokens(harmony.answer.clone()))
            }
            ReasoningSyntax::Tags(_) => grammar,
        }
    }

    /// Returns the limit of `max_tokens` on the reasoning; `None` if one of the markers that it
    /// depends on is not a single token.
    pub fn budget(&self, max_tokens: u32) -> Option<ReasoningBudget> {
        let ReasoningSyntax::Tags(Tags { open, close: Tag::Token(close) }) = &self.syntax else {
            return None;
        };
        let open = match open {
            _ if self.is_open => None,
            Tag::Token(open) => Some(*open),
            Tag::Text(_) => return None,
        };
        Some(ReasoningBudget { max_tokens, open, close: *close })
    }
}

impl ReasoningParser {
    /// Creates a reader at the beginning of an answer that may call these functions.
    pub fn new(reasoning: &Reasoning, functions: &[String]) -> ReasoningParser {
        match &reasoning.syntax {
            ReasoningSyntax::Tags(tags) => {
                ReasoningParser::Tags(TagParser::new(tags.clone(), reasoning.is_open))
            }
            ReasoningSyntax::Harmony(harmony) => {
                ReasoningParser::Harmony(HarmonyParser::new(harmony.clone(), functions.to_vec()))
            }
        }
    }

    /// Returns true if `token` is part of the syntax of reasoning.
    pub fn has_token(&self, token: u32) -> bool {
        match self {
            ReasoningParser::Tags(tags) => tags.has_token(token),
            ReasoningParser::Harmony(harmony) => harmony.has_token(token),
        }
    }

    /// Returns true within reasoning.
    pub fn is_in(&self) -> bool {
        match self {
            ReasoningParser::Tags(tags) => tags.is_in_reasoning(),
            ReasoningParser::Harmony(harmony) => harmony.is_in_reasoning(),
        }
    }

    /// Returns true if the reader itself finds tool calls, and does not return them as text that is
    /// still to be read.
    pub fn parses_calls(&self) -> bool {
        matches!(self, ReasoningParser::Harmony(_))
    }

    /// Appends a character or a token, and adds what becomes certain to `pieces`.
    pub fn push(&mut self, unit: CharOrToken, pieces: &mut Vec<AnswerPiece>) {
        match self {
            ReasoningParser::Tags(tags) => tags.push(unit, pieces),
            ReasoningParser::Harmony(harmony) => harmony.push(unit, pieces),
        }
    }

    /// Ends the answer, and adds what was not certain to `pieces`.
    pub fn end(self, pieces: &mut Vec<AnswerPiece>) {
        match self {
            ReasoningParser::Tags(tags) => tags.end(pieces),
            ReasoningParser::Harmony(harmony) => harmony.end(pieces),
        }
    }
}
