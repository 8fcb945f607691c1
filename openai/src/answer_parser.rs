//! Incremental separation of an answer into its parts.

use super::answer_options::AnswerOptions;
use super::answer_parts::{CallDelta, PartsDelta};
use super::char_or_token::CharOrToken;
use super::reasoning::ReasoningParser;
use super::reasoning::piece::AnswerPiece;
use super::tool_calls::parse::ToolCallParser;

/// Reader of the parts of an answer. The result does not depend on how the answer is split.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    reasoning: Option<ReasoningParser>,
    /// Reader of the tool calls in what is not reasoning.
    calls: Option<ToolCallParser>,
    delta: PartsDelta,
    /// Number of calls that the reader of reasoning has found.
    call_count: usize,
    /// Number of tokens that were read within the reasoning, markers included.
    reasoning_tokens: u32,
    /// Empty between calls; kept for its allocation.
    pieces: Vec<AnswerPiece>,
}

impl AnswerParser {
    /// Creates a reader at the beginning of an answer; returns `None` if the answer is only text.
    pub fn new(options: &AnswerOptions) -> Option<AnswerParser> {
        let calls = options.calls();
        let names = || calls.iter().flat_map(|calls| &calls.functions);
        let names: Vec<String> = names().map(|function| function.name.clone()).collect();
        let reasoning = options.reasoning.as_deref();
        let reasoning = reasoning.map(|reasoning| ReasoningParser::new(reasoning, &names));
        let reads_calls = reasoning.as_ref().is_some_and(ReasoningParser::parses_calls);
        let calls = calls.filter(|_| !reads_calls).map(ToolCallParser::new);
        let has_parts = reasoning.is_some() || calls.is_some();
        let (delta, call_count, pieces) = (PartsDelta::default(), 0, Vec::new());
        has_parts.then_some(AnswerParser {
            reasoning,
            calls,
            delta,
            call_count,
            reasoning_tokens: 0,
            pieces,
        })
    }

    /// Appends a character.
    pub fn push_char(&mut self, char: char) {
        self.push(CharOrToken::Char(char));
    }

    /// Appends a token, before the characters of its text.
    pub fn push_token(&mut self, token: u32) {
        let of_reasoning = self.reasoning.as_ref().is_some_and(|reader| reader.has_token(token));
        let of_calls = self.calls.as_ref().is_some_and(|reader| reader.has_token(token));
        let is_reasoning =
            |reader: &AnswerParser| reader.reasoning.as_ref().is_some_and(ReasoningParser::is_in);
        let was_reasoning = is_reasoning(self);
        if of_reasoning || of_calls {
            self.push(CharOrToken::Token(token));
        }
        self.reasoning_tokens += u32::from(was_reasoning || is_reasoning(self));
    }

    /// Returns the number of tokens of the reasoning so far, markers included.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    fn push(&mut self, unit: CharOrToken) {
        let Some(reasoning) = &mut self.reasoning else { return self.push_content(unit) };
        let mut pieces = std::mem::take(&mut self.pieces);
        reasoning.push(unit, &mut pieces);
        pieces.drain(..).for_each(|piece| self.handle_piece(piece));
        self.pieces = pieces;
    }

    fn handle_piece(&mut self, piece: AnswerPiece) {
        match piece {
            AnswerPiece::Reasoning(char) => self.delta.reasoning.push(char),
            AnswerPiece::Content(unit) => self.push_content(unit),
            AnswerPiece::Call(name) => {
                let (index, name, arguments) = (self.call_count, Some(name), String::new());
                self.delta.calls.push(CallDelta { index, name, arguments });
                self.call_count += 1;
            }
            AnswerPiece::Argument(char) => {
                self.delta.push_argument(self.call_count - 1, char.encode_utf8(&mut [0; 4]));
            }
        }
    }

    /// Adds a character or a token that is not reasoning.
    fn push_content(&mut self, unit: CharOrToken) {
        match (&mut self.calls, unit) {
            (Some(calls), unit) => calls.push(unit),
            (None, CharOrToken::Char(char)) => self.delta.content.push(char),
            (None, CharOrToken::Token(_)) => {}
        }
    }

    /// Returns what has become certain and was not returned before.
    pub fn take(&mut self) -> PartsDelta {
        let found = std::mem::take(&mut self.delta);
        join_deltas(found, self.calls.as_mut().map(ToolCallParser::take))
    }

    /// Ends the answer and returns what was not returned before.
    pub fn end(mut self) -> PartsDelta {
        if let Some(reasoning) = self.reasoning.take() {
            let mut pieces = Vec::new();
            reasoning.end(&mut pieces);
            pieces.into_iter().for_each(|piece| self.handle_piece(piece));
        }
        join_deltas(self.delta, self.calls.map(ToolCallParser::end))
    }
}

/// Joins reasoning with the content and calls that the reader of tool calls found, if there is one.
fn join_deltas(found: PartsDelta, calls_delta: Option<PartsDelta>) -> PartsDelta {
    match calls_delta {
        Some(PartsDelta { content, calls, .. }) => PartsDelta { content, calls, ..found },
        None => found,
    }
}
