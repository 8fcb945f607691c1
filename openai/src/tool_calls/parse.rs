//! Incremental extraction of tool calls from an answer.

use grammar::{CallSyntax, Calls, Function, ParameterTags, SyntaxPart, Trigger};

use super::matching::{Match, match_all, match_word};
use crate::answer_parts::{CallDelta, PartsDelta};
use crate::char_or_token::CharOrToken;

/// Position of the reader in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    /// In a text; `is_within`: it contains more than whitespace.
    Text {
        is_within: bool,
    },
    /// At the beginning of a call whose head is complete.
    Head {
        is_first: bool,
    },
    Arguments(JsonNesting),
    /// Before an argument between tags, or after the last one; `is_first`: before the first one.
    Parameter {
        is_first: bool,
    },
    /// In the value of an argument between tags: in JSON of this nesting, or in a text if `None`.
    Value(Option<JsonNesting>),
    /// After the arguments of a call.
    Tail,
    /// After a call.
    Between,
}

/// Nesting of a position in a JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct JsonNesting {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

/// Extractor of the tool calls of an answer. The result does not depend on how the answer is split.
#[derive(Debug, Clone)]
pub struct ToolCallParser {
    syntax: CallSyntax,
    functions: Vec<Function>,
    /// Arguments of the current call that are texts, if arguments are between tags.
    text_arguments: Vec<String>,
    state: ParserState,
    /// Most recent characters and tokens, the first `decided` of which have been processed.
    input: Vec<CharOrToken>,
    consumed: usize,
    call_count: usize,
    delta: PartsDelta,
}

impl ToolCallParser {
    /// Creates a reader at the beginning of an answer.
    pub fn new(calls: &Calls) -> ToolCallParser {
        ToolCallParser {
            syntax: calls.syntax.clone(),
            functions: calls.functions.clone(),
            text_arguments: Vec::new(),
            state: ParserState::Text { is_within: false },
            input: Vec::new(),
            consumed: 0,
            call_count: 0,
            delta: PartsDelta::default(),
        }
    }

    /// Appends a character or a token; tokens that are not part of the call syntax are ignored.
    pub fn push(&mut self, unit: CharOrToken) {
        match unit {
            CharOrToken::Token(token) if !self.has_token(token) => {}
            unit => self.input.push(unit),
        }
    }

    /// Returns true if `token` is part of the call syntax.
    pub fn has_token(&self, token: u32) -> bool {
        self.syntax.has_token(token)
    }

    /// Returns what has become certain and was not returned before.
    pub fn take(&mut self) -> PartsDelta {
        while self.advance() {}
        self.input.drain(..self.consumed);
        self.consumed = 0;
        std::mem::take(&mut self.delta)
    }

    /// Ends the answer and returns what was not returned before. A call whose arguments have not
    /// begun is omitted.
    pub fn end(mut self) -> PartsDelta {
        while self.advance() {}
        if let ParserState::Text { is_within } = self.state {
            let rest = &self.pending()[count_blanks(self.pending())..];
            let is_call = self.can_begin_call(is_within) && self.has_trigger(rest);
            if !is_call && (self.call_count == 0 || !rest.is_empty()) {
                self.push_content(self.pending().len());
            }
        }
        self.delta
    }

    /// Returns the characters and tokens that have not been processed.
    fn pending(&self) -> &[CharOrToken] {
        &self.input[self.consumed..]
    }

    /// Returns true if calls may begin here; `is_within`: after more than whitespace.
    fn can_begin_call(&self, is_within: bool) -> bool {
        self.syntax.triggers.iter().any(|trigger| !trigger.at_start || !is_within)
    }

    fn has_trigger(&self, input: &[CharOrToken]) -> bool {
        let matches_trigger =
            |trigger: &Trigger| matches!(match_word(&trigger.word, input), Match::Yes(_));
        self.syntax.triggers.iter().any(matches_trigger)
    }

    /// Processes the first of the waiting characters and tokens. Returns false if that requires
    /// more of them.
    fn advance(&mut self) -> bool {
        if self.pending().is_empty() {
            return false;
        }
        match self.state {
            ParserState::Text { is_within } => self.advance_text(is_within),
            ParserState::Head { is_first } => self.advance_head(is_first),
            ParserState::Arguments(nesting) => self.advance_arguments(nesting),
            ParserState::Parameter { is_first } => self.advance_parameter(is_first),
            ParserState::Value(nesting) => self.advance_value(nesting),
            ParserState::Tail => {
                let closed = match_all(&self.syntax.close, self.pending());
                self.apply_match(closed, ParserState::Between)
            }
            ParserState::Between => self.advance_between(),
        }
    }

