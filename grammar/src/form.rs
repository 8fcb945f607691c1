//! The form that a request asks its answers to have.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{ParserFactory, TokenParser};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bounds;
use crate::calls::{Calls, Tokens};
use crate::error::GrammarError;
use crate::lower::Unsupported;
use crate::marker::Marker;
use crate::rules::Rules;
use crate::schema::Schema;
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
    /// Calls of functions, or an answer of a form.
    CallsOr(Box<CallsOr>),
    /// The arguments of a function: a JSON value of a JSON Schema, whose text this is, as far as
    /// the schema can be held.
    Arguments(String),
}

/// An answer that is calls of functions, or a text of `grammar`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallsOr {
    /// No text stands before them.
    pub calls: Calls,
    /// No such form itself, and no calls.
    pub grammar: Grammar,
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
        let keywords = ["patternProperties", "propertyNames", r"\u"];
        let spells = |text: &String| keywords.iter().any(|keyword| text.contains(keyword));
        match self {
            Grammar::JsonSchema(text, _) | Grammar::Arguments(text) => spells(text),
            Grammar::Calls(calls) => calls.functions.iter().any(|one| spells(&one.parameters)),
            Grammar::Behind(behind) => behind.grammar.keys_run_out(),
            Grammar::CallsOr(either) => {
                let calls = &either.calls.functions;
                either.grammar.keys_run_out() || calls.iter().any(|one| spells(&one.parameters))
            }
            Grammar::Regex(_) | Grammar::Choice(_) => false,
        }
    }

    /// Size of the texts that were asked for, in bytes.
    pub fn text_bytes(&self) -> usize {
        match self {
            Grammar::JsonSchema(text, _) | Grammar::Regex(text) | Grammar::Arguments(text) => {
                text.len()
            }
            Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
            Grammar::Calls(calls) => calls.text_bytes(),
            Grammar::Behind(behind) => behind.grammar.text_bytes(),
            Grammar::CallsOr(either) => either.calls.text_bytes() + either.grammar.text_bytes(),
        }
    }

    /// The calls that an answer of this form may have.
    pub fn calls(&self) -> Option<&Calls> {
        match self {
            Grammar::Calls(calls) => Some(calls),
            Grammar::Behind(behind) => behind.grammar.calls(),
            Grammar::CallsOr(either) => Some(&either.calls),
            _ => None,
        }
    }

    /// The form of an answer that calls no function, behind any marker; `None` where it has none.
    pub fn of_text(&self) -> Option<&Grammar> {
        match self {
            Grammar::Calls(_) => None,
            Grammar::Behind(behind) => behind.grammar.of_text(),
            Grammar::CallsOr(either) => Some(&either.grammar),
            grammar => Some(grammar),
        }
    }

    /// What of its schemas is not held while an answer is said, but looked at when it has ended: a
    /// sentence for each schema. Nothing where the form is wrong.
    pub fn unheld(&self) -> Vec<String> {
        let sentence = |of: &str, schema: Result<Schema, GrammarError>| {
            let unheld = schema.ok()?.unheld;
            let names: Vec<String> = unheld.iter().map(|name| format!("`{name}`")).collect();
            (!names.is_empty()).then(|| {
                format!(
                    "{of}: {} cannot be held while an answer is said and is looked at when it has \
                     ended",
                    names.join(", ")
                )
            })
        };
        match self {
            Grammar::JsonSchema(text, _) => {
                sentence("the schema", schema::read(text, Unsupported::Refused))
                    .into_iter()
                    .collect()
            }
            Grammar::Arguments(text) => {
                sentence("the schema", schema::read(text, Unsupported::Dropped))
                    .into_iter()
                    .collect()
            }
            Grammar::Calls(calls) => {
                let of = |name: &str, text: &str| {
                    let schema = schema::read(text, Unsupported::Dropped);
                    sentence(&format!("the parameters of `{name}`"), schema)
                };
                calls.functions.iter().filter_map(|one| of(&one.name, &one.parameters)).collect()
            }
            Grammar::Behind(behind) => behind.grammar.unheld(),
            Grammar::CallsOr(either) => {
                let calls = Grammar::Calls(Box::new(either.calls.clone()));
                [either.grammar.unheld(), calls.unheld()].concat()
            }
            Grammar::Regex(_) | Grammar::Choice(_) => Vec::new(),
        }
    }

    /// In the parser's own terms; `None` for choices, which need no parser.
    ///
    /// # Errors
    /// What is wrong or beyond its bounds.
    pub(crate) fn rules(&self) -> Result<Option<Rules>, GrammarError> {
        Ok(Some(match self {
            Grammar::JsonSchema(text, whitespace) => {
                let schema = schema::read(text, Unsupported::Refused)?;
                of_schema(schema, whitespace)?
            }
            Grammar::Arguments(text) => {
                let schema = schema::read(text, Unsupported::Dropped)?;
                of_schema(schema, &Whitespace::default())?
            }
            Grammar::Regex(expression) => {
                TopLevelGrammar::from_regex(&regex::written(expression)?).into()
            }
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
                (Grammar::Choice(texts), _) => one_of(texts).into(),
                (_, rules) => return Ok(rules),
            },
            Grammar::CallsOr(either) => either.rules(Tokens::Theirs)?,
        }))
    }
}

impl CallsOr {
    /// In the parser's own terms.
    ///
    /// # Errors
    /// As [`Calls::rules`], and those of the other form.
    pub(crate) fn rules(&self, tokens: Tokens) -> Result<Rules, GrammarError> {
        let mut calls = self.calls.rules(tokens)?;
        let mut form = match (&self.grammar, self.grammar.rules()?) {
            (Grammar::Choice(texts), None) => one_of(texts).into(),
            (_, Some(rules)) => rules,
            (_, None) => return Err(GrammarError("there is no form beside the calls".to_owned())),
        };
        let start = GrammarWithLexer::from_lark("start: @calls | @form\n".to_owned());
        for (name, rules) in [("calls", &mut calls), ("form", &mut form)] {
            if let Some(first) = rules.grammar.grammars.first_mut() {
                first.name = Some(name.to_owned());
            }
        }
        let mut grammars = vec![start];
        grammars.append(&mut calls.grammar.grammars);
        grammars.append(&mut form.grammar.grammars);
        calls.unheld.append(&mut form.unheld);
        Ok(Rules { grammar: TopLevelGrammar { grammars, max_tokens: None }, unheld: calls.unheld })
    }
}

fn of_schema(schema: Schema, whitespace: &Whitespace) -> Result<Rules, GrammarError> {
    let Schema { mut value, unheld, has_control } = schema;
    if value == Value::Bool(true) {
        value = json!({});
    }
    if let Value::Object(fields) = &mut value {
        whitespace.write(fields, has_control)?;
    }
    Ok(Rules { grammar: TopLevelGrammar::from_json_schema(value), unheld })
}

/// A rule of texts.
fn one_of(texts: &[String]) -> TopLevelGrammar {
    let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
    TopLevelGrammar::from_lark(format!("start: {}\n", texts.join(" | ")))
}
