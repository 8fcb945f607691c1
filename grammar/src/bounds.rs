//! How large and deep a form may be: what reads it recurses, and would use up the stack.

use crate::error::GrammarError;

/// Of a schema's text: well above those that people write.
pub(crate) const SCHEMA_BYTES: usize = 1 << 20;
/// Values in a schema, which bounds the rules made of it and the time to measure it.
pub(crate) const SCHEMA_NODES: usize = 20_000;
/// Of the names that lead to each of a schema's values, all together: each is copied.
pub(crate) const SCHEMA_PLACES_BYTES: usize = 16 << 20;
/// Values within each other, references followed: as deep as a JSON text may be.
pub(crate) const SCHEMA_DEPTH: usize = 128;
/// Declared in an object, with what holds beside it: the parser recurses through them.
pub(crate) const PROPERTIES: usize = 2_000;
/// Of these, those that may be left out: the parser has them all in view, up to 500.
pub(crate) const OPTIONAL_PROPERTIES: usize = 480;
/// Patterns of texts that hold together.
pub(crate) const PATTERNS: usize = 32;
/// Decimals of a number that others are multiples of.
pub(crate) const MULTIPLE_DECIMALS: u32 = 6;
/// All such numbers that hold together, multiplied, in units of their last decimal: the parser
/// counts in 32 bits, with two digits to spare.
pub(crate) const MULTIPLES: usize = 40_000_000;
/// Pairs of an object's patterns of keys, each of which is looked at, of all objects together.
pub(crate) const PATTERN_PAIRS: usize = 4_096;
/// Keys that an object must have whose keys are given by patterns: they are counted.
pub(crate) const PATTERN_PROPERTIES_LEAST: usize = 256;
/// Of a regular expression, in a schema too.
pub(crate) const REGEX_BYTES: usize = 1 << 14;
/// In an expression: the time to read it grows with their square.
pub(crate) const REGEX_REPETITIONS: usize = 1_000;
/// With its classes spelled out.
pub(crate) const REGEX_WRITTEN_BYTES: usize = 1 << 17;
/// Groups, classes, repetitions and what is concatenated within each other.
pub(crate) const REGEX_DEPTH: u32 = 128;
/// Texts to choose from, each of which is a rule's alternative.
pub(crate) const CHOICES: usize = 4096;
/// Of all texts to choose from together.
pub(crate) const CHOICE_BYTES: usize = 1 << 18;
/// Functions that can be called: 20 are compiled in some 10 ms, 200 in about half a second.
pub(crate) const FUNCTIONS: usize = 256;

pub(crate) fn within(what: &str, count: usize, bound: usize) -> Result<(), GrammarError> {
    if count <= bound {
        return Ok(());
    }
    Err(GrammarError(format!("{what}, {count}, exceeds the bound of {bound}")))
}

/// Of a schema before it is parsed.
pub(crate) fn check_schema_text(text: &str) -> Result<(), GrammarError> {
    within("the size of the schema in bytes", text.len(), SCHEMA_BYTES)
}

pub(crate) fn check_choices(texts: &[String]) -> Result<(), GrammarError> {
    within("the number of choices", texts.len(), CHOICES)?;
    let bytes = texts.iter().map(String::len).sum();
    within("the size of all choices in bytes", bytes, CHOICE_BYTES)
}

/// Of a regular expression before it is parsed.
pub(crate) fn check_regex_text(expression: &str) -> Result<(), GrammarError> {
    within("the size of the regular expression in bytes", expression.len(), REGEX_BYTES)
}

/// Of what is written for one.
pub(crate) fn check_written(bytes: usize) -> Result<(), GrammarError> {
    let what = "the size of the regular expression's classes, spelled out in bytes,";
    within(what, bytes, REGEX_WRITTEN_BYTES)
}
