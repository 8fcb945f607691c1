//! An answer read part by part, while it is said.

use super::calls::reader::CallReader;
use super::following::Following;
use super::parts::{CallDelta, Found};
use super::reasoning::ReasoningReader;
use super::reasoning::piece::Piece;
use super::said::Said;

/// Follows an answer. However it comes in pieces, the same is found.
#[derive(Debug, Clone)]
pub struct AnswerReader {
    reasoning: Option<ReasoningReader>,
    /// Of what is no thought.
    calls: Option<CallReader>,
    found: Found,
    /// Calls that are told as such.
    called: usize,
    /// Kept for its memory.
    pieces: Vec<Piece>,
}

impl AnswerReader {
    /// At the beginning of an answer; `None` where it has a text alone.
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

    /// Goes on with a text.
    pub fn push_char(&mut self, char: char) {
        self.push(Said::Char(char));
    }

    /// Goes on with a token, before its text.
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

    /// A bit that is no thought.
    fn say(&mut self, said: Said) {
        match (&mut self.calls, said) {
            (Some(calls), said) => calls.push(said),
            (None, Said::Char(char)) => self.found.content.push(char),
            (None, Said::Token(_)) => {}
        }
    }

    /// What is certain and was not told.
    pub fn take(&mut self) -> Found {
        let found = std::mem::take(&mut self.found);
        joined(found, self.calls.as_mut().map(CallReader::take))
    }

    /// What was not told of an answer that ends here.
    pub fn end(mut self) -> Found {
        if let Some(reasoning) = self.reasoning.take() {
            let mut pieces = Vec::new();
            reasoning.end(&mut pieces);
            pieces.into_iter().for_each(|piece| self.tell(piece));
        }
        joined(self.found, self.calls.map(CallReader::end))
    }
}

/// Thoughts, and what was found in what is none.
fn joined(found: Found, behind: Option<Found>) -> Found {
    match behind {
        Some(Found { content, calls, .. }) => Found { content, calls, ..found },
        None => found,
    }
}
