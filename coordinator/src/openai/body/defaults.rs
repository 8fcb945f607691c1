//! What the command line says of requests that do not say it themselves: raw prompts and short
//! lines.

use serde_json::{Map, Value, json};

use super::values::{Fields, given};
use super::{Body, RawPrompt};
use crate::boundary::codec::Turn;
use crate::openai::item::{ErrorCode, Rejection};

/// Fields for requests that lack them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    /// From 0 to 2.
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    pub top_p: Option<f32>,
    pub stop: Vec<String>,
    /// A system message before the others.
    pub system: Option<String>,
    /// The JSON Schema of answers.
    pub json_schema: Option<Value>,
}

impl Defaults {
    /// Adds what `fields` lack.
    pub fn add_to(&self, fields: &mut Fields) {
        let mut add = |name: &str, value: Option<Value>| {
            if let (None, Some(value)) = (given(fields, name), value) {
                fields.insert(name.to_owned(), value);
            }
        };
        // As it was typed: 0.7 is no f32.
        let number = |value: f32| value.to_string().parse::<f64>().map_or(Value::Null, Value::from);
        add("temperature", self.temperature.map(number));
        add("top_p", self.top_p.map(number));
        add("stop", (!self.stop.is_empty()).then(|| json!(self.stop)));
        let schema = self.json_schema.as_ref().filter(|_| {
            ["structured_outputs", "response_format"]
                .iter()
                .all(|name| given(fields, name).is_none())
        });
        if let Some(schema) = schema {
            let named = json!({"name": "answer", "schema": schema});
            let form = json!({"type": "json_schema", "json_schema": named});
            fields.insert("response_format".to_owned(), form);
        }
    }

    /// The fields of a raw prompt.
    pub fn of_text(&self, text: &str) -> Fields {
        Map::from_iter([("prompt".to_owned(), Value::from(text))])
    }

    /// Puts the system message before those of chats that have none.
    ///
    /// # Errors
    /// A prompt that is no chat.
    pub fn seat(&self, body: &mut Body) -> Result<(), Rejection> {
        let Some(system) = &self.system else { return Ok(()) };
        for prompt in &mut body.prompts {
            match prompt {
                RawPrompt::Chat(chat) => {
                    let turns = &mut chat.turns;
                    if !turns.iter().any(|turn| ["system", "developer"].contains(&&*turn.role)) {
                        turns.insert(0, Turn::new("system", system.clone()));
                    }
                }
                _ => {
                    return Err(Rejection::new(
                        ErrorCode::InvalidValue,
                        "A raw prompt has no system message; add --chat, or leave --system out.",
                    ));
                }
            }
        }
        Ok(())
    }
}
