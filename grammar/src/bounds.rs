//! Maximum sizes and depths of grammars: the code that parses them recurses and would exhaust the
//! stack.

use crate::error::GrammarError;

/// Maximum length of a schema's text, in bytes: well above that of schemas written by hand.
pub(crate) const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// Maximum number of values in a schema. It bounds the number of rules made from it and the time to
/// measure it.
pub(crate) const MAX_SCHEMA_NODES: usize = 20_000;
/// Maximum length of the JSON pointers to all values of a schema together, in bytes: each pointer
/// is copied.
pub(crate) const MAX_SCHEMA_POINTER_BYTES: usize = 16 << 20;
/// Maximum nesting of a schema's values, references followed, which is the maximum of a JSON text.
pub(crate) const MAX_SCHEMA_DEPTH: usize = 128;
/// Maximum number of declared properties of an object, including those of schemas that apply to the
/// same object: the parser recurses through them.
pub(crate) const MAX_PROPERTIES: usize = 2_000;
/// Maximum number of these properties that are optional: the parser tracks all of them at once, up
/// to 500.
pub(crate) const MAX_OPTIONAL_PROPERTIES: usize = 480;
/// Maximum number of `pattern`s that apply to the same string.
pub(crate) const MAX_PATTERNS: usize = 32;
/// Maximum number of decimals of a `multipleOf`.
pub(crate) const MAX_MULTIPLE_OF_DECIMALS: u32 = 6;
/// Maximum product of all `multipleOf` that apply to the same number, in units of their last
/// decimal: the parser counts in 32 bits, with two digits to spare.
pub(crate) const MAX_MULTIPLE_OF_PRODUCT: usize = 40_000_000;
/// Maximum number of pairs of `patternProperties` within an object, summed over all objects: each
/// pair is compared.
pub(crate) const MAX_PATTERN_PAIRS: usize = 4_096;
/// Maximum `minProperties` of an object with `patternProperties`: its possible keys are counted.
pub(crate) const MAX_MIN_PROPERTIES: usize = 256;
/// Maximum length of a regular expression, within a schema too, in bytes.
pub(crate) const MAX_REGEX_BYTES: usize = 1 << 14;
/// Maximum number of repetitions in a regular expression: the time to parse it grows with their
/// square.
pub(crate) const MAX_REGEX_REPETITIONS: usize = 1_000;
/// Maximum length of a regular expression with its classes spelled out, in bytes.
pub(crate) const MAX_TRANSLATED_REGEX_BYTES: usize = 1 << 17;
/// Maximum nesting of groups, classes, repetitions and concatenations.
pub(crate) const MAX_REGEX_DEPTH: u32 = 128;
/// Maximum number of choices, each of which is an alternative of a rule.
pub(crate) const MAX_CHOICES: usize = 4096;
/// Maximum length of all choices together, in bytes.
pub(crate) const MAX_CHOICE_BYTES: usize = 1 << 18;
/// Maximum number of functions: 20 are compiled in some 10 ms, 200 in about half a second.
pub(crate) const MAX_FUNCTIONS: usize = 256;

pub(crate) fn check_limit(what: &str, count: usize, bound: usize) -> Result<(), GrammarError> {
    if count <= bound {
        return Ok(());
    }
    Err(GrammarError(format!("{what}, {count}, exceeds the bound of {bound}")))
}

/// Checks the bounds of a schema before it is parsed.
pub(crate) fn check_schema_text(text: &str) -> Result<(), GrammarError> {
    check_limit("the size of the schema in bytes", text.len(), MAX_SCHEMA_BYTES)
}

pub(crate) fn check_choices(texts: &[String]) -> Result<(), GrammarError> {
    check_limit("the number of choices", texts.len(), MAX_CHOICES)?;
    let bytes = texts.iter().map(String::len).sum();
    check_limit("the size of all choices in bytes", bytes, MAX_CHOICE_BYTES)
}

/// Checks the bounds of a regular expression before it is parsed.
pub(crate) fn check_regex_text(expression: &str) -> Result<(), GrammarError> {
    check_limit("the size of the regular expression in bytes", expression.len(), MAX_REGEX_BYTES)
}

/// Checks the bounds of a regular expression with its classes spelled out.
pub(crate) fn check_translated_regex(bytes: usize) -> Result<(), GrammarError> {
    let what = "the size of the regular expression's classes, spelled out in bytes,";
    check_limit(what, bytes, MAX_TRANSLATED_REGEX_BYTES)
}
