//! Incremental separation of an answer into its parts.

use super::calls::reader::CallReader;
use super::following::Following;
use super::parts::{CallDelta, Found};
use super::reasoning::ReasoningReader;
use super::reasoning::piece::Piece;
use super::said::Said;

/// Reader of the parts of an answer. The result does not depend on how the answer is split.
#[derive(Debug, Clone)]
pub struct AnswerReader {
    reasoning: Option<ReasoningReader>,
    /// Reader of the tool calls in what is not reasoning.
    calls: Option<CallReader>,
    found: Found,
    /// Number of calls that the reader of reasoning has found.
    called: usize,
    /// Empty between calls; kept for its allocation.
    pieces: Vec<Piece>,
}

impl AnswerReader {
    /// Creates a reader at the beginning of an answer; returns `None` if the answer is only text.
    pub fn new(following: &Following) -> Option<AnswerReader> {
        let calls = following.calls();
        let names = || calls.iter().flat_map(|calls| &calls.functions);
        let names: Vec<String> = names().map(|function| function.name.clone()).collect();
        let reasoning = following.reasoning.as_deref();
        let reasoning = reasoning.map(|reasoning| ReasoningReader::new(reasoning, &names));
        let reads_calls = reasoning.as_ref().is_some_and(ReasoningReader::reads_calls);
        let calls = calls.filter(|_| !reads_calls).map(CallReader::new);
        let has_parts = reasoning.is_some() || calls.is_some();
        let (found, called, pieces) = (Found::default(), 0, Vec::new());
        has_parts.then_some(AnswerReader { reasoning, calls, found, called, pieces })
    }

    /// Appends a character.
    pub fn push_char(&mut self, char: char) {
        self.push(Said::Char(char));
    }

    /// Appends a token, before the characters of its text.
    pub fn push_token(&mut self, token: u32) {
        let of_reasoning = self.reasoning.as_ref().is_some_and(|reader| reader.has_token(token));
        let of_calls = self.calls.as_ref().is_some_and(|reader| reader.has_token(token));
        if of_reasoning || of_calls {
            self.push(Said::Token(token));
        }
    }

    fn push(&mut self, said: Said) {
        let Some(reasoning) = &mut self.reasoning else { return self.say(said) };
        let mut pieces = std::mem::take(&mut self.pieces);
        reasoning.push(said, &mut pieces);
        pieces.drain(..).for_each(|piece| self.tell(piece));
        self.pieces = pieces;
    }

    fn tell(&mut self, piece: Piece) {
        match piece {
            Piece::Thought(char) => self.found.reasoning.push(char),
            Piece::Said(said) => self.say(said),
            Piece::Call(name) => {
                let (index, name, arguments) = (self.called, Some(name), String::new());
                self.found.calls.push(CallDelta { index, name, arguments });
                self.called += 1;
            }
            Piece::Argument(char) => {
                self.found.push_argument(self.called - 1, char.encode_utf8(&mut [0; 4]));
            }
        }
    }

    /// Adds a character or a token that is not reasoning.
    fn say(&mut self, said: Said) {
        match (&mut self.calls, said) {
            (Some(calls), said) => calls.push(said),
            (None, Said::Char(char)) => self.found.content.push(char),
            (None, Said::Token(_)) => {}
        }
    }

    /// Returns what has become certain and was not returned before.
    pub fn take(&mut self) -> Found {
        let found = std::mem::take(&mut self.found);
        joined(found, self.calls.as_mut().map(CallReader::take))
    }

    /// Ends the answer and returns what was not returned before.
    pub fn end(mut self) -> Found {
        if let Some(reasoning) = self.reasoning.take() {
            let mut pieces = Vec::new();
            reasoning.end(&mut pieces);
            pieces.into_iter().for_each(|piece| self.tell(piece));
        }
        joined(self.found, self.calls.map(CallReader::end))
    }
}

/// Joins reasoning with the content and calls that the reader of tool calls found, if there is one.
fn joined(found: Found, behind: Option<Found>) -> Found {
    match behind {
        Some(Found { content, calls, .. }) => Found { content, calls, ..found },
        None => found,
    }
}