    /// Consumes a match and moves to `next`; returns to the text if there is no match. Returns
    /// false if the match is incomplete.
    fn apply_match(&mut self, matched: Match<usize>, next: ParserState) -> bool {
        match matched {
            Match::Partial => return false,
            Match::Yes(length) => {
                self.consumed += length;
                self.state = next;
            }
            Match::No => self.state = ParserState::Text { is_within: true },
        }
        true
    }

    fn advance_text(&mut self, is_within: bool) -> bool {
        // Whitespace before a call is not part of the text.
        let blanks = count_blanks(self.pending());
        let rest = &self.pending()[blanks..];
        let head =
            if self.can_begin_call(is_within) { self.match_head(true, rest) } else { Match::No };
        match head {
            Match::Partial => return false,
            Match::Yes(_) => {
                self.consumed += blanks;
                self.state = ParserState::Head { is_first: true };
            }
            Match::No => {
                self.state = ParserState::Text { is_within: is_within || !rest.is_empty() };
                self.push_content(self.pending().len().min(blanks + 1));
            }
        }
        true
    }

    /// Consumes the complete head of a call.
    fn advance_head(&mut self, is_first: bool) -> bool {
        let Match::Yes((name, length)) = self.match_head(is_first, self.pending()) else {
            return false;
        };
        self.consumed += length;
        let called = self.functions.iter().find(|function| function.name == name);
        let (index, name, arguments) = (self.call_count, Some(name), String::new());
        self.delta.calls.push(CallDelta { index, name, arguments });
        self.call_count += 1;
        self.state = ParserState::Arguments(JsonNesting::default());
        if self.syntax.parameters.is_some() {
            self.text_arguments = called.map(Function::text_parameters).unwrap_or_default();
            self.state = ParserState::Parameter { is_first: true };
        }
        true
    }

    fn advance_arguments(&mut self, mut nesting: JsonNesting) -> bool {
        let mut arguments = String::new();
        let mut taken = 0;
        let mut is_over = false;
        for unit in self.pending() {
            let char = match unit {
                CharOrToken::Char(char) if nesting.depth > 0 || *char == '{' => *char,
                _ => {
                    is_over = true;
                    break;
                }
            };
            taken += 1;
            arguments.push(char);
            nesting.advance(char);
            if nesting.depth == 0 {
                is_over = true;
                break;
            }
        }
        self.consumed += taken;
        self.push_arguments(&arguments);
        self.state = if is_over { ParserState::Tail } else { ParserState::Arguments(nesting) };
        is_over
    }

    /// Consumes the head of an argument between tags, or ends the arguments after the last one.
    fn advance_parameter(&mut self, is_first: bool) -> bool {
        let Some(ParameterTags { open, middle, .. }) = &self.syntax.parameters else {
            return false;
        };
        let waiting = self.pending();
        let opened = match match_all(open, waiting) {
            Match::Partial => return false,
            Match::No => {
                self.push_arguments(if is_first { "{}" } else { "}" });
                self.state = ParserState::Tail;
                return true;
            }
            Match::Yes(length) => length,
        };
        let name: String = waiting[opened..].iter().map_while(|unit| unit.as_name_char()).collect();
        let named = opened + name.len();
        let length = match match_all(middle, &waiting[named..]) {
            Match::Partial => return false,
            Match::No => {
                self.state = ParserState::Text { is_within: true };
                return true;
            }
            Match::Yes(length) => named + length,
        };
        let is_text = self.text_arguments.contains(&name);
        let (before, quote) = (if is_first { "{" } else { ", " }, if is_text { "\"" } else { "" });
        self.consumed += length;
        self.push_arguments(&format!("{before}\"{name}\": {quote}"));
        self.state = ParserState::Value((!is_text).then(JsonNesting::default));
        true
    }

