//! The grammars that a request may ask for.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{ParserFactory, TokenParser};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bounds;
use crate::calls::Calls;
use crate::error::GrammarError;
use crate::lower::UnsupportedKeywords;
use crate::marker::Marker;
use crate::rules::ParserRules;
use crate::schema::LoweredSchema;
use crate::syntax::SpecialTokens;
use crate::whitespace::Whitespace;
use crate::{regex, schema};

/// Maximum number of states of a grammar's lexer, about 1.2 KiB each. An answer that needs more
/// fails.
pub(crate) const MAX_LEXER_STATES: usize = 50_000;

/// A grammar of answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grammar {
    /// JSON that is valid against a JSON Schema, given as text; no object in it repeats a key.
    JsonSchema(String, Whitespace),
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// One of several texts.
    Choice(Vec<String>),
    /// Function calls, optionally after a text unless they are required.
    Calls(Box<Calls>),
    /// Another grammar after a marker.
    Behind(Box<Behind>),
    /// Function calls, or an answer that follows another grammar.
    CallsOr(Box<CallsOr>),
    /// Arguments of a function: JSON that is valid against a JSON Schema, given as text, as far as
    /// the schema can be enforced.
    Arguments(String),
}

/// An answer that consists of function calls or follows `grammar`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallsOr {
    /// The calls, without text before them.
    pub calls: Calls,
    /// The alternative, which contains neither calls nor another [`CallsOr`].
    pub grammar: Grammar,
}

/// An answer that follows `grammar` after its first `marker`, which is required.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Behind {
    pub marker: Marker,
    /// The grammar after the marker, which contains no other [`Behind`].
    pub grammar: Grammar,
}

/// Creates a factory of parsers over a vocabulary.
pub(crate) fn parser_factory(vocabulary: &TokEnv) -> Result<ParserFactory, GrammarError> {
    let factory = ParserFactory::new_simple(vocabulary);
    let mut factory = factory.map_err(|error| GrammarError::new(&error))?;
    // Messages are reported as errors instead of being printed.
    factory.quiet();
    factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
    Ok(factory)
}

/// Creates a parser at the beginning of its rules.
pub(crate) fn create_parser(
    factory: &ParserFactory,
    rules: TopLevelGrammar,
) -> Result<TokenParser, GrammarError> {
    factory.create_parser(rules).map_err(|error| GrammarError::new(&error))
}

impl Grammar {
    /// Creates the grammar of a JSON Schema, with the usual whitespace.
    pub fn json_schema(schema: impl Into<String>) -> Grammar {
        Grammar::JsonSchema(schema.into(), Whitespace::default())
    }

    /// Returns true if an object may have a finite number of possible keys. Declared keys occur
    /// once each, and other keys are unlimited unless there are patterns.
    pub(crate) fn keys_are_finite(&self) -> bool {
        // The keyword may be written with an escape.
        let keywords = ["patternProperties", "propertyNames", r"\u"];
        let spells = |text: &String| keywords.iter().any(|keyword| text.contains(keyword));
        match self {
            Grammar::JsonSchema(text, _) | Grammar::Arguments(text) => spells(text),
            Grammar::Calls(calls) => calls.functions.iter().any(|one| spells(&one.parameters)),
            Grammar::Behind(behind) => behind.grammar.keys_are_finite(),
            Grammar::CallsOr(either) => {
                let calls = &either.calls.functions;
                either.grammar.keys_are_finite() || calls.iter().any(|one| spells(&one.parameters))
            }
            Grammar::Regex(_) | Grammar::Choice(_) => false,
        }
    }

    /// Returns the length of the requested texts, in bytes.
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

    /// Returns the function calls that an answer may contain.
    pub fn calls(&self) -> Option<&Calls> {
        match self {
            Grammar::Calls(calls) => Some(calls),
            Grammar::Behind(behind) => behind.grammar.calls(),
            Grammar::CallsOr(either) => Some(&either.calls),
            _ => None,
        }
    }

    /// Returns the grammar of an answer that calls no function, without its marker; `None` if there
    /// is none.
    pub fn after_text(&self) -> Option<&Grammar> {
        match self {
            Grammar::Calls(_) => None,
            Grammar::Behind(behind) => behind.grammar.after_text(),
            Grammar::CallsOr(either) => Some(&either.grammar),
            grammar => Some(grammar),
        }
    }

