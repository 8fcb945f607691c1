//! Incremental extraction of tool calls from an answer.

use grammar::{CallSyntax, Calls, Function, ParameterTags, Trigger};

use super::matching::{Match, match_all, match_text, match_word};
use crate::openai::parts::{CallDelta, Found};
use crate::openai::said::Said;

/// Position of the reader in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a text; `is_within`: it contains more than whitespace.
    Text {
        is_within: bool,
    },
    /// At the beginning of a call whose head is complete.
    Head {
        is_first: bool,
    },
    Arguments(Nesting),
    /// Before an argument between tags, or after the last one; `is_first`: before the first one.
    Parameter {
        is_first: bool,
    },
    /// In the value of an argument between tags.
    Value {
        is_text: bool,
    },
    /// After the arguments of a call.
    Tail,
    /// After a call.
    Between,
}

/// Nesting of a position in a JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Nesting {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

/// Extractor of the tool calls of an answer. The result does not depend on how the answer is split.
#[derive(Debug, Clone)]
pub struct CallReader {
    syntax: CallSyntax,
    functions: Vec<Function>,
    /// Arguments of the current call that are texts, if arguments are between tags.
    texts: Vec<String>,
    place: Place,
    /// Most recent characters and tokens, the first `decided` of which have been processed.
    said: Vec<Said>,
    decided: usize,
    calls: usize,
    found: Found,
}

impl CallReader {
    /// Creates a reader at the beginning of an answer.
    pub fn new(calls: &Calls) -> CallReader {
        CallReader {
            syntax: calls.syntax.clone(),
            functions: calls.functions.clone(),
            texts: Vec::new(),
            place: Place::Text { is_within: false },
            said: Vec::new(),
            decided: 0,
            calls: 0,
            found: Found::default(),
        }
    }

    /// Appends a character or a token; tokens that are not part of the call syntax are ignored.
    pub fn push(&mut self, said: Said) {
        match said {
            Said::Token(token) if !self.has_token(token) => {}
            said => self.said.push(said),
        }
    }

    /// Returns true if `token` is part of the call syntax.
    pub fn has_token(&self, token: u32) -> bool {
        self.syntax.has_token(token)
    }

    /// Returns what has become certain and was not returned before.
    pub fn take(&mut self) -> Found {
        while self.advance() {}
        self.said.drain(..self.decided);
        self.decided = 0;
        std::mem::take(&mut self.found)
    }

    /// Ends the answer and returns what was not returned before. A call whose arguments have not
    /// begun is omitted.
    pub fn end(mut self) -> Found {
        while self.advance() {}
        if let Place::Text { is_within } = self.place {
            let begun = &self.waiting()[blanks(self.waiting())..];
            let is_call = self.may_begin(is_within) && self.has_trigger(begun);
            if !is_call && (self.calls == 0 || !begun.is_empty()) {
                self.tell(self.waiting().len());
            }
        }
        self.found
    }

    /// Returns the characters and tokens that have not been processed.
    fn waiting(&self) -> &[Said] {
        &self.said[self.decided..]
    }

    /// Returns true if calls may begin here; `is_within`: after more than whitespace.
    fn may_begin(&self, is_within: bool) -> bool {
        self.syntax.triggers.iter().any(|trigger| !trigger.at_start || !is_within)
    }

    fn has_trigger(&self, said: &[Said]) -> bool {
        let is_it = |trigger: &Trigger| matches!(match_word(&trigger.word, said), Match::Yes(_));
        self.syntax.triggers.iter().any(is_it)
    }

    /// Processes the first of the waiting characters and tokens. Returns false if that requires
    /// more of them.
    fn advance(&mut self) -> bool {
        if self.waiting().is_empty() {
            return false;
        }
        match self.place {
            Place::Text { is_within } => self.in_text(is_within),
            Place::Head { is_first } => self.in_head(is_first),
            Place::Arguments(nesting) => self.in_arguments(nesting),
            Place::Parameter { is_first } => self.at_parameter(is_first),
            Place::Value { is_text } => self.in_value(is_text),
            Place::Tail => {
                let closed = match_all(&self.syntax.close, self.waiting());
                self.follow(closed, Place::Between)
            }
            Place::Between => self.in_between(),
        }
    }

    /// Consumes a match and moves to `to`; returns to the text if there is no match. Returns false
    /// if the match is incomplete.
    fn follow(&mut self, matched: Match<usize>, to: Place) -> bool {
        match matched {
            Match::Partly => return false,
            Match::Yes(length) => {
                self.decided += length;
                self.place = to;
            }
            Match::No => self.place = Place::Text { is_within: true },
        }
        true
    }

    fn in_text(&mut self, is_within: bool) -> bool {
        // Whitespace before a call is not part of the text.
        let blanks = blanks(self.waiting());
        let rest = &self.waiting()[blanks..];
        let head = if self.may_begin(is_within) { self.head(true, rest) } else { Match::No };
        match head {
            Match::Partly => return false,
            Match::Yes(_) => {
                self.decided += blanks;
                self.place = Place::Head { is_first: true };
            }
            Match::No => {
                self.place = Place::Text { is_within: is_within || !rest.is_empty() };
                self.tell(self.waiting().len().min(blanks + 1));
            }
        }
        true
    }

