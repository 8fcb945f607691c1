//! The operator `~`, which joins the texts of values. minijinja formats lists and floats in it as
//! Rust does, and this cannot be configured. Therefore each `a ~ b ~ c` is replaced by a function
//! call with the operands as arguments before the template is compiled.
//!
//! The extent of an operand follows from precedence: `~` binds less tightly than `*`, `/` and
//! everything that binds more tightly than those, and more tightly than `+`, `-`, comparisons and
//! keyword operators.

/// Name of the function that joins its arguments.
pub(super) const FUNCTION: &str = "__texts_of";
const CALL: &str = "__texts_of(";

/// Returns the template with every chain of `~` replaced by a call.
pub(super) fn with_concat_calls(template: &str) -> String {
    let mut edits = Vec::new();
    let mut at = 0;
    while let Some(found) = template[at..].find('{') {
        let open = at + found;
        let end = |mark: &str| template[open..].find(mark).map(|end| open + end + mark.len());
        at = match template.as_bytes().get(open + 1) {
            Some(b'#') => end("#}").unwrap_or(template.len()),
            Some(kind @ (b'{' | b'%')) => {
                let is_tag = *kind == b'%';
                let close = Block { template, is_tag, edits: &mut edits }.scan(open + 2);
                let tag = &template[open + 2..close];
                if is_tag && is_raw(tag) {
                    // Unlike minijinja, Jinja2 keeps the line end after this tag.
                    if template[close..].starts_with('\n') && !tag.ends_with("-%}") {
                        edits.push(Edit { at: close, length: 0, text: "\n" });
                    }
                    end_of_raw(template, close)
                } else {
                    close
                }
            }
            _ => open + 1,
        };
    }
    apply(template, edits)
}

fn is_raw(tag: &str) -> bool {
    tag.trim_end_matches('}').trim_matches(|c: char| "-+%".contains(c) || c.is_whitespace())
        == "raw"
}

/// Returns the position after the `endraw` that ends a raw block.
fn end_of_raw(template: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(found) = template[at..].find("{%") {
        at += found + 2;
        let tag =
            template[at..].trim_start_matches(|c: char| "-+".contains(c) || c.is_whitespace());
        if tag.starts_with("endraw") {
            break;
        }
    }
    if at == from { template.len() } else { at }
}

/// Text that replaces `length` bytes at a position of the template.
#[derive(Debug)]
struct Edit {
    at: usize,
    length: usize,
    text: &'static str,
}

fn apply(template: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.at);
    let mut out = String::with_capacity(template.len());
    let mut from = 0;
    for Edit { at, length, text } in edits {
        out.push_str(&template[from..at]);
        out.push_str(text);
        from = at + length;
    }
    out + &template[from..]
}

/// An expression or tag that is being scanned.
struct Block<'a> {
    template: &'a str,
    is_tag: bool,
    edits: &'a mut Vec<Edit>,
}

/// An operand of operators that bind less tightly than `~`, as far as it has been scanned.
#[derive(Debug, Default)]
struct Operand {
    first: Option<usize>,
    end: usize,
    tildes: Vec<usize>,
}

/// Role of a token with respect to `~`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// Part of an operand after which the operand may end: a name, number or string.
    Atom,
    /// Part of an operand that must be followed by another: `*`, `|` or a point.
    Operator,
    /// `is`, after which words are names of tests.
    Is,
    Tilde,
    /// `+` or `-`, which is part of an operand only if it precedes the operand.
    Sign,
    Open,
    Close,
    /// Token that binds less tightly than `~` and ends an operand.
    Boundary,
}

