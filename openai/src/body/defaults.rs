//! Defaults from the command line for fields that raw prompts and short lines do not contain.

use engine_api::codec::ChatTurn;
use serde_json::{Map, Value, json};

use super::values::{JsonFields, get_non_null};
use super::{Body, RawPrompt};
use crate::input_line::{ErrorCode, Rejection};

/// Values for fields that a request does not give.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    /// Temperature, from 0 to 2.
    pub temperature: Option<f32>,
    /// Top-p probability, above 0 and at most 1.
    pub top_p: Option<f32>,
    pub stop: Vec<String>,
    /// System message for chats that have none.
    pub system: Option<String>,
    /// JSON Schema of the answers.
    pub json_schema: Option<Value>,
}

impl Defaults {
    /// Inserts the defaults of all fields that are not given. The schema is inserted only if
    /// neither `response_format` nor `structured_outputs` is given.
    pub fn add_to(&self, fields: &mut JsonFields) {
        let mut add = |name: &str, value: Option<Value>| {
            if let (None, Some(value)) = (get_non_null(fields, name), value) {
                fields.insert(name.to_owned(), value);
            }
        };
        // Converted through its decimal text: an f32 cannot represent a typed 0.7 exactly.
        let number = |value: f32| value.to_string().parse::<f64>().map_or(Value::Null, Value::from);
        add("temperature", self.temperature.map(number));
        add("top_p", self.top_p.map(number));
        add("stop", (!self.stop.is_empty()).then(|| json!(self.stop)));
        let schema = self.json_schema.as_ref().filter(|_| {
            ["structured_outputs", "response_format"]
                .iter()
                .all(|name| get_non_null(fields, name).is_none())
        });
        if let Some(schema) = schema {
            let named = json!({"name": "answer", "schema": schema});
            let response_format = json!({"type": "json_schema", "json_schema": named});
            fields.insert("response_format".to_owned(), response_format);
        }
    }

    /// Returns the fields of a raw prompt.
    pub fn prompt_fields(&self, text: &str) -> JsonFields {
        Map::from_iter([("prompt".to_owned(), Value::from(text))])
    }

    /// Inserts the system message at the beginning of chats that have no system or developer
    /// message.
    ///
    /// # Errors
    /// Returns a rejection if there is a system message and a prompt is not a chat.
    pub fn add_system_message(&self, body: &mut Body) -> Result<(), Rejection> {
        let Some(system) = &self.system else { return Ok(()) };
        for prompt in &mut body.prompts {
            match prompt {
                RawPrompt::Chat(chat) => {
                    let turns = &mut chat.turns;
                    if !turns.iter().any(|turn| ["system", "developer"].contains(&&*turn.role)) {
                        turns.insert(0, ChatTurn::new("system", system.clone()));
                    }
                }
                _ => {
                    return Err(Rejection::new(
                        ErrorCode::InvalidValue,
                        "A raw prompt has no system message. Add --chat, or remove --system.",
                    ));
                }
            }
        }
        Ok(())
    }
}
