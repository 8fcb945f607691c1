//! Maximum sizes and depths of grammars: the code that parses them recurses and would exhaust the
//! stack.

use crate::error::GrammarError;

/// Maximum length of a schema's text, in bytes: well above that of schemas written by hand.
pub(crate) const SCHEMA_BYTES: usize = 1 << 20;
/// Maximum number of values in a schema. It bounds the number of rules made from it and the time to
/// measure it.
pub(crate) const SCHEMA_NODES: usize = 20_000;
/// Maximum length of the JSON pointers to all values of a schema together, in bytes: each pointer
/// is copied.
pub(crate) const SCHEMA_PLACES_BYTES: usize = 16 << 20;
/// Maximum nesting of a schema's values, references followed, which is the maximum of a JSON text.
pub(crate) const SCHEMA_DEPTH: usize = 128;
/// Maximum number of declared properties of an object, including those of schemas that apply to the
/// same object: the parser recurses through them.
pub(crate) const PROPERTIES: usize = 2_000;
/// Maximum number of these properties that are optional: the parser tracks all of them at once, up
/// to 500.
pub(crate) const OPTIONAL_PROPERTIES: usize = 480;
/// Maximum number of `pattern`s that apply to the same string.
pub(crate) const PATTERNS: usize = 32;
/// Maximum number of decimals of a `multipleOf`.
pub(crate) const MULTIPLE_DECIMALS: u32 = 6;
/// Maximum product of all `multipleOf` that apply to the same number, in units of their last
/// decimal: the parser counts in 32 bits, with two digits to spare.
pub(crate) const MULTIPLES: usize = 40_000_000;
/// Maximum number of pairs of `patternProperties` within an object, summed over all objects: each
/// pair is compared.
pub(crate) const PATTERN_PAIRS: usize = 4_096;
/// Maximum `minProperties` of an object with `patternProperties`: its possible keys are counted.
pub(crate) const PATTERN_PROPERTIES_LEAST: usize = 256;
/// Maximum length of a regular expression, within a schema too, in bytes.
pub(crate) const REGEX_BYTES: usize = 1 << 14;
/// Maximum number of repetitions in a regular expression: the time to parse it grows with their
/// square.
pub(crate) const REGEX_REPETITIONS: usize = 1_000;
/// Maximum length of a regular expression with its classes spelled out, in bytes.
pub(crate) const REGEX_WRITTEN_BYTES: usize = 1 << 17;
/// Maximum nesting of groups, classes, repetitions and concatenations.
pub(crate) const REGEX_DEPTH: u32 = 128;
/// Maximum number of choices, each of which is an alternative of a rule.
pub(crate) const CHOICES: usize = 4096;
/// Maximum length of all choices together, in bytes.
pub(crate) const CHOICE_BYTES: usize = 1 << 18;
/// Maximum number of functions: 20 are compiled in some 10 ms, 200 in about half a second.
pub(crate) const FUNCTIONS: usize = 256;

pub(crate) fn within(what: &str, count: usize, bound: usize) -> Result<(), GrammarError> {
    if count <= bound {
        return Ok(());
    }
    Err(GrammarError(format!("{what}, {count}, exceeds the bound of {bound}")))
}

/// Checks the bounds of a schema before it is parsed.
pub(crate) fn check_schema_text(text: &str) -> Result<(), GrammarError> {
    within("the size of the schema in bytes", text.len(), SCHEMA_BYTES)
}

pub(crate) fn check_choices(texts: &[String]) -> Result<(), GrammarError> {
    within("the number of choices", texts.len(), CHOICES)?;
    let bytes = texts.iter().map(String::len).sum();
    within("the size of all choices in bytes", bytes, CHOICE_BYTES)
}

/// Checks the bounds of a regular expression before it is parsed.
pub(crate) fn check_regex_text(expression: &str) -> Result<(), GrammarError> {
    within("the size of the regular expression in bytes", expression.len(), REGEX_BYTES)
}

/// Checks the bounds of a regular expression with its classes spelled out.
pub(crate) fn check_written(bytes: usize) -> Result<(), GrammarError> {
    let what = "the size of the regular expression's classes, spelled out in bytes,";
    within(what, bytes, REGEX_WRITTEN_BYTES)
}