impl Block<'_> {
    /// Scans a block from after its opening mark, and returns the position after its closing mark.
    fn scan(&mut self, from: usize) -> usize {
        let closing = if self.is_tag { "%}" } else { "}}" };
        let mut levels = vec![Operand::default()];
        let mut before = Token::Boundary;
        let mut at = from;
        // Whitespace control of the opening mark.
        if self.template[at..].starts_with(['-', '+']) {
            at += 1;
        }
        let mut is_first = true;
        while let Some(letter) = self.template[at..].chars().next() {
            let rest = &self.template[at..];
            if letter.is_whitespace() {
                at += letter.len_utf8();
                continue;
            }
            let signs = usize::from("-+".contains(letter) && rest[1..].starts_with(closing));
            if levels.len() == 1 && rest[signs..].starts_with(closing) {
                self.finish(levels.pop());
                return at + signs + closing.len();
            }
            let (token, length) = token(rest, before, self.is_tag && is_first);
            is_first = false;
            match token {
                Token::Open => {
                    touch(&mut levels, at, at + length);
                    levels.push(Operand::default());
                }
                Token::Close => {
                    let inner = levels.pop();
                    self.finish(inner);
                    if levels.is_empty() {
                        levels.push(Operand::default());
                    }
                    touch(&mut levels, at, at + length);
                }
                Token::Boundary => {
                    let last = levels.last_mut().map(std::mem::take);
                    self.finish(last);
                }
                Token::Tilde => {
                    if let Some(level) = levels.last_mut() {
                        level.tildes.push(at);
                    }
                }
                Token::Sign if before != Token::Atom && before != Token::Close => {
                    touch(&mut levels, at, at + length);
                }
                Token::Sign => {
                    let last = levels.last_mut().map(std::mem::take);
                    self.finish(last);
                }
                Token::Atom | Token::Operator | Token::Is => {
                    touch(&mut levels, at, at + length);
                }
            }
            before = token;
            at += length;
        }
        at
    }

    /// Replaces an operand by a call if it is a chain of `~`.
    fn finish(&mut self, operand: Option<Operand>) {
        let Some(Operand { first: Some(first), end, tildes }) = operand else { return };
        if tildes.is_empty() || tildes.iter().any(|at| !(first..end).contains(at)) {
            return;
        }
        self.edits.push(Edit { at: first, length: 0, text: CALL });
        self.edits.extend(tildes.into_iter().map(|at| Edit { at, length: 1, text: "," }));
        self.edits.push(Edit { at: end, length: 0, text: ")" });
    }
}

/// Extends the operand of the innermost level by a token.
fn touch(levels: &mut [Operand], first: usize, end: usize) {
    if let Some(level) = levels.last_mut() {
        level.first.get_or_insert(first);
        level.end = end;
    }
}

/// Words that end an operand.
const WORDS: [&str; 7] = ["and", "else", "elif", "if", "in", "or", "recursive"];

/// Returns the first token of a text, and its length in bytes.
fn token(text: &str, before: Token, is_name_of_tag: bool) -> (Token, usize) {
    let bytes = text.as_bytes();
    match bytes[0] {
        quote @ (b'"' | b'\'') => (Token::Atom, quoted(bytes, quote)),
        b'~' => (Token::Tilde, 1),
        b'(' | b'[' | b'{' => (Token::Open, 1),
        b')' | b']' | b'}' => (Token::Close, 1),
        b'+' | b'-' => (Token::Sign, 1),
        b'*' | b'/' if bytes.get(1) == Some(&bytes[0]) => (Token::Operator, 2),
        b'*' | b'/' | b'%' | b'|' | b'.' => (Token::Operator, 1),
        b'=' | b'!' | b'<' | b'>' if bytes.get(1) == Some(&b'=') => (Token::Boundary, 2),
        b'0'..=b'9' => (Token::Atom, number(bytes)),
        letter if letter == b'_' || letter.is_ascii_alphabetic() || !letter.is_ascii() => {
            let is_of_name = |c: &char| *c == '_' || c.is_alphanumeric();
            let length: usize = text.chars().take_while(is_of_name).map(char::len_utf8).sum();
            let length = length.max(text.chars().next().map_or(1, char::len_utf8));
            (word(&text[..length], before, is_name_of_tag), length)
        }
        _ => (Token::Boundary, 1),
    }
}

fn word(word: &str, before: Token, is_name_of_tag: bool) -> Token {
    match (word, before) {
        _ if is_name_of_tag => Token::Boundary,
        // Names of attributes, filters and tests.
        (_, Token::Operator) => Token::Atom,
        ("not", Token::Is) => Token::Is,
        (_, Token::Is) => Token::Atom,
        ("is", _) => Token::Is,
        ("not", _) => Token::Boundary,
        _ if WORDS.contains(&word) => Token::Boundary,
        _ => Token::Atom,
    }
}

