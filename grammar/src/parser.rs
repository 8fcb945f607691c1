//! A parser as it is kept: at its beginning, to be copied.

use llguidance::{Matcher, ParserFactory, TokenParser};

use crate::cache::Measured;
use crate::error::GrammarError;
use crate::form::{Grammar, LEXER_STATES, parser_of};

/// Bytes of the rules made of a byte of a schema, about.
const RULE_BYTES: usize = 48;
/// Of the smallest parser, about.
const LEAST_BYTES: usize = 16 << 10;

/// A form's parser. Copies share what it has learnt of the form's lexer, which grows.
pub(crate) struct Parser {
    beginning: TokenParser,
    rule_bytes: usize,
    /// What was asked for is looked at again when an answer has ended.
    pub(crate) is_wider: bool,
}

impl Parser {
    /// # Errors
    /// As [`crate::Checker::check`].
    pub(crate) fn new(grammar: &Grammar, factory: &ParserFactory) -> Result<Parser, GrammarError> {
        let rule_bytes = LEAST_BYTES + RULE_BYTES * grammar.text_bytes();
        let rules = grammar.rules()?;
        let rules = rules.ok_or_else(|| GrammarError("a choice needs no parser".to_owned()))?;
        let is_wider = !rules.unheld.is_empty();
        Ok(Parser { beginning: parser_of(factory, rules.grammar)?, rule_bytes, is_wider })
    }

    /// At the beginning of a text.
    pub(crate) fn begin(&self) -> TokenParser {
        self.beginning.clone()
    }
}

impl Measured for Parser {
    fn size_bytes(&self) -> usize {
        self.rule_bytes + self.beginning.parser.lexer_stats().num_bytes
    }

    /// So much was learnt of the lexer that the next answer might find no room for more.
    fn is_worn(&self) -> bool {
        self.beginning.parser.lexer_stats().num_states > LEXER_STATES / 2
    }
}

/// A matcher that has taken bytes, which need not be whole tokens; `None` where it does not.
pub(crate) fn begun_with(parser: &Parser, bytes: &[u8]) -> Option<Matcher> {
    let mut begun = parser.begin();
    // No token: what it is only matters where it is the bytes.
    let is_taken =
        bytes.is_empty() || begun.parser.apply_token(bytes, u32::MAX).is_ok_and(|left| left == 0);
    is_taken.then(|| Matcher::new(Ok(begun)))
}

/// Sets the bits of what a parser lets follow; why it gives up.
pub(crate) fn allowed(matcher: &mut Matcher, mask: &mut [u32]) -> Option<GrammarError> {
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

/// Goes on with a token; why the parser gives up.
pub(crate) fn taken(matcher: &mut Matcher, token: u32) -> Option<GrammarError> {
    matcher.consume_token(token).err().map(|error| GrammarError::new(&error))
}
