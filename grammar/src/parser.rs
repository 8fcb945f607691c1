//! A parser as it is kept: at its beginning, to be copied.

use llguidance::{ParserFactory, TokenParser};

use crate::asked::Grammar;
use crate::cache::Measured;
use crate::error::GrammarError;

/// A form's parser. Copies share what it has learnt of the form's lexer, which grows.
pub(crate) struct Parser {
    beginning: TokenParser,
    text_bytes: usize,
}

impl Parser {
    /// # Errors
    /// As [`crate::Checker::check`].
    pub(crate) fn new(grammar: &Grammar, factory: &ParserFactory) -> Result<Parser, GrammarError> {
        Ok(Parser { beginning: grammar.parser(factory)?, text_bytes: grammar.text_bytes() })
    }

    /// At the beginning of a text.
    pub(crate) fn begin(&self) -> TokenParser {
        self.beginning.clone()
    }
}

impl Measured for Parser {
    fn size_bytes(&self) -> usize {
        self.text_bytes + self.beginning.parser.lexer_stats().num_bytes
    }
}
