//! Translation of regular expressions to the parser's dialect, in which `\d` matches the digits of
//! all scripts and case folding maps `k` to the Kelvin sign. In the patterns of JSON Schema, which
//! follow ECMA 262, `\d`, `\w` and the case folding of ASCII letters are limited to ASCII.

use std::ops::Range;

use regex_syntax::ast::{
    self, Ast, ClassAsciiKind, ClassPerlKind, ClassSetItem, ErrorKind, Flag, FlagsItemKind,
    GroupKind, Span, Visitor, parse::ParserBuilder,
};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use crate::bounds::{self, MAX_REGEX_DEPTH, MAX_REGEX_REPETITIONS, check_limit};
use crate::error::GrammarError;

/// White space and line terminators of ECMA 262.
const SPACES: &str =
    r"\t-\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";

/// Line terminators of ECMA 262.
const LINE_ENDS: &str = r"\n\r\x{2028}\x{2029}";

/// Translates an expression to the parser's dialect.
///
/// # Errors
/// Returns an error if the expression is invalid or exceeds its bounds.
pub(crate) fn translate(expression: &str) -> Result<String, GrammarError> {
    write(expression, Translator::default())
}

/// Translates a schema's pattern, in which a dot matches no line terminator of ECMA 262.
///
/// # Errors
/// Fails like [`translate`].
pub(crate) fn pattern(expression: &str) -> Result<String, GrammarError> {
    write(expression, Translator { is_pattern: true, ..Translator::default() })
}

fn write(expression: &str, writer: Translator) -> Result<String, GrammarError> {
    bounds::check_regex_text(expression)?;
    let parsed = ParserBuilder::new().nest_limit(MAX_REGEX_DEPTH).build().parse(expression);
    let ast = parsed.map_err(|error| match error.kind() {
        ErrorKind::NestLimitExceeded(limit) => GrammarError(format!(
            "the nesting of the regular expression exceeds the bound of {limit}"
        )),
        kind => GrammarError(format!("in the regular expression: {kind}")),
    })?;
    let Translation { edits, ignores_whitespace, repetitions } = ast::visit(&ast, writer)?;
    let what = "the number of repetitions in the regular expression";
    check_limit(what, repetitions, MAX_REGEX_REPETITIONS)?;
    if ignores_whitespace && expression.contains(['\n', '\r', '\t']) {
        // The parser treats line ends as part of the text.
        return Err(GrammarError("a regular expression with `(?x)` must be one line".to_owned()));
    }
    let mut text = String::with_capacity(expression.len());
    let mut from = 0;
    for Edit { at, by } in edits {
        text.push_str(&expression[from..at.start]);
        text.push_str(&by);
        from = at.end;
        bounds::check_translated_regex(text.len())?;
    }
    text.push_str(&expression[from..]);
    Ok(text)
}

/// Translates an expression that matches nothing but JSON whitespace.
///
/// # Errors
/// Fails like [`translate`], or if the expression matches anything else.
pub(crate) fn whitespace(expression: &str) -> Result<String, GrammarError> {
    let text = translate(expression)?;
    let hir = regex_syntax::parse(&text).map_err(|error| GrammarError::new(&error))?;
    let is_white = |character: u32| [0x20, 0x09, 0x0a, 0x0d].contains(&character);
    let mut rest = vec![&hir];
    while let Some(hir) = rest.pop() {
        let is_fine = match hir.kind() {
            HirKind::Literal(literal) => literal.0.iter().all(|byte| is_white((*byte).into())),
            HirKind::Class(Class::Unicode(class)) => {
                let mut all = class.ranges().iter().map(|r| u32::from(r.start())..=r.end().into());
                all.all(|mut range| range.all(is_white))
            }
            HirKind::Class(Class::Bytes(class)) => {
                let mut all = class.ranges().iter().map(|r| r.start()..=r.end());
                all.all(|mut range| range.all(|byte| is_white(byte.into())))
            }
            HirKind::Look(_) => false,
            HirKind::Empty
            | HirKind::Repetition(_)
            | HirKind::Capture(_)
            | HirKind::Concat(_)
            | HirKind::Alternation(_) => true,
        };
        if !is_fine {
            return Err(GrammarError(format!(
                "`{expression}` matches more than whitespace: spaces, tabs and line ends"
            )));
        }
        rest.extend(hir.kind().subs());
    }
    Ok(text)
}

