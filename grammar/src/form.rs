//! The form that a request asks its answers to have.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{ParserFactory, TokenParser};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bounds;
use crate::calls::{Calls, Tokens};
use crate::error::GrammarError;
use crate::marker::Marker;
use crate::whitespace::Whitespace;
use crate::{regex, schema};

/// States of a form's lexer, about 1.2 KiB each: an answer that needs more cannot go on.
pub(crate) const LEXER_STATES: usize = 50_000;

/// A form of answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grammar {
    /// A JSON value of a JSON Schema, whose text this is; no object in it says a key twice.
    JsonSchema(String, Whitespace),
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
    /// Calls of functions, a text before them unless they are required.
    Calls(Box<Calls>),
    /// One of these behind a marker.
    Behind(Box<Behind>),
}

/// An answer that is a text of `grammar` from behind its first `marker` on, which must come.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Behind {
    pub marker: Marker,
    /// No such form itself.
    pub grammar: Grammar,
}

/// What makes parsers over a vocabulary.
pub(crate) fn factory(vocabulary: &TokEnv) -> Result<ParserFactory, GrammarError> {
    let factory = ParserFactory::new_simple(vocabulary);
    let mut factory = factory.map_err(|error| GrammarError::new(&error))?;
    // What it has to say comes as errors.
    factory.quiet();
    factory.limits_mut().max_lexer_states = LEXER_STATES;
    Ok(factory)
}

/// A parser at the beginning of its rules.
pub(crate) fn parser_of(
    factory: &ParserFactory,
    rules: TopLevelGrammar,
) -> Result<TokenParser, GrammarError> {
    factory.create_parser(rules).map_err(|error| GrammarError::new(&error))
}

impl Grammar {
    /// A JSON value of a schema, with the usual whitespace.
    pub fn json_schema(schema: impl Into<String>) -> Grammar {
        Grammar::JsonSchema(schema.into(), Whitespace::default())
    }

    /// Whether an object of it may have few keys to say: those declared come once each, and beside
    /// them there is no end of others unless there are patterns.
    pub(crate) fn keys_run_out(&self) -> bool {
        // An escape may spell the keyword.
        let spells = |text: &String| text.contains("patternProperties") || text.contains(r"\u");
        match self {
            Grammar::JsonSchema(text, _) => spells(text),
            Grammar::Calls(calls) => calls.functions.iter().any(|one| spells(&one.parameters)),
            Grammar::Behind(behind) => behind.grammar.keys_run_out(),
            Grammar::Regex(_) | Grammar::Choice(_) => false,
        }
    }

    /// Size of the texts that were asked for, in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Grammar::JsonSchema(text, _) | Grammar::Regex(text) => text.len(),
            Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
            Grammar::Calls(calls) => calls.text_bytes(),
            Grammar::Behind(behind) => behind.grammar.text_bytes(),
        }
    }

    /// The calls that an answer of this form may have.
    pub fn calls(&self) -> Option<&Calls> {
        match self {
            Grammar::Calls(calls) => Some(calls),
            Grammar::Behind(behind) => behind.grammar.calls(),
            _ => None,
        }
    }

    /// In the parser's own terms; `None` for choices, which need no parser.
    ///
    /// # Errors
    /// What is wrong or beyond its bounds.
    pub(crate) fn rules(&self) -> Result<Option<TopLevelGrammar>, GrammarError> {
        Ok(Some(match self {
            Grammar::JsonSchema(text, whitespace) => {
                let mut schema = schema::read(text)?;
                if schema == Value::Bool(true) {
                    schema = json!({});
                }
                if let Value::Object(fields) = &mut schema {
                    whitespace.write(fields)?;
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            Grammar::Regex(expression) => TopLevelGrammar::from_regex(&regex::written(expression)?),
            Grammar::Choice(texts) if texts.is_empty() => {
                return Err(GrammarError("there is nothing to choose from".to_owned()));
            }
            Grammar::Choice(texts) => {
                bounds::check_choices(texts)?;
                return Ok(None);
            }
            Grammar::Calls(calls) => calls.rules(Tokens::Theirs)?,
            Grammar::Behind(behind) => match (&behind.grammar, behind.grammar.rules()?) {
                // Nobody knows in which tokens the marker ends, so a parser follows these too.
                (Grammar::Choice(texts), _) => TopLevelGrammar::from_lark(one_of(texts)),
                (_, rules) => return Ok(rules),
            },
        }))
    }
}

/// A rule of texts.
fn one_of(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
    format!("start: {}\n", texts.join(" | "))
}
