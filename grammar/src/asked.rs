//! The form that a request asks its answers to have.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokEnv;
use llguidance::{ParserFactory, TokenParser};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bounds;
use crate::error::GrammarError;

/// States of a form's lexer, about 1.2 KiB each: an answer that needs more cannot go on.
pub(crate) const LEXER_STATES: usize = 50_000;

/// Between the parts of a JSON text: room for a line's end and indentation, but not for a model that has lost its way
/// to go on with spaces until its tokens are used up.
const WHITESPACE: &str = r"[ \n\r\t]{0,32}";

/// A form of answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grammar {
    /// A JSON value of a JSON Schema, whose text this is.
    JsonSchema(String),
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// One of some texts.
    Choice(Vec<String>),
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

impl Grammar {
    /// A parser at its beginning.
    pub(crate) fn parser(&self, factory: &ParserFactory) -> Result<TokenParser, GrammarError> {
        factory.create_parser(self.to_rules()?).map_err(|error| GrammarError::new(&error))
    }

    /// Of what was asked for, in bytes.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Grammar::JsonSchema(text) | Grammar::Regex(text) => text.len(),
            Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
        }
    }

    /// In the parser's own terms.
    fn to_rules(&self) -> Result<TopLevelGrammar, GrammarError> {
        Ok(match self {
            Grammar::JsonSchema(text) => {
                bounds::check_schema_text(text)?;
                let mut schema =
                    serde_json::from_str(text).map_err(|error| GrammarError::new(&error))?;
                bounds::check_schema(&schema)?;
                if let Value::Object(fields) = &mut schema {
                    let spaced = json!({"whitespace_pattern": WHITESPACE});
                    fields.entry("x-guidance").or_insert(spaced);
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            Grammar::Regex(expression) => {
                bounds::check_regex(expression)?;
                TopLevelGrammar::from_regex(expression)
            }
            Grammar::Choice(texts) if texts.is_empty() => {
                return Err(GrammarError("there is nothing to choose from".to_owned()));
            }
            Grammar::Choice(texts) => {
                bounds::check_choices(texts)?;
                // A JSON text is a string of the rules' language too.
                let quoted = texts.iter().map(|text| Value::from(text.as_str()).to_string());
                let any = quoted.collect::<Vec<_>>().join(" | ");
                TopLevelGrammar::from_lark(format!("start: {any}"))
            }
        })
    }
}
