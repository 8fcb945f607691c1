//! Calls read out of what a model says, while it says it.

use grammar::{CallSyntax, Calls, Function, ParameterTags, Trigger};

use super::matching::{Match, match_all, match_text, match_word};
use crate::openai::parts::{CallDelta, Found};
use crate::openai::said::Said;

/// Where in an answer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// `is_within`: there was more than blanks.
    Text {
        is_within: bool,
    },
    /// Where a call begins whose head is there.
    Head {
        is_first: bool,
    },
    Arguments(Nesting),
    /// Between arguments that stand between tags; `is_first`: before the first.
    Parameter {
        is_first: bool,
    },
    /// In the value of such an argument.
    Value {
        is_text: bool,
    },
    /// Behind the arguments.
    Tail,
    /// Behind a call.
    Between,
}

/// How deep in a JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Nesting {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

/// Follows an answer. However it comes in pieces, the same is found.
#[derive(Debug, Clone)]
pub struct CallReader {
    syntax: CallSyntax,
    functions: Vec<Function>,
    /// Of the call that is read: the arguments that are texts, where they stand between tags.
    texts: Vec<String>,
    place: Place,
    /// What came last, of which so much is decided.
    said: Vec<Said>,
    decided: usize,
    calls: usize,
    found: Found,
}

impl CallReader {
    /// At the beginning of an answer.
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

    /// Goes on; of tokens only those matter that calls are written with.
    pub fn push(&mut self, said: Said) {
        match said {
            Said::Token(token) if !self.has_token(token) => {}
            said => self.said.push(said),
        }
    }

    /// Whether calls are written with a token.
    pub fn has_token(&self, token: u32) -> bool {
        self.syntax.has_token(token)
    }

    /// What is certain and was not told.
    pub fn take(&mut self) -> Found {
        while self.advance() {}
        self.said.drain(..self.decided);
        self.decided = 0;
        std::mem::take(&mut self.found)
    }

    /// What was not told of an answer that ends here. A call whose arguments have not begun is left
    /// out.
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

    /// What is not decided.
    fn waiting(&self) -> &[Said] {
        &self.said[self.decided..]
    }

    /// Whether calls may begin here.
    fn may_begin(&self, is_within: bool) -> bool {
        self.syntax.triggers.iter().any(|trigger| !trigger.at_start || !is_within)
    }

    fn has_trigger(&self, said: &[Said]) -> bool {
        let is_it = |trigger: &Trigger| matches!(match_word(&trigger.word, said), Match::Yes(_));
        self.syntax.triggers.iter().any(is_it)
    }

    /// Decides on the first of what waits; whether anything was.
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

    /// Goes where a match leads, or back to the text.
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
        // Blanks before a call are none of the text.
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

    /// Of a head that is there.
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

    /// Before an argument between tags, or behind the last.
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

    /// A call's name, and how much is written up to its arguments.
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

    /// So much of what waits is text, but for tokens.
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

/// As it is written in a JSON text.
fn escaped(char: char) -> String {
    let quoted = serde_json::Value::from(char.to_string()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// How many blanks come first.
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