/// Result of visiting an expression.
#[derive(Default)]
struct Translation {
    /// Edits in the order of the text.
    edits: Vec<Edit>,
    /// True if a part of the expression ignores whitespace.
    ignores_whitespace: bool,
    repetitions: usize,
}

/// Replacement of a part of the expression.
struct Edit {
    at: Range<usize>,
    by: String,
}

/// Flags that change the meaning of letters and classes.
#[derive(Clone, Copy)]
struct RegexFlags {
    folds: bool,
    is_unicode: bool,
    /// A dot matches every character.
    has_all_dots: bool,
}

/// Visitor that collects edits. Case folding is expanded within each letter and class, and its flag
/// is removed.
struct Translator {
    modes: RegexFlags,
    /// Flags of the enclosing groups.
    outer: Vec<RegexFlags>,
    is_pattern: bool,
    translation: Translation,
}

impl Default for Translator {
    fn default() -> Translator {
        let modes = RegexFlags { folds: false, is_unicode: true, has_all_dots: false };
        Translator {
            modes,
            outer: Vec::new(),
            is_pattern: false,
            translation: Translation::default(),
        }
    }
}

impl Visitor for Translator {
    type Output = Translation;
    type Err = GrammarError;

    fn finish(mut self) -> Result<Translation, GrammarError> {
        self.translation.edits.sort_by_key(|edit| edit.at.start);
        Ok(self.translation)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), GrammarError> {
        match ast {
            Ast::Flags(set) => {
                let text = self.set(&set.flags);
                let by = if text.is_empty() { "(?:)".to_owned() } else { format!("(?{text})") };
                self.edit(&set.span, by);
            }
            Ast::Group(group) => {
                self.outer.push(self.modes);
                match &group.kind {
                    GroupKind::NonCapturing(flags) => {
                        let text = self.set(flags);
                        self.edit(&flags.span, text);
                    }
                    // The parser gives a group named `stop` a special meaning.
                    GroupKind::CaptureName { name, .. } => {
                        let at = group.span.start.offset + 1..name.span.end.offset + 1;
                        self.translation.edits.push(Edit { at, by: "?:".to_owned() });
                    }
                    GroupKind::CaptureIndex(_) => {}
                }
            }
            Ast::Literal(literal) if self.modes.folds => {
                let letter = literal.c;
                if letter.is_ascii_alphabetic() {
                    self.edit(&literal.span, format!("[{}]", both_cases(letter)));
                } else if !letter.is_ascii() && self.modes.is_unicode {
                    self.edit(
                        &literal.span,
                        format!("[{}]", class_syntax(&fold_case(letter, letter))),
                    );
                }
            }
            Ast::Repetition(_) => self.translation.repetitions += 1,
            Ast::Dot(span) if self.is_pattern && !self.modes.has_all_dots => {
                self.edit(span, format!("[^{LINE_ENDS}]"));
            }
            Ast::ClassPerl(class) => self.perl(&class.span, &class.kind, class.negated),
            Ast::ClassUnicode(class) if self.modes.folds => {
                let by = format!("(?i:{})", unicode_class_syntax(class));
                self.edit(&class.span, by);
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), GrammarError> {
        if matches!(ast, Ast::Group(_)) {
            self.modes = self.outer.pop().unwrap_or(self.modes);
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), GrammarError> {
        let RegexFlags { folds, is_unicode, .. } = self.modes;
        match item {
            ClassSetItem::Perl(class) => self.perl(&class.span, &class.kind, class.negated),
            ClassSetItem::Literal(literal) if folds => {
                self.fold_range(&literal.span, literal.c, literal.c);
            }
            ClassSetItem::Range(range) if folds => {
                self.fold_range(&range.span, range.start.c, range.end.c);
            }
            ClassSetItem::Ascii(class) if folds => {
                if matches!(class.kind, ClassAsciiKind::Lower | ClassAsciiKind::Upper) {
                    let not = if class.negated { "^" } else { "" };
                    self.edit(&class.span, format!("[:{not}alpha:]"));
                }
            }
            ClassSetItem::Unicode(class) if folds && is_unicode => {
                let text = format!("(?i:{})", unicode_class_syntax(class));
                let parsed = regex_syntax::parse(&text).ok();
                let ranges = parsed.and_then(|hir| match hir.into_kind() {
                    HirKind::Class(Class::Unicode(class)) => Some(class_syntax(&class)),
                    _ => None,
                });
                let by = ranges.ok_or_else(|| {
                    GrammarError(format!(
                        "`{}` is not a character class",
                        unicode_class_syntax(class)
                    ))
                })?;
                self.edit(&class.span, by);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Translator {
    fn edit(&mut self, span: &Span, by: String) {
        self.translation.edits.push(Edit { at: span.start.offset..span.end.offset, by });
    }

    /// Applies flags and returns their text without the case folding flag.
    fn set(&mut self, flags: &ast::Flags) -> String {
        let RegexFlags { folds, is_unicode, has_all_dots } = &mut self.modes;
        *folds = flags.flag_state(Flag::CaseInsensitive).unwrap_or(*folds);
        *has_all_dots = flags.flag_state(Flag::DotMatchesNewLine).unwrap_or(*has_all_dots);
        *is_unicode = flags.flag_state(Flag::Unicode).unwrap_or(*is_unicode);
        self.translation.ignores_whitespace |=
            flags.flag_state(Flag::IgnoreWhitespace) == Some(true);
        let letter = |kind: &FlagsItemKind| match kind {
            FlagsItemKind::Negation => '-',
            FlagsItemKind::Flag(Flag::CaseInsensitive) => 'i',
            FlagsItemKind::Flag(Flag::MultiLine) => 'm',
            FlagsItemKind::Flag(Flag::DotMatchesNewLine) => 's',
            FlagsItemKind::Flag(Flag::SwapGreed) => 'U',
            FlagsItemKind::Flag(Flag::Unicode) => 'u',
            FlagsItemKind::Flag(Flag::CRLF) => 'R',
            FlagsItemKind::Flag(Flag::IgnoreWhitespace) => 'x',
        };
        let letters = flags.items.iter().map(|item| letter(&item.kind));
        let text: String = letters.filter(|letter| *letter != 'i').collect();
        text.trim_end_matches('-').to_owned()
    }

    fn perl(&mut self, span: &Span, kind: &ClassPerlKind, negated: bool) {
        if !self.modes.is_unicode {
            return;
        }
        let within = match kind {
            ClassPerlKind::Digit => "0-9",
            ClassPerlKind::Word => "0-9A-Z_a-z",
            ClassPerlKind::Space => SPACES,
        };
        let not = if negated { "^" } else { "" };
        self.edit(span, format!("[{not}{within}]"));
    }

    /// Expands the case folding of a range within a class.
    fn fold_range(&mut self, span: &Span, first: char, last: char) {
        if self.modes.is_unicode || last.is_ascii() {
            self.edit(span, class_syntax(&fold_case(first, last)));
        }
    }
}

/// Returns a range with its case folding: ASCII letters fold to ASCII only, other characters as
/// Unicode defines.
fn fold_case(first: char, last: char) -> ClassUnicode {
    let within = |first: char, last: char| {
        let ranges = (first <= last).then(|| ClassUnicodeRange::new(first, last));
        ClassUnicode::new(ranges)
    };
    let mut ascii = within(first, last.min('\x7f'));
    let mut lower = ascii.clone();
    lower.intersect(&within('a', 'z'));
    let mut upper = ascii.clone();
    upper.intersect(&within('A', 'Z'));
    for range in lower.ranges() {
        ascii.push(ClassUnicodeRange::new(
            range.start().to_ascii_uppercase(),
            range.end().to_ascii_uppercase(),
        ));
    }
    for range in upper.ranges() {
        ascii.push(ClassUnicodeRange::new(
            range.start().to_ascii_lowercase(),
            range.end().to_ascii_lowercase(),
        ));
    }
    let mut beyond = within(first.max('\u{80}'), last);
    beyond.case_fold_simple();
    ascii.union(&beyond);
    ascii
}

/// Formats a class as ranges, without brackets.
fn class_syntax(class: &ClassUnicode) -> String {
    let range = |range: &ClassUnicodeRange| {
        let (first, last) = (u32::from(range.start()), u32::from(range.end()));
        if first == last {
            format!(r"\x{{{first:x}}}")
        } else {
            format!(r"\x{{{first:x}}}-\x{{{last:x}}}")
        }
    };
    class.ranges().iter().map(range).collect()
}

/// Formats a class like `\p{Greek}`.
fn unicode_class_syntax(class: &ast::ClassUnicode) -> String {
    use ast::ClassUnicodeKind::{Named, NamedValue, OneLetter};
    let letter = if class.negated { 'P' } else { 'p' };
    match &class.kind {
        OneLetter(name) => format!(r"\{letter}{{{name}}}"),
        Named(name) => format!(r"\{letter}{{{name}}}"),
        NamedValue { name, value, .. } => format!(r"\{letter}{{{name}={value}}}"),
    }
}

fn both_cases(letter: char) -> String {
    [letter.to_ascii_lowercase(), letter.to_ascii_uppercase()].iter().collect()
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;

    use super::*;

    /// Generator of random expressions from small parts.
    struct Parts(u64);

    impl Parts {
        fn pick<'p>(&mut self, parts: &[&'p str]) -> &'p str {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            parts[(self.0 >> 33) as usize % parts.len()]
        }

        fn class(&mut self, depth: usize) -> String {
            let items =
                ["a", "k", "K", "a-f", "S-Z", r"\d", r"\W", r"\S", "[:lower:]", r"\p{Lu}", r"\x6b"];
            let mut text = format!("[{}", self.pick(&["", "", "^"]));
            for _ in 0..1 + depth {
                text.push_str(self.pick(&items));
                let op = self.pick(&["", "", "", "&&", "--", "~~"]);
                if !op.is_empty() && depth > 0 {
                    text.push_str(op);
                    text.push_str(&self.class(depth - 1));
                }
            }
            text + "]"
        }

        fn expression(&mut self, depth: usize) -> String {
            let mut text = String::new();
            for _ in 0..3 {
                let kind = self.pick(&["text", "class", "group", "flags", "or", "text", "class"]);
                text.push_str(&match kind {
                    "class" => self.class(depth),
                    "flags" => self.pick(&["(?i)", "(?-i)", "(?is)", "(?s-i)", "(?U)"]).to_owned(),
                    "or" => "|".to_owned(),
                    "group" if depth > 0 => {
                        let open = self.pick(&["(", "(?:", "(?i:", "(?-i:", "(?P<n>", "(?s-i:"]);
                        let within = self.expression(depth - 1).replace("?P<n>", "");
                        format!("{open}{within}){}", self.pick(&["", "*", "+", "?", "{1,2}"]))
                    }
                    _ => self
                        .pick(&["a", "k", "K", "z", "7", r"\d", r"\w", r"\s", ".", " "])
                        .to_owned(),
                });
            }
            text
        }
    }

    /// Translation does not change the meaning of an expression for ASCII texts.
    #[test]
    fn ascii_texts_match_as_before() {
        let (mut parts, mut compared, mut matched) = (Parts(3), 0, 0);
        for _ in 0..3_000 {
            let expression = parts.expression(2);
            let mut builder = RegexBuilder::new();
            let Ok(before) = builder.mk_regex(&expression) else { continue };
            let text = translate(&expression).unwrap_or_else(|e| panic!("{expression}: {e}"));
            let after =
                builder.mk_regex(&text).unwrap_or_else(|e| panic!("{expression} {text}: {e}"));
            let [mut before, mut after] = [before, after].map(|found| builder.to_regex(found));
            for _ in 0..40 {
                let letters = ["", "a", "k", "K", "S", "s", "z", "7", " ", "_", "\n", "!"];
                let ascii: String = (0..3).map(|_| parts.pick(&letters)).collect();
                let expected = before.is_match(&ascii);
                assert_eq!(after.is_match(&ascii), expected, "{expression} {text} {ascii:?}");
                compared += 1;
                matched += u32::from(expected);
            }
        }
        assert!(compared > 50_000 && matched > 2_000, "{matched} of {compared} match");
    }
}