    /// Consumes the complete head of a call.
    fn in_head(&mut self, is_first: bool) -> bool {
        let Match::Yes((name, length)) = self.head(is_first, self.waiting()) else { return false };
        self.decided += length;
        let called = self.functions.iter().find(|function| function.name == name);
        let (index, name, arguments) = (self.calls, Some(name), String::new());
        self.found.calls.push(CallDelta { index, name, arguments });
        self.calls += 1;
        self.place = Place::Arguments(Nesting::default());
        if self.syntax.parameters.is_some() {
            self.texts = called.map(Function::text_parameters).unwrap_or_default();
            self.place = Place::Parameter { is_first: true };
        }
        true
    }

    fn in_arguments(&mut self, mut nesting: Nesting) -> bool {
        let mut arguments = String::new();
        let mut taken = 0;
        let mut is_over = false;
        for said in self.waiting() {
            let char = match said {
                Said::Char(char) if nesting.depth > 0 || *char == '{' => *char,
                _ => {
                    is_over = true;
                    break;
                }
            };
            taken += 1;
            arguments.push(char);
            nesting.take(char);
            if nesting.depth == 0 {
                is_over = true;
                break;
            }
        }
        self.decided += taken;
        self.tell_arguments(&arguments);
        self.place = if is_over { Place::Tail } else { Place::Arguments(nesting) };
        is_over
    }

    /// Consumes the head of an argument between tags, or ends the arguments after the last one.
    fn at_parameter(&mut self, is_first: bool) -> bool {
        let Some(ParameterTags { open, middle, .. }) = &self.syntax.parameters else {
            return false;
        };
        let waiting = self.waiting();
        let opened = match match_text(open, waiting) {
            Match::Partly => return false,
            Match::No => {
                self.tell_arguments(if is_first { "{}" } else { "}" });
                self.place = Place::Tail;
                return true;
            }
            Match::Yes(length) => length,
        };
        let name: String = waiting[opened..].iter().map_while(|said| said.of_name()).collect();
        let named = opened + name.len();
        let length = match match_text(middle, &waiting[named..]) {
            Match::Partly => return false,
            Match::No => {
                self.place = Place::Text { is_within: true };
                return true;
            }
            Match::Yes(length) => named + length,
        };
        let is_text = self.texts.contains(&name);
        let (before, quote) = (if is_first { "{" } else { ", " }, if is_text { "\"" } else { "" });
        self.decided += length;
        self.tell_arguments(&format!("{before}\"{name}\": {quote}"));
        self.place = Place::Value { is_text };
        true
    }

    fn in_value(&mut self, is_text: bool) -> bool {
        let Some(ParameterTags { close, .. }) = &self.syntax.parameters else { return false };
        match match_text(close, self.waiting()) {
            Match::Partly => false,
            Match::Yes(length) => {
                self.decided += length;
                self.tell_arguments(if is_text { "\"" } else { "" });
                self.place = Place::Parameter { is_first: false };
                true
            }
            Match::No => {
                if let Said::Char(char) = self.waiting()[0] {
                    let written = if is_text { escaped(char) } else { char.to_string() };
                    self.tell_arguments(&written);
                }
                self.decided += 1;
                true
            }
        }
    }

    fn in_between(&mut self) -> bool {
        match self.head(false, self.waiting()) {
            Match::Partly => false,
            Match::Yes(_) => {
                self.place = Place::Head { is_first: false };
                true
            }
            Match::No => {
                let last = match_all(&self.syntax.last, self.waiting());
                self.follow(last, Place::Text { is_within: true })
            }
        }
    }

    /// Matches the head of a call up to its arguments; returns the name and the length of the head.
    fn head(&self, is_first: bool, said: &[Said]) -> Match<(String, usize)> {
        let CallSyntax { first, open, middle, between, .. } = &self.syntax;
        let before = if is_first { first } else { between };
        let length = match match_all(before.iter().chain(open), said) {
            Match::Yes(length) => length,
            Match::Partly => return Match::Partly,
            Match::No => return Match::No,
        };
        let name: String = said[length..].iter().map_while(|said| said.of_name()).collect();
        let length = length + name.len();
        if length == said.len() {
            let begins = self.functions.iter().any(|known| known.name.starts_with(&name));
            return if begins { Match::Partly } else { Match::No };
        }
        if self.functions.iter().all(|known| known.name != name) {
            return Match::No;
        }
        match_all(middle, &said[length..]).map(|middle| (name, length + middle))
    }

    /// Adds the first `count` waiting characters and tokens to the text, in which tokens are
    /// omitted.
    fn tell(&mut self, count: usize) {
        for said in &self.said[self.decided..self.decided + count] {
            if let Said::Char(char) = said {
                self.found.content.push(*char);
            }
        }
        self.decided += count;
    }

    fn tell_arguments(&mut self, arguments: &str) {
        self.found.push_argument(self.calls - 1, arguments);
    }
}

/// Returns a character as it is written in a JSON text.
fn escaped(char: char) -> String {
    let quoted = serde_json::Value::from(char.to_string()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the number of whitespace characters at the beginning.
fn blanks(said: &[Said]) -> usize {
    let is_blank = |said: &&Said| matches!(said, Said::Char(char) if char.is_ascii_whitespace());
    said.iter().take_while(is_blank).count()
}

impl Nesting {
    fn take(&mut self, char: char) {
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