/// Returns the length in bytes of a quoted string.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        match *byte {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the length in bytes of a number, including the sign of its exponent.
fn number(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = bytes.get(at) {
        let is_part = match *byte {
            b'+' | b'-' => matches!(bytes[at - 1], b'e' | b'E') && bytes.get(1) != Some(&b'x'),
            b'.' => bytes.get(at + 1).is_some_and(u8::is_ascii_digit),
            byte => byte.is_ascii_alphanumeric() || byte == b'_',
        };
        if !is_part {
            break;
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_become_calls() {
        for (template, expected) in [
            ("a ~ b", "a ~ b"),
            ("{{ a }}", "{{ a }}"),
            ("{{ a ~ b }}", "{{ __texts_of(a , b) }}"),
            ("{{- a~b~'~' -}}~{{x}}", "{{- __texts_of(a,b,'~') -}}~{{x}}"),
            ("{{ x + a ~ b - c }}", "{{ x + __texts_of(a , b) - c }}"),
            ("{{ -a ~ -1 }}", "{{ __texts_of(-a , -1) }}"),
            ("{{ a * 2 ~ b ** 3 // 4 % 5 }}", "{{ __texts_of(a * 2 , b ** 3 // 4 % 5) }}"),
            (
                "{{ (a ~ [b])|upper ~ f(d ~ e, k=g ~ h) }}",
                "{{ __texts_of((__texts_of(a , [b]))|upper , f(__texts_of(d , e), \
                 k=__texts_of(g , h))) }}",
            ),
            ("{{ {'a': b ~ c}['a'] }}", "{{ {'a': __texts_of(b , c)}['a'] }}"),
            ("{{ a ~ b if c ~ d else e }}", "{{ __texts_of(a , b) if __texts_of(c , d) else e }}"),
            ("{% set x = a ~ b is not none %}", "{% set x = __texts_of(a , b is not none) %}"),
            ("{%- if not a ~ b not in c -%}", "{%- if not __texts_of(a , b) not in c -%}"),
            ("{% for i in a ~ b if i %}", "{% for i in __texts_of(a , b) if i %}"),
            ("{{ a.in ~ b is in [c] }}", "{{ __texts_of(a.in , b is in [c]) }}"),
            ("{{ 1e-7 ~ 1.5 }}", "{{ __texts_of(1e-7 , 1.5) }}"),
            ("{{ '}}' ~ \"\\\"%}\" }}", "{{ __texts_of('}}' , \"\\\"%}\") }}"),
            ("{# {{ a ~ b }} #}", "{# {{ a ~ b }} #}"),
            (
                "{% raw %}{{ a ~ b }}{% endraw %}{{ a ~ b }}",
                "{% raw %}{{ a ~ b }}{% endraw %}{{ __texts_of(a , b) }}",
            ),
            ("{% raw %}\nx{% endraw %}", "{% raw %}\n\nx{% endraw %}"),
            ("{% raw -%}\nx{% endraw %}", "{% raw -%}\nx{% endraw %}"),
            ("{{ a ~ é }}", "{{ __texts_of(a , é) }}"),
            // Text that is not valid Jinja is left unchanged, or as invalid as it was.
            ("{{ a ~ }}", "{{ a ~ }}"),
            ("{{ ~ a }}", "{{ ~ a }}"),
            ("{{ a ~ b", "{{ a ~ b"),
            ("{", "{"),
            ("{% raw %}", "{% raw %}"),
        ] {
            assert_eq!(with_concat_calls(template), expected);
        }
    }

    /// Tests prefixes and suffixes of templates, most of which are not valid Jinja.
    #[test]
    fn any_text_is_scanned() {
        let text = "{%- if a.b[1] ~ 'é\\'' -%}{# ~ #}{{ ) ~ ( }}{% raw %}~{% endraw %}{{ 1e-7 ~ {";
        for (at, _) in text.char_indices() {
            let calls = [&text[..at], &text[at..]].map(with_concat_calls);
            assert!(calls.iter().all(|text| text.len() < 300));
        }
    }
}
