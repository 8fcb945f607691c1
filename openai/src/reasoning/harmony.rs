//! Answers in OpenAI's Harmony format: reasoning, tool calls and content have separate messages.

use super::piece::AnswerPiece;
use super::syntax::HarmonyTokens;
use crate::char_or_token::CharOrToken;

/// Reader that classifies messages by their headers.
#[derive(Debug, Clone)]
pub struct HarmonyParser {
    tokens: HarmonyTokens,
    /// Names of the functions that may be called.
    functions: Vec<String>,
    state: HarmonyState,
    /// Reasoning was found before; `has_said`: content was found before.
    has_reasoning: bool,
    has_content: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HarmonyState {
    /// At the beginning: the prompt ends within a header, but a model may write plain text instead.
    Start(String),
    /// In a header, whose text so far has a blank for each of its tokens.
    Header(String),
    Text {
        kind: MessageKind,
        is_first: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    Reasoning,
    Content,
    Arguments,
}

/// Prefix of the recipient in a header.
const RECIPIENT_PREFIX: &str = "to=";
const FUNCTION_PREFIX: &str = "functions.";
/// Channel of reasoning.
const REASONING_CHANNEL: &str = "analysis";

impl HarmonyParser {
    /// Creates a reader at the beginning of an answer that may call these functions.
    pub fn new(tokens: HarmonyTokens, functions: Vec<String>) -> HarmonyParser {
        let state = HarmonyState::Start(String::new());
        HarmonyParser { tokens, functions, state, has_reasoning: false, has_content: false }
    }

    /// Returns true if `token` delimits headers and texts.
    pub fn has_token(&self, token: u32) -> bool {
        let HarmonyTokens { start, channel, message, end, constrain, .. } = self.tokens;
        [start, channel, message, end].contains(&token) || constrain == Some(token)
    }

    /// Returns true within a message of reasoning.
    pub fn is_in_reasoning(&self) -> bool {
        matches!(self.state, HarmonyState::Text { kind: MessageKind::Reasoning, .. })
    }

    /// Appends a character or a token, and adds what becomes certain to `pieces`.
    pub fn push(&mut self, unit: CharOrToken, pieces: &mut Vec<AnswerPiece>) {
        match unit {
            CharOrToken::Char(char) => self.push_char(char, pieces),
            CharOrToken::Token(token) => self.push_token(token, pieces),
        }
    }

    fn push_char(&mut self, char: char, pieces: &mut Vec<AnswerPiece>) {
        match &mut self.state {
            HarmonyState::Header(header) => header.push(char),
            HarmonyState::Start(header) => {
                header.push(char);
                let trimmed = header.trim_start();
                // A header continues with a recipient or a token.
                if !trimmed.starts_with(RECIPIENT_PREFIX) && !RECIPIENT_PREFIX.starts_with(trimmed)
                {
                    let text = std::mem::take(header);
                    self.state = HarmonyState::Text { kind: MessageKind::Content, is_first: true };
                    text.chars().for_each(|char| self.push_text(char, pieces));
                }
            }
            HarmonyState::Text { .. } => self.push_text(char, pieces),
        }
    }

    fn push_token(&mut self, token: u32, pieces: &mut Vec<AnswerPiece>) {
        let HarmonyTokens { start, channel, message, end, constrain, .. } = self.tokens;
        let is_part = token == channel || Some(token) == constrain;
        match &mut self.state {
            HarmonyState::Start(header) | HarmonyState::Header(header) if token == message => {
                let header = std::mem::take(header);
                let kind = self.classify_header(&header, pieces);
                self.state = HarmonyState::Text { kind, is_first: true };
            }
            HarmonyState::Start(header) | HarmonyState::Header(header) if is_part => {
                let header = std::mem::take(header) + " ";
                self.state = HarmonyState::Header(header);
            }
            _ if [start, end, channel].contains(&token) => {
                self.state = HarmonyState::Header(String::new());
            }
            _ => {}
        }
    }

    /// Ends the answer, and adds what was not certain to `pieces`.
    pub fn end(self, pieces: &mut Vec<AnswerPiece>) {
        if let HarmonyState::Start(text) = self.state {
            pieces.extend(text.chars().map(|char| AnswerPiece::Content(CharOrToken::Char(char))));
        }
    }

    /// Returns the kind of a message by its header, and adds a piece if the message calls a
    /// function.
    fn classify_header(&self, header: &str, pieces: &mut Vec<AnswerPiece>) -> MessageKind {
        let mut words = header.split_whitespace();
        let called = words
            .clone()
            .find_map(|word| word.strip_prefix(RECIPIENT_PREFIX)?.strip_prefix(FUNCTION_PREFIX));
        if let Some(name) = called.filter(|name| self.functions.iter().any(|known| known == name)) {
            pieces.push(AnswerPiece::Call(name.to_owned()));
            return MessageKind::Arguments;
        }
        if words.any(|word| word == REASONING_CHANNEL) {
            MessageKind::Reasoning
        } else {
            MessageKind::Content
        }
    }

    /// Adds a character of a message's text.
    fn push_text(&mut self, char: char, pieces: &mut Vec<AnswerPiece>) {
        let HarmonyState::Text { kind, is_first } = &mut self.state else { return };
        let (piece, has_more): (fn(char) -> AnswerPiece, _) = match kind {
            MessageKind::Reasoning => (AnswerPiece::Reasoning, Some(&mut self.has_reasoning)),
            MessageKind::Content => {
                (|char| AnswerPiece::Content(CharOrToken::Char(char)), Some(&mut self.has_content))
            }
            MessageKind::Arguments => (AnswerPiece::Argument, None),
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
