//! Cached parsers, which are kept in their initial state and cloned for each answer.

use llguidance::{Matcher, ParserFactory, TokenParser};

use crate::cache::CacheValue;
use crate::definition::{Grammar, MAX_LEXER_STATES, create_parser};
use crate::error::GrammarError;

/// Approximate size of the rules per byte of a schema.
const RULE_BYTES: usize = 48;
/// Approximate size of the smallest parser.
const MIN_PARSER_BYTES: usize = 16 << 10;

/// Parser of a grammar. Clones share its lexer's states, which are computed on demand.
pub(crate) struct Parser {
    initial: TokenParser,
    rule_bytes: usize,
    /// True if the parser accepts more than the grammar, so that answers must be checked when they
    /// have ended.
    pub(crate) accepts_superset: bool,
}

impl Parser {
    /// Compiles a grammar.
    ///
    /// # Errors
    /// Fails like [`crate::Checker::check`].
    pub(crate) fn new(grammar: &Grammar, factory: &ParserFactory) -> Result<Parser, GrammarError> {
        let rule_bytes = MIN_PARSER_BYTES + RULE_BYTES * grammar.text_bytes();
        let rules = grammar.rules()?;
        let rules = rules.ok_or_else(|| GrammarError("a choice needs no parser".to_owned()))?;
        let accepts_superset = !rules.unenforced.is_empty();
        Ok(Parser { initial: create_parser(factory, rules.grammar)?, rule_bytes, accepts_superset })
    }

    /// Returns a parser at the beginning of a text.
    pub(crate) fn initial_state(&self) -> TokenParser {
        self.initial.clone()
    }
}

impl CacheValue for Parser {
    fn size_bytes(&self) -> usize {
        self.rule_bytes + self.initial.parser.lexer_stats().num_bytes
    }

    /// Returns true if the next answer might exceed the maximum number of lexer states.
    fn must_rebuild(&self) -> bool {
        self.initial.parser.lexer_stats().num_states > MAX_LEXER_STATES / 2
    }
}

/// Returns a matcher that has taken bytes, which need not be whole tokens; `None` if the parser
/// does not accept them.
pub(crate) fn matcher_after(parser: &Parser, bytes: &[u8]) -> Option<Matcher> {
    let mut parser_state = parser.initial_state();
    // The token ID is irrelevant: only the bytes are parsed.
    let is_taken = bytes.is_empty()
        || parser_state.parser.apply_token(bytes, u32::MAX).is_ok_and(|left| left == 0);
    is_taken.then(|| Matcher::new(Ok(parser_state)))
}

/// Sets the bits of the tokens that a parser allows; returns the error if it fails.
pub(crate) fn fill_mask(matcher: &mut Matcher, mask: &mut [u32]) -> Option<GrammarError> {
    match matcher.compute_mask_or_eos() {
        Ok(allowed) => {
            let words = allowed.as_slice();
            let count = words.len().min(mask.len());
            mask[..count].copy_from_slice(&words[..count]);
            None
        }
        Err(error) => Some(GrammarError::new(&error)),
    }
}

/// Advances by a token; returns the error if the parser fails.
pub(crate) fn consume_token(matcher: &mut Matcher, token: u32) -> Option<GrammarError> {
    matcher.consume_token(token).err().map(|error| GrammarError::new(&error))
}