    /// Consumes a character of a value or the tag after it, which counts only outside of the
    /// strings of a JSON value.
    fn advance_value(&mut self, nesting: Option<JsonNesting>) -> bool {
        let Some(ParameterTags { close, .. }) = &self.syntax.parameters else { return false };
        let in_string = nesting.is_some_and(|nesting| nesting.in_string);
        match if in_string { Match::No } else { match_all(close, self.pending()) } {
            Match::Partial => false,
            Match::Yes(length) => {
                self.consumed += length;
                self.push_arguments(if nesting.is_none() { "\"" } else { "" });
                self.state = ParserState::Parameter { is_first: false };
                true
            }
            Match::No => {
                if let CharOrToken::Char(char) = self.pending()[0] {
                    let next = nesting.map(|mut nesting| {
                        nesting.advance(char);
                        nesting
                    });
                    let is_text = nesting.is_none();
                    let written = if is_text { escape_json(char) } else { char.to_string() };
                    self.push_arguments(&written);
                    self.state = ParserState::Value(next);
                }
                self.consumed += 1;
                true
            }
        }
    }

    fn advance_between(&mut self) -> bool {
        match self.match_head(false, self.pending()) {
            Match::Partial => false,
            Match::Yes(_) => {
                self.state = ParserState::Head { is_first: false };
                true
            }
            Match::No => {
                let last = match_all(&self.syntax.last, self.pending());
                self.apply_match(last, ParserState::Text { is_within: true })
            }
        }
    }

    /// Matches the head of a call up to its arguments; returns the name and the length of the head.
    fn match_head(&self, is_first: bool, input: &[CharOrToken]) -> Match<(String, usize)> {
        let CallSyntax { first, open, middle, between, .. } = &self.syntax;
        let before = if is_first { first } else { between };
        let length = match match_all(before.iter().chain(open), input) {
            Match::Yes(length) => length,
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        };
        let name: String = input[length..].iter().map_while(|input| input.as_name_char()).collect();
        let length = length + name.len();
        if length == input.len() {
            let begins = self.functions.iter().any(|known| known.name.starts_with(&name));
            return if begins { Match::Partial } else { Match::No };
        }
        if self.functions.iter().all(|known| known.name != name) {
            return Match::No;
        }
        match match_all(middle, &input[length..]) {
            Match::Yes(middle) => {
                let length = length + middle;
                self.match_first_argument(&input[length..]).map(|()| (name, length))
            }
            Match::Partial => Match::Partial,
            Match::No => Match::No,
        }
    }

    /// Matches what follows the head of a call whose arguments are between tags: an argument, or
    /// the end of the call. The heads of such calls may be so short that a text contains them.
    fn match_first_argument(&self, input: &[CharOrToken]) -> Match<()> {
        let Some(tags) = &self.syntax.parameters else { return Match::Yes(()) };
        match match_all(&tags.open, input) {
            Match::No => match_all(required_start(&self.syntax.close), input).map(drop),
            opened => opened.map(drop),
        }
    }

    /// Adds the first `count` waiting characters and tokens to the text, in which tokens are
    /// omitted.
    fn push_content(&mut self, count: usize) {
        for unit in &self.input[self.consumed..self.consumed + count] {
            if let CharOrToken::Char(char) = unit {
                self.delta.content.push(*char);
            }
        }
        self.consumed += count;
    }

    fn push_arguments(&mut self, arguments: &str) {
        self.delta.push_argument(self.call_count - 1, arguments);
    }
}

/// Returns a character as it is written in a JSON text.
fn escape_json(char: char) -> String {
    let quoted = serde_json::Value::from(char.to_string()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the number of whitespace characters at the beginning.
fn count_blanks(input: &[CharOrToken]) -> usize {
    let is_blank =
        |unit: &&CharOrToken| matches!(unit, CharOrToken::Char(char) if char.is_ascii_whitespace());
    input.iter().take_while(is_blank).count()
}

impl JsonNesting {
    fn advance(&mut self, char: char) {
        match char {
            _ if self.is_escaped => self.is_escaped = false,
            '\\' if self.in_string => self.is_escaped = true,
            '"' => self.in_string = !self.in_string,
            '{' | '[' if !self.in_string => self.depth += 1,
            '}' | ']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// Returns the parts up to the first required one: optional parts after it may never come.
fn required_start(parts: &[SyntaxPart]) -> &[SyntaxPart] {
    let required = parts.iter().position(|part| matches!(part, SyntaxPart::Must(_)));
    &parts[..required.map_or(0, |index| index + 1)]
}