    /// Returns a sentence for each schema with keywords that are not enforced during generation,
    /// but checked when the answer has ended. Returns none if the grammar is invalid.
    pub fn unenforced(&self) -> Vec<String> {
        let sentence = |of: &str, schema: Result<LoweredSchema, GrammarError>| {
            let unheld = schema.ok()?.unenforced;
            let names: Vec<String> = unheld.iter().map(|name| format!("`{name}`")).collect();
            (!names.is_empty()).then(|| {
                format!(
                    "{of}: {} cannot be enforced during generation; the complete answer is \
                     checked",
                    names.join(", ")
                )
            })
        };
        match self {
            Grammar::JsonSchema(text, _) => {
                sentence("the schema", schema::read(text, UnsupportedKeywords::Rejected))
                    .into_iter()
                    .collect()
            }
            Grammar::Arguments(text) => {
                sentence("the schema", schema::read(text, UnsupportedKeywords::Removed))
                    .into_iter()
                    .collect()
            }
            Grammar::Calls(calls) => {
                let of = |name: &str, text: &str| {
                    let schema = schema::read(text, UnsupportedKeywords::Removed);
                    sentence(&format!("the parameters of `{name}`"), schema)
                };
                calls.functions.iter().filter_map(|one| of(&one.name, &one.parameters)).collect()
            }
            Grammar::Behind(behind) => behind.grammar.unenforced(),
            Grammar::CallsOr(either) => {
                let calls = Grammar::Calls(Box::new(either.calls.clone()));
                [either.grammar.unenforced(), calls.unenforced()].concat()
            }
            Grammar::Regex(_) | Grammar::Choice(_) => Vec::new(),
        }
    }

    /// Translates the grammar to the parser's format; returns `None` for choices, which need no
    /// parser.
    ///
    /// # Errors
    /// Returns an error if the grammar is invalid or exceeds its bounds.
    pub(crate) fn rules(&self) -> Result<Option<ParserRules>, GrammarError> {
        Ok(Some(match self {
            Grammar::JsonSchema(text, whitespace) => {
                let schema = schema::read(text, UnsupportedKeywords::Rejected)?;
                schema_rules(schema, whitespace)?
            }
            Grammar::Arguments(text) => {
                let schema = schema::read(text, UnsupportedKeywords::Removed)?;
                schema_rules(schema, &Whitespace::default())?
            }
            Grammar::Regex(expression) => {
                TopLevelGrammar::from_regex(&regex::translate(expression)?).into()
            }
            Grammar::Choice(texts) if texts.is_empty() => {
                return Err(GrammarError("there are no choices".to_owned()));
            }
            Grammar::Choice(texts) => {
                bounds::check_choices(texts)?;
                return Ok(None);
            }
            Grammar::Calls(calls) => calls.rules(SpecialTokens::Included)?,
            Grammar::Behind(behind) => match (&behind.grammar, behind.grammar.rules()?) {
                // The marker may end within a token, so that choices need a parser here.
                (Grammar::Choice(texts), _) => choice_rules(texts).into(),
                (_, rules) => return Ok(rules),
            },
            Grammar::CallsOr(either) => either.rules(SpecialTokens::Included)?,
        }))
    }
}

impl CallsOr {
    /// Translates both alternatives to the parser's format.
    ///
    /// # Errors
    /// Fails like [`Calls::rules`], or if the other grammar is invalid.
    pub(crate) fn rules(&self, tokens: SpecialTokens) -> Result<ParserRules, GrammarError> {
        let mut calls = self.calls.rules(tokens)?;
        let mut form = match (&self.grammar, self.grammar.rules()?) {
            (Grammar::Choice(texts), None) => choice_rules(texts).into(),
            (_, Some(rules)) => rules,
            (_, None) => {
                return Err(GrammarError(
                    "there is no format for answers without calls".to_owned(),
                ));
            }
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
        calls.unenforced.append(&mut form.unenforced);
        Ok(ParserRules {
            grammar: TopLevelGrammar { grammars, max_tokens: None },
            unenforced: calls.unenforced,
        })
    }
}

fn schema_rules(
    schema: LoweredSchema,
    whitespace: &Whitespace,
) -> Result<ParserRules, GrammarError> {
    let LoweredSchema { mut value, unenforced, has_control } = schema;
    if value == Value::Bool(true) {
        value = json!({});
    }
    if let Value::Object(fields) = &mut value {
        whitespace.write(fields, has_control)?;
    }
    Ok(ParserRules { grammar: TopLevelGrammar::from_json_schema(value), unenforced })
}

/// Returns a rule that matches one of the texts.
fn choice_rules(texts: &[String]) -> TopLevelGrammar {
    let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
    TopLevelGrammar::from_lark(format!("start: {}\n", texts.join(" | ")))
}
