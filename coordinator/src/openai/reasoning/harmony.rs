//! Answers in OpenAI's Harmony format: reasoning, tool calls and content have separate messages.

use super::piece::Piece;
use super::syntax::HarmonyTokens;
use crate::openai::said::Said;

/// Reader that classifies messages by their headers.
#[derive(Debug, Clone)]
pub struct HarmonyReader {
    tokens: HarmonyTokens,
    /// Names of the functions that may be called.
    functions: Vec<String>,
    place: Place,
    /// Reasoning was found before; `has_said`: content was found before.
    has_thought: bool,
    has_said: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// At the beginning: the prompt ends within a header, but a model may write plain text instead.
    Start(String),
    /// In a header, whose text so far has a blank for each of its tokens.
    Header(String),
    Text {
        kind: Kind,
        is_first: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thought,
    Answer,
    Arguments,
}

/// Prefix of the recipient in a header.
const TO: &str = "to=";
const FUNCTIONS: &str = "functions.";
/// Channel of reasoning.
const ANALYSIS: &str = "analysis";

impl HarmonyReader {
    /// Creates a reader at the beginning of an answer that may call these functions.
    pub fn new(tokens: HarmonyTokens, functions: Vec<String>) -> HarmonyReader {
        let place = Place::Start(String::new());
        HarmonyReader { tokens, functions, place, has_thought: false, has_said: false }
    }

    /// Returns true if `token` delimits headers and texts.
    pub fn has_token(&self, token: u32) -> bool {
        let HarmonyTokens { start, channel, message, end, constrain, .. } = self.tokens;
        [start, channel, message, end].contains(&token) || constrain == Some(token)
    }

    /// Appends a character or a token, and adds what becomes certain to `pieces`.
    pub fn push(&mut self, said: Said, pieces: &mut Vec<Piece>) {
        match said {
            Said::Char(char) => self.push_char(char, pieces),
            Said::Token(token) => self.push_token(token, pieces),
        }
    }

    fn push_char(&mut self, char: char, pieces: &mut Vec<Piece>) {
        match &mut self.place {
            Place::Header(header) => header.push(char),
            Place::Start(header) => {
                header.push(char);
                let begun = header.trim_start();
                // A header continues with a recipient or a token.
                if !begun.starts_with(TO) && !TO.starts_with(begun) {
                    let text = std::mem::take(header);
                    self.place = Place::Text { kind: Kind::Answer, is_first: true };
                    text.chars().for_each(|char| self.tell(char, pieces));
                }
            }
            Place::Text { .. } => self.tell(char, pieces),
        }
    }

    fn push_token(&mut self, token: u32, pieces: &mut Vec<Piece>) {
        let HarmonyTokens { start, channel, message, end, constrain, .. } = self.tokens;
        let is_part = token == channel || Some(token) == constrain;
        match &mut self.place {
            Place::Start(header) | Place::Header(header) if token == message => {
                let header = std::mem::take(header);
                let kind = self.kind(&header, pieces);
                self.place = Place::Text { kind, is_first: true };
            }
            Place::Start(header) | Place::Header(header) if is_part => {
                let header = std::mem::take(header) + " ";
                self.place = Place::Header(header);
            }
            _ if [start, end, channel].contains(&token) => {
                self.place = Place::Header(String::new());
            }
            _ => {}
        }
    }

    /// Ends the answer, and adds what was not certain to `pieces`.
    pub fn end(self, pieces: &mut Vec<Piece>) {
        if let Place::Start(text) = self.place {
            pieces.extend(text.chars().map(|char| Piece::Said(Said::Char(char))));
        }
    }

    /// Returns the kind of a message by its header, and adds a piece if the message calls a
    /// function.
    fn kind(&self, header: &str, pieces: &mut Vec<Piece>) -> Kind {
        let mut words = header.split_whitespace();
        let called = words.clone().find_map(|word| word.strip_prefix(TO)?.strip_prefix(FUNCTIONS));
        if let Some(name) = called.filter(|name| self.functions.iter().any(|known| known == name)) {
            pieces.push(Piece::Call(name.to_owned()));
            return Kind::Arguments;
        }
        if words.any(|word| word == ANALYSIS) { Kind::Thought } else { Kind::Answer }
    }

    /// Adds a character of a message's text.
    fn tell(&mut self, char: char, pieces: &mut Vec<Piece>) {
        let Place::Text { kind, is_first } = &mut self.place else { return };
        let (piece, has_more): (fn(char) -> Piece, _) = match kind {
            Kind::Thought => (Piece::Thought, Some(&mut self.has_thought)),
            Kind::Answer => (|char| Piece::Said(Said::Char(char)), Some(&mut self.has_said)),
            Kind::Arguments => (Piece::Argument, None),
        };
        if let Some(has_more) = has_more {
            // Messages of one kind are separated by newlines.
            if *is_first && *has_more {
                pieces.push(piece('\n'));
            }
            *has_more = true;
        }
        *is_first = false;
        pieces.push(piece(char));
    }
}
