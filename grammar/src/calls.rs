//! Function calls within answers: the syntax of a model's calls, the functions, and the grammar
//! rules made from both.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bounds::{MAX_FUNCTIONS, MAX_SCHEMA_BYTES, check_limit};
use crate::error::GrammarError;
use crate::lower::UnsupportedKeywords;
use crate::names::{is_function_name, literal};
use crate::parameters::{self, Parameter, ParameterTags};
use crate::rules::ParserRules;
use crate::schema::{self, LoweredSchema};
use crate::syntax::{SpecialTokens, SyntaxElement, SyntaxPart, lark_rule};
use crate::whitespace::Whitespace;

/// Function calls that an answer may contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Calls {
    pub syntax: CallSyntax,
    /// At least one function.
    pub functions: Vec<Function>,
    /// True if the answer consists of calls only; otherwise text may precede them or stand alone.
    pub is_required: bool,
    /// True if more than one call is allowed.
    pub are_several: bool,
}

/// A function that can be called.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Function {
    /// Letters, digits, `_`, `-` and `.`, so that no syntax has to escape it.
    pub name: String,
    /// JSON Schema of the arguments, which are an object, as text.
    pub parameters: String,
}

/// Syntax of calls: `first`, calls separated by `between`, `last`; each call is `open`, the name,
/// `middle`, the arguments, `close`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallSyntax {
    /// Texts or tokens with which calls begin.
    pub triggers: Vec<Trigger>,
    /// Positions where triggers count; anywhere if `None`.
    pub headers: Option<Headers>,
    pub first: Vec<SyntaxPart>,
    pub open: Vec<SyntaxPart>,
    pub middle: Vec<SyntaxPart>,
    /// Tags around each argument; `None` if the arguments are one JSON object.
    pub parameters: Option<ParameterTags>,
    pub close: Vec<SyntaxPart>,
    pub between: Vec<SyntaxPart>,
    pub last: Vec<SyntaxPart>,
}

impl CallSyntax {
    /// Returns true if the syntax contains a token.
    pub fn has_token(&self, token: u32) -> bool {
        let Self { triggers, first, open, middle, close, between, last, .. } = self;
        let parts = [first, open, middle, close, between, last].into_iter().flatten();
        let tags = self.parameters.iter().flat_map(ParameterTags::parts);
        let words = parts.chain(tags).flat_map(|part| match part {
            SyntaxPart::Must(word) | SyntaxPart::May(word) => std::slice::from_ref(word),
            SyntaxPart::MayAll(words) => words,
        });
        words
            .chain(triggers.iter().map(|one| &one.word))
            .any(|word| *word == SyntaxElement::Token(token))
    }
}

/// Positions where triggers count: from the beginning of the answer, or a token of `opens`, to a
/// token of `closes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Headers {
    pub opens: Vec<u32>,
    pub closes: Vec<u32>,
}

/// A text or token that indicates the beginning of calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Trigger {
    pub word: SyntaxElement,
    /// The trigger counts only if nothing but whitespace precedes it.
    pub at_start: bool,
}

impl Calls {
    /// Translates the calls, from their beginning, to the parser's format.
    ///
    /// # Errors
    /// Returns an error if a name or a schema is invalid or exceeds its bounds.
    pub(crate) fn rules(&self, tokens: SpecialTokens) -> Result<ParserRules, GrammarError> {
        self.check()?;
        let mut unenforced = BTreeSet::new();
        let syntax = &self.syntax;
        let written = |parts: &[SyntaxPart]| lark_rule(parts, tokens);
        let more = if self.are_several {
            format!("({} call)*", written(&syntax.between))
        } else {
            String::new()
        };
        let (first, last) = (written(&syntax.first), written(&syntax.last));
        let mut lark = format!("start: {first} call {more} {last}\n");
        let names: Vec<String> = (0..self.functions.len()).map(|i| format!("f{i}")).collect();
        let (open, close) = (written(&syntax.open), written(&syntax.close));
        let _ = writeln!(lark, "call: {open} ({}) {close}", names.join(" | "));
        let mut grammars = Vec::new();
        for (index, function) in self.functions.iter().enumerate() {
            let (name, middle) = (literal(&function.name), written(&syntax.middle));
            let schema = function.schema()?;
            unenforced.extend(schema.unenforced.iter().cloned());
            if let Some(tags) = &syntax.parameters {
                let all = Parameter::of(&schema).map_err(|error| function.in_arguments(&error))?;
                let rule =
                    parameters::add_rules(&all, tags, tokens, index, &mut lark, &mut grammars)?;
                let _ = writeln!(lark, "f{index}: {name} {middle} {rule}");
                continue;
            }
            let _ = writeln!(lark, "f{index}: {name} {middle} @a{index}");
            grammars.push(GrammarWithLexer {
                name: Some(format!("a{index}")),
                json_schema: Some(schema_rules(schema)?),
                lark_grammar: None,
            });
        }
        grammars.insert(0, GrammarWithLexer::from_lark(lark));
        Ok(ParserRules { grammar: TopLevelGrammar { grammars, max_tokens: None }, unenforced })
    }

    fn check(&self) -> Result<(), GrammarError> {
        let refused = |why: &str| Err(GrammarError(why.to_owned()));
        if self.functions.is_empty() {
            return refused("there is no function to call");
        }
        check_limit("the number of functions", self.functions.len(), MAX_FUNCTIONS)?;
        check_limit("the size of all parameters in bytes", self.text_bytes(), MAX_SCHEMA_BYTES)?;
        let mut seen = HashSet::new();
        for Function { name, .. } in &self.functions {
            if !is_function_name(name) {
                return refused("a function's name is not plain");
            }
            if !seen.insert(name) {
                return refused(&format!("two functions have the name `{name}`"));
            }
        }
        Ok(())
    }

    /// Returns the length of all names and schemas, in bytes.
    pub(crate) fn text_bytes(&self) -> usize {
        let of = |function: &Function| function.name.len() + function.parameters.len();
        self.functions.iter().map(of).sum()
    }
}

impl Function {
    /// Reads the schema of the arguments, without keywords that cannot be enforced.
    fn schema(&self) -> Result<LoweredSchema, GrammarError> {
        schema::read(&self.parameters, UnsupportedKeywords::Removed)
            .map_err(|error| self.in_arguments(&error))
    }

    /// Returns the names of the arguments that are strings.
    pub fn text_parameters(&self) -> Vec<String> {
        // An invalid schema was refused before.
        let all = self.schema().and_then(|schema| Parameter::of(&schema)).unwrap_or_default();
        let texts = all.iter().filter(|one| one.is_text());
        texts.map(|one| one.name().to_owned()).collect()
    }

    /// Prefixes an error of its parameters with its name.
    pub(crate) fn in_arguments(&self, error: &GrammarError) -> GrammarError {
        GrammarError(format!("the parameters of `{}`: {error}", self.name))
    }
}

/// Returns the schema with the usual whitespace and escapes.
fn schema_rules(schema: LoweredSchema) -> Result<Value, GrammarError> {
    let LoweredSchema { mut value, has_control, .. } = schema;
    match &mut value {
        Value::Object(fields) => Whitespace::default().write(fields, has_control)?,
        value => *value = json!({}),
    }
    Ok(value)
}
