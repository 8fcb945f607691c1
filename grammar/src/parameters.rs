//! Arguments of a call that are written one by one, each after its name.

use std::fmt::Write as _;

use llguidance::api::GrammarWithLexer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::GrammarError;
use crate::names::{is_function_name, literal};
use crate::schema::LoweredSchema;
use crate::syntax::{SpecialTokens, SyntaxElement, SyntaxPart, lark_rule};
use crate::whitespace::Whitespace;

/// Tags around an argument's name and value. Strings are written as they are, other values as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParameterTags {
    pub open: Vec<SyntaxPart>,
    /// Parts between name and value. The first one is required and begins with a token or with a
    /// character that no name contains.
    pub middle: Vec<SyntaxPart>,
    /// Parts after the value. The first one is a required text or token, which no string value can
    /// contain.
    pub close: Vec<SyntaxPart>,
}

impl ParameterTags {
    /// Returns all parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &SyntaxPart> {
        [&self.open, &self.middle, &self.close].into_iter().flatten()
    }

    /// Returns the text that ends a value, if it is a text.
    fn end_text(&self) -> Option<&str> {
        match self.close.first() {
            Some(SyntaxPart::Must(SyntaxElement::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// Returns the rules of a string value with the name `rule`, and of its end.
    ///
    /// # Errors
    /// Returns an error if nothing in particular ends a value.
    fn text_rules(&self, rule: &str, tokens: SpecialTokens) -> Result<String, GrammarError> {
        let Some((SyntaxPart::Must(_), rest)) = self.close.split_first() else {
            return Err(GrammarError("nothing ends the value of an argument".to_owned()));
        };
        Ok(if let Some(text) = self.end_text() {
            let (suffix, rest) = (literal(text), lark_rule(rest, tokens));
            format!("{rule}: t{rule} {rest}\nt{rule}[suffix={suffix}]: /(?s:.*)/\n")
        } else {
            let close = lark_rule(&self.close, tokens);
            format!("{rule}: t{rule} {close}\nt{rule}: /(?s:.*)/\n")
        })
    }
}

/// A parameter of a function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    name: String,
    is_required: bool,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Text,
    /// One of these strings.
    Choice(Vec<String>),
    /// A value of a schema; true if some of its strings may contain control characters.
    Json(Value, bool),
}

impl Parameter {
    /// Returns the parameters of an object's schema, in its order.
    ///
    /// # Errors
    /// Returns an error if a name cannot be written between tags.
    pub(crate) fn of(schema: &LoweredSchema) -> Result<Vec<Parameter>, GrammarError> {
        let LoweredSchema { value: schema, has_control, .. } = schema;
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return Ok(Vec::new());
        };
        let required = schema.get("required").and_then(Value::as_array);
        let is_required =
            |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
        let parameter = |(name, of): (&String, &Value)| {
            if !is_function_name(name) {
                return Err(GrammarError(format!(
                    "the parameter `{name}` has a name that is not plain, which this model cannot \
                     write"
                )));
            }
            let (is_required, kind) = (is_required(name), Kind::of(of, schema, *has_control));
            Ok(Parameter { name: name.clone(), is_required, kind })
        };
        properties.iter().map(parameter).collect()
    }

    /// Returns true if its value is written as it is.
    pub(crate) fn is_text(&self) -> bool {
        !matches!(self.kind, Kind::Json(..))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Kind {
    fn of(schema: &Value, root: &Value, has_control: bool) -> Kind {
        let json = || Kind::Json(within(schema, root), has_control);
        let texts = |values: &Vec<Value>| -> Option<Vec<String>> {
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect()
        };
        match (schema.get("enum").and_then(Value::as_array), schema.get("type")) {
            (Some(values), _) => match texts(values).filter(|texts| !texts.is_empty()) {
                Some(texts) => Kind::Choice(texts),
                None => json(),
            },
            (None, Some(kind)) if kind == "string" => Kind::Text,
            _ => json(),
        }
    }
}

/// Returns a schema together with the definitions that it may refer to.
fn within(schema: &Value, root: &Value) -> Value {
    let mut alone = match schema {
        Value::Object(fields) => fields.clone(),
        // A schema of `false` allows nothing, which a model should not be asked for.
        _ => Map::new(),
    };
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            alone.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(alone)
}

/// Adds the rules of a function's arguments and returns the name of the first one. `number` is the
/// function's index.
///
/// # Errors
/// Returns an error if a schema cannot be translated.
pub(crate) fn add_rules(
    parameters: &[Parameter],
    tags: &ParameterTags,
    tokens: SpecialTokens,
    number: usize,
    lark: &mut String,
    grammars: &mut Vec<GrammarWithLexer>,
) -> Result<String, GrammarError> {
    let (open, middle) = (lark_rule(&tags.open, tokens), lark_rule(&tags.middle, tokens));
    let close = lark_rule(&tags.close, tokens);
    let mut all = String::new();
    for (index, Parameter { name, is_required, kind }) in parameters.iter().enumerate() {
        let rule = format!("p{number}_{index}");
        let head = format!("{open} {} {middle}", literal(name));
        let _ = write!(all, "{rule}{} ", if *is_required { "" } else { "?" });
        let _ = match kind {
            Kind::Text => {
                let value = tags.text_rules(&format!("v{rule}"), tokens)?;
                write!(lark, "{rule}: {head} v{rule}\n{value}")
            }
            Kind::Choice(texts) => {
                if let Some(end) = tags.end_text()
                    && texts.iter().any(|text| text.contains(end))
                {
                    return Err(GrammarError(format!(
                        "the parameter `{name}` may be a string with {end:?}, which this model \
                         cannot write"
                    )));
                }
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                writeln!(lark, "{rule}: {head} ({}) {close}", texts.join(" | "))
            }
            Kind::Json(schema, has_control) => {
                let mut schema = schema.clone();
                if let Value::Object(fields) = &mut schema {
                    Whitespace::default().write(fields, *has_control)?;
                }
                grammars.push(GrammarWithLexer {
                    name: Some(format!("j{rule}")),
                    json_schema: Some(schema),
                    lark_grammar: None,
                });
                writeln!(lark, "{rule}: {head} @j{rule} {close}")
            }
        };
    }
    if all.is_empty() {
        all = literal("");
    }
    let rule = format!("p{number}");
    let _ = writeln!(lark, "{rule}: {all}");
    Ok(rule)
}
