//! Forms and whole texts, checked without a model's vocabulary.

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

/// Parsers kept between texts: answers of a job mostly share a form.
const KEPT: Bounds = Bounds { count: 16, size_bytes: 32 << 20 };

/// Says whether answers can have a form, and whether texts have it, whatever the model's
/// vocabulary.
pub struct Checker {
    factory: ParserFactory,
    kept: Cache<Grammar, Parser>,
    /// By the text of a schema.
    validators: Cache<String, Validator>,
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker").finish_non_exhaustive()
    }
}

impl Checker {
    /// One for all forms of a job.
    ///
    /// # Errors
    /// A parser that cannot be made.
    pub fn new() -> Result<Checker, GrammarError> {
        let bytes: TokEnv = Arc::new(ApproximateTokEnv::single_byte());
        let (kept, validators) = (Cache::new(KEPT), Cache::new(KEPT));
        Ok(Checker { factory: factory(&bytes)?, kept, validators })
    }

    /// Whether answers can have this form.
    ///
    /// # Errors
    /// A schema or an expression that is wrong, or asks for what is not implemented.
    pub fn check(&self, grammar: &Grammar) -> Result<(), GrammarError> {
        match grammar {
            Grammar::Calls(calls) => {
                // Bytes are the only tokens here. What is beyond bounds is refused before it is
                // compiled.
                let rules = calls.rules(Tokens::Left)?;
                for function in &calls.functions {
                    self.check(&arguments_of(function)).map_err(|error| function.of(&error))?;
                }
                parser_of(&self.factory, rules.grammar).map(drop)
            }
            Grammar::CallsOr(either) => {
                self.check(&Grammar::Calls(Box::new(either.calls.clone())))?;
                let beside = |error: GrammarError| {
                    GrammarError(format!("the form of answers that call none: {error}"))
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

    /// Whether objects may have as many keys as they must have.
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

    /// Whether a function may be called with these arguments.
    ///
    /// # Errors
    /// What is wrong with them, as "it ...".
    pub fn check_call(
        &mut self,
        calls: &Calls,
        name: &str,
        arguments: &str,
    ) -> Result<(), GrammarError> {
        let function = calls.functions.iter().find(|function| function.name == name);
        let unknown = || GrammarError(format!("it calls `{name}`, which is no function"));
        let form = arguments_of(function.ok_or_else(unknown)?);
        self.check_text(&form, arguments.as_bytes())
    }

    /// Whether a text as a whole is of the form, which does not begin behind a marker.
    ///
    /// # Errors
    /// What is wrong with the text, as "it ...", or as [`Checker::check`].
    pub fn check_text(&mut self, grammar: &Grammar, text: &[u8]) -> Result<(), GrammarError> {
        if let Grammar::Choice(texts) = grammar {
            let is_one = texts.iter().any(|choice| choice.as_bytes() == text);
            return wrong_unless(is_one, "it is none of the choices");
        }
        let kept = self.kept.get(grammar, || Parser::new(grammar, &self.factory))?;
        let (parser, is_wider) = (kept.begin(), kept.is_wider);
        let checked = parsed(parser, text).or_else(|_| {
            // One that others have used may have no room left for this text.
            parsed(Parser::new(grammar, &self.factory)?.begin(), text)
        });
        checked?;
        if let Grammar::JsonSchema(schema, _) | Grammar::Arguments(schema) = grammar {
            let told =
                |key: String| GrammarError(format!("it says the key `{key}` of an object twice"));
            Keys::default().take(text).map_err(told)?;
            return self.validate(schema, text, is_wider);
        }
        Ok(())
    }

    /// Compares a text with the schema as it was given; `is_wider`: its parser let more through.
    fn validate(&mut self, schema: &str, text: &[u8], is_wider: bool) -> Result<(), GrammarError> {
        let made = || Ok::<_, GrammarError>(Validator::new(schema));
        match self.validators.get(&schema.to_owned(), made)?.check(text) {
            Verdict::Unknown(why) if is_wider => {
                Err(GrammarError(format!("it cannot be compared with the schema: {why}")))
            }
            // The parser has held all of the schema.
            Verdict::Valid | Verdict::Unknown(_) => Ok(()),
            Verdict::Wrong(why) => Err(GrammarError(format!("it is not of the schema: {why}"))),
        }
    }
}

/// The form of a function's arguments.
fn arguments_of(function: &Function) -> Grammar {
    Grammar::Arguments(function.parameters.clone())
}

/// Whether a parser takes a text as a whole.
fn parsed(parser: TokenParser, text: &[u8]) -> Result<(), GrammarError> {
    let mut matcher = Matcher::new(Ok(parser));
    // Each byte is the token of its number.
    let taken = text.iter().all(|byte| matcher.consume_token(u32::from(*byte)).is_ok());
    wrong_unless(taken, "it says what the form does not allow")?;
    wrong_unless(matcher.is_accepting().unwrap_or(false), "it ends before it is complete")
}

fn wrong_unless(is_right: bool, what: &str) -> Result<(), GrammarError> {
    if is_right { Ok(()) } else { Err(GrammarError(what.to_owned())) }
}
