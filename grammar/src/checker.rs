//! Validation of grammars and of whole texts, without a model's vocabulary.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{Matcher, ParserFactory, TokenParser};

use crate::cache::{BoundedCache, CacheLimits};
use crate::calls::{Calls, Function};
use crate::definition::{Grammar, create_parser, parser_factory};
use crate::error::GrammarError;
use crate::key_tracker::KeyTracker;
use crate::lower::UnsupportedKeywords;
use crate::parser::Parser;
use crate::syntax::SpecialTokens;
use crate::validator::{Validation, Validator};
use crate::{min_properties, schema};

/// Maximum size of each cache: the answers of a job mostly share a grammar.
const CACHE_LIMITS: CacheLimits = CacheLimits { count: 16, size_bytes: 32 << 20 };

/// Checks that grammars are supported and that texts match them, regardless of a model's
/// vocabulary.
pub struct Checker {
    factory: ParserFactory,
    parsers: BoundedCache<Grammar, Parser>,
    /// Validators by the text of a schema.
    validators: BoundedCache<String, Validator>,
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

impl Checker {
    /// Creates a checker for all grammars of a job.
    ///
    /// # Errors
    /// Returns an error if the parser cannot be made.
    pub fn new() -> Result<Checker, GrammarError> {
        let bytes: TokEnv = Arc::new(ApproximateTokEnv::single_byte());
        let (parsers, validators) =
            (BoundedCache::new(CACHE_LIMITS), BoundedCache::new(CACHE_LIMITS));
        Ok(Checker { factory: parser_factory(&bytes)?, parsers, validators })
    }

    /// Checks that answers can follow this grammar.
    ///
    /// # Errors
    /// Returns an error if a schema or an expression is invalid, or uses something that is not
    /// implemented.
    pub fn check(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        match grammar {
            Grammar::Calls(calls) => {
                // Bytes are the only tokens here. Grammars beyond the bounds are refused before
                // they are compiled.
                let rules = calls.rules(SpecialTokens::Omitted)?;
                for function in &calls.functions {
                    self.check(&arguments_grammar(function))
                        .map_err(|error| function.in_arguments(&error))?;
                }
                create_parser(&self.factory, rules.grammar).map(drop)
            }
            Grammar::CallsOr(either) => {
                self.check(&Grammar::Calls(Box::new(either.calls.clone())))?;
                let beside = |error: GrammarError| {
                    GrammarError(format!("the format of answers without calls: {error}"))
                };
                self.check(&either.grammar).map_err(beside)?;
                create_parser(&self.factory, either.rules(SpecialTokens::Omitted)?.grammar)
                    .map(drop)
            }
            Grammar::JsonSchema(text, _) => {
                self.parse(grammar)?;
                self.check_min_properties(grammar, text, UnsupportedKeywords::Rejected)
            }
            Grammar::Arguments(text) => {
                self.parse(grammar)?;
                self.check_min_properties(grammar, text, UnsupportedKeywords::Removed)
            }
            Grammar::Behind(behind) => self.check(&behind.grammar),
            Grammar::Regex(_) | Grammar::Choice(_) => self.parse(grammar),
        }
    }

    fn parse(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        grammar
            .rules()?
            .map_or(Ok(()), |rules| create_parser(&self.factory, rules.grammar).map(drop))
    }

    /// Checks that objects may have as many keys as `minProperties` requires.
    fn check_min_properties(
        &self,
        grammar: &Grammar,
        text: &str,
        unsupported: UnsupportedKeywords,
    ) -> Result<(), GrammarError> {
        if grammar.keys_are_finite() {
            min_properties::check_min_properties(
                &self.factory,
                &schema::read(text, unsupported)?.value,
            )?;
        }
        Ok(())
    }

    /// Checks that a function may be called with these arguments.
    ///
    /// # Errors
    /// Returns the mismatch as a sentence that begins with "it".
    pub fn check_call(
        &mut self,
        calls: &Calls,
        name: &str,
        arguments: &str,
    ) -> Result<(), GrammarError> {
        let function = calls.functions.iter().find(|function| function.name == name);
        let unknown = || GrammarError(format!("it calls the unknown function `{name}`"));
        let grammar = arguments_grammar(function.ok_or_else(unknown)?);
        self.check_text(&grammar, arguments.as_bytes())
    }

    /// Checks that a whole text matches the grammar, which has no marker.
    ///
    /// # Errors
    /// Returns the mismatch as a sentence that begins with "it", or fails like
    /// [`Checker::check_min_properties`].
    pub fn check_text(&mut self, grammar: &Grammar, text: &[u8]) -> Result<(), GrammarError> {
        if let Grammar::Choice(texts) = grammar {
            let is_one = texts.iter().any(|choice| choice.as_bytes() == text);
            return ensure_match(is_one, "it is not one of the choices");
        }
        let kept =
            self.parsers.get_or_insert_with(grammar, || Parser::new(grammar, &self.factory))?;
        let (parser, is_wider) = (kept.initial_state(), kept.accepts_superset);
        let checked = check_parse(parser, text).or_else(|_| {
            // The lexer of a parser that was used before may have no states left for this text.
            check_parse(Parser::new(grammar, &self.factory)?.initial_state(), text)
        });
        checked?;
        if let Grammar::JsonSchema(schema, _) | Grammar::Arguments(schema) = grammar {
            let told =
                |key: String| GrammarError(format!("it repeats the key `{key}` of an object"));
            KeyTracker::default().advance_bytes(text).map_err(told)?;
            return self.validate(schema, text, is_wider);
        }
        Ok(())
    }

    /// Validates a text against the original schema. `is_wider` is true if the parser accepts more
    /// than the schema.
    fn validate(&mut self, schema: &str, text: &[u8], is_wider: bool) -> Result<(), GrammarError> {
        let made = || Ok::<_, GrammarError>(Validator::new(schema));
        match self.validators.get_or_insert_with(&schema.to_owned(), made)?.check(text) {
            Validation::Unknown(why) if is_wider => {
                Err(GrammarError(format!("it cannot be validated against the schema: {why}")))
            }
            // The parser has enforced the whole schema.
            Validation::Valid | Validation::Unknown(_) => Ok(()),
            Validation::Invalid(why) => {
                Err(GrammarError(format!("it does not match the schema: {why}")))
            }
        }
    }
}

/// Returns the grammar of a function's arguments.
fn arguments_grammar(function: &Function) -> Grammar {
    Grammar::Arguments(function.parameters.clone())
}

/// Checks that a parser accepts the whole text.
fn check_parse(parser: TokenParser, text: &[u8]) -> Result<(), GrammarError> {
    let mut matcher = Matcher::new(Ok(parser));
    // The ID of each token is its byte.
    let taken = text.iter().all(|byte| matcher.consume_token(u32::from(*byte)).is_ok());
    ensure_match(taken, "it contains text that the format does not allow")?;
    ensure_match(matcher.is_accepting().unwrap_or(false), "it ends before it is complete")
}

fn ensure_match(is_right: bool, what: &str) -> Result<(), GrammarError> {
    if is_right { Ok(()) } else { Err(GrammarError(what.to_owned())) }
}
