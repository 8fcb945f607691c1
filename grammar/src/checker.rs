//! Validation of grammars and of whole texts, without a model's vocabulary.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv};
use llguidance::{Matcher, ParserFactory, TokenParser};

use crate::cache::{Bounds, Cache};
use crate::calls::{Calls, Function, Tokens};
use crate::error::GrammarError;
use crate::form::{Grammar, factory, parser_of};
use crate::keys::Keys;
use crate::lower::Unsupported;
use crate::parser::Parser;
use crate::validator::{Validator, Verdict};
use crate::{room, schema};

/// Maximum size of each cache: the answers of a job mostly share a grammar.
const KEPT: Bounds = Bounds { count: 16, size_bytes: 32 << 20 };

/// Checks that grammars are supported and that texts match them, regardless of a model's
/// vocabulary.
pub struct Checker {
    factory: ParserFactory,
    kept: Cache<Grammar, Parser>,
    /// Validators by the text of a schema.
    validators: Cache<String, Validator>,
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
        let (kept, validators) = (Cache::new(KEPT), Cache::new(KEPT));
        Ok(Checker { factory: factory(&bytes)?, kept, validators })
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
                let rules = calls.rules(Tokens::Left)?;
                for function in &calls.functions {
                    self.check(&arguments_of(function)).map_err(|error| function.of(&error))?;
                }
                parser_of(&self.factory, rules.grammar).map(drop)
            }
            Grammar::CallsOr(either) => {
                self.check(&Grammar::Calls(Box::new(either.calls.clone())))?;
                let beside = |error: GrammarError| {
                    GrammarError(format!("the format of answers without calls: {error}"))
                };
                self.check(&either.grammar).map_err(beside)?;
                parser_of(&self.factory, either.rules(Tokens::Left)?.grammar).map(drop)
            }
            Grammar::JsonSchema(text, _) => {
                self.parse(grammar)?;
                self.check_room(grammar, text, Unsupported::Refused)
            }
            Grammar::Arguments(text) => {
                self.parse(grammar)?;
                self.check_room(grammar, text, Unsupported::Dropped)
            }
            Grammar::Behind(behind) => self.check(&behind.grammar),
            Grammar::Regex(_) | Grammar::Choice(_) => self.parse(grammar),
        }
    }

    fn parse(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        grammar.rules()?.map_or(Ok(()), |rules| parser_of(&self.factory, rules.grammar).map(drop))
    }

    /// Checks that objects may have as many keys as `minProperties` requires.
    fn check_room(
        &self,
        grammar: &Grammar,
        text: &str,
        unsupported: Unsupported,
    ) -> Result<(), GrammarError> {
        if grammar.keys_run_out() {
            room::check(&self.factory, &schema::read(text, unsupported)?.value)?;
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
        let form = arguments_of(function.ok_or_else(unknown)?);
        self.check_text(&form, arguments.as_bytes())
    }

    /// Checks that a whole text matches the grammar, which has no marker.
    ///
    /// # Errors
    /// Returns the mismatch as a sentence that begins with "it", or fails like [`Checker::check`].
    pub fn check_text(&mut self, grammar: &Grammar, text: &[u8]) -> Result<(), GrammarError> {
        if let Grammar::Choice(texts) = grammar {
            let is_one = texts.iter().any(|choice| choice.as_bytes() == text);
            return wrong_unless(is_one, "it is not one of the choices");
        }
        let kept = self.kept.get(grammar, || Parser::new(grammar, &self.factory))?;
        let (parser, is_wider) = (kept.begin(), kept.is_wider);
        let checked = parsed(parser, text).or_else(|_| {
            // The lexer of a parser that was used before may have no states left for this text.
            parsed(Parser::new(grammar, &self.factory)?.begin(), text)
        });
        checked?;
        if let Grammar::JsonSchema(schema, _) | Grammar::Arguments(schema) = grammar {
            let told =
                |key: String| GrammarError(format!("it repeats the key `{key}` of an object"));
            Keys::default().take(text).map_err(told)?;
            return self.validate(schema, text, is_wider);
        }
        Ok(())
    }

    /// Validates a text against the original schema. `is_wider` is true if the parser accepts more
    /// than the schema.
    fn validate(&mut self, schema: &str, text: &[u8], is_wider: bool) -> Result<(), GrammarError> {
        let made = || Ok::<_, GrammarError>(Validator::new(schema));
        match self.validators.get(&schema.to_owned(), made)?.check(text) {
            Verdict::Unknown(why) if is_wider => {
                Err(GrammarError(format!("it cannot be validated against the schema: {why}")))
            }
            // The parser has enforced the whole schema.
            Verdict::Valid | Verdict::Unknown(_) => Ok(()),
            Verdict::Wrong(why) => {
                Err(GrammarError(format!("it does not match the schema: {why}")))
            }
        }
    }
}

/// Returns the grammar of a function's arguments.
fn arguments_of(function: &Function) -> Grammar {
    Grammar::Arguments(function.parameters.clone())
}

/// Checks that a parser accepts the whole text.
fn parsed(parser: TokenParser, text: &[u8]) -> Result<(), GrammarError> {
    let mut matcher = Matcher::new(Ok(parser));
    // The ID of each token is its byte.
    let taken = text.iter().all(|byte| matcher.consume_token(u32::from(*byte)).is_ok());
    wrong_unless(taken, "it contains text that the format does not allow")?;
    wrong_unless(matcher.is_accepting().unwrap_or(false), "it ends before it is complete")
}

fn wrong_unless(is_right: bool, what: &str) -> Result<(), GrammarError> {
    if is_right { Ok(()) } else { Err(GrammarError(what.to_owned())) }
}
