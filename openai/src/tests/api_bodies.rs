//! Bodies of other APIs that are malformed in every way: each is converted to a chat completion
//! that can be read, or rejected with a sentence.

use engine_api::request::Sampling;
use serde_json::{Map, Value, json};

use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::{BodyOrigin, BodyRules, JsonFields, read_body};
use crate::input_line::{Endpoint, Rejection};
use crate::messages;
use crate::responses::request::{ConversationContext, into_chat_fields};

/// Names and texts from which values are composed.
const WORDS: [&str; 60] = [
    "type",
    "text",
    "role",
    "user",
    "assistant",
    "system",
    "developer",
    "content",
    "messages",
    "input",
    "tool_use",
    "tool_result",
    "tool_use_id",
    "thinking",
    "signature",
    "id",
    "name",
    "input_schema",
    "parameters",
    "function",
    "function_call",
    "function_call_output",
    "call_id",
    "arguments",
    "output",
    "output_text",
    "input_text",
    "reasoning",
    "summary",
    "encrypted_content",
    "tools",
    "tool_choice",
    "auto",
    "any",
    "none",
    "tool",
    "required",
    "allowed_tools",
    "mode",
    "format",
    "json_schema",
    "schema",
    "effort",
    "high",
    "include",
    "metadata",
    "truncation",
    "stop_sequences",
    "output_config",
    "context_management",
    "edits",
    "stream",
    "max_tokens",
    "max_output_tokens",
    "instructions",
    "store",
    "top_logprobs",
    "message",
    "refusal",
    "item_reference",
];

struct Random(u64);

impl Random {
    fn below(&mut self, max: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
        (self.0 >> 33) as usize % max
    }

    fn word(&mut self) -> String {
        WORDS[self.below(WORDS.len())].to_owned()
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(50)),
            3 | 4 => json!(self.word()),
            5 | 6 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object(self.object(depth - 1)),
        }
    }

    fn object(&mut self, depth: usize) -> JsonFields {
        let count = self.below(6);
        (0..count).map(|_| (self.word(), self.value(depth))).collect()
    }

    /// Replaces some of the values of a body.
    fn damage(&mut self, value: &mut Value) {
        if self.below(12) == 0 {
            *value = self.value(2);
            return;
        }
        match value {
            Value::Array(list) => list.iter_mut().for_each(|entry| self.damage(entry)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|entry| self.damage(entry));
                if self.below(8) == 0 {
                    fields.insert(self.word(), self.value(2));
                }
            }
            _ => {}
        }
    }
}

fn message_body() -> Value {
    json!({"max_tokens": 5, "system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "r"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "enabled", "budget_tokens": 9},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "stop_sequences": ["x"], "context_management": {"edits": []}})
}

fn response_body() -> Value {
    json!({"max_output_tokens": 5, "instructions": "s", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "i", "name": "f", "arguments": "{\"a\": 1"},
        {"type": "function_call_output", "call_id": "i",
            "output": [{"type": "input_text", "text": "r"}]}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto",
            "tools": [{"type": "function", "name": "f"}]},
        "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_object"}},
        "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}, "truncation": "auto"})
}

fn fields(body: Value) -> JsonFields {
    match body {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[test]
fn every_body_is_read_or_rejected_with_a_sentence() {
    let unknown_fields = UnknownFieldPolicy::default();
    let rules = BodyRules {
        origin: BodyOrigin::Client,
        sampling: Sampling::GREEDY,
        unknown_fields: &unknown_fields,
    };
    let convert_message = |body| messages::request::into_chat_fields(body, &unknown_fields);
    let convert_response = |body| {
        let context = ConversationContext { previous: Vec::new(), can_store: true };
        into_chat_fields(body, context, &unknown_fields).map(|(chat, _)| chat)
    };
    let read = |chat: Result<JsonFields, Rejection>| {
        chat.and_then(|chat| read_body(&chat, Endpoint::ChatCompletions, &rules))
    };
    assert!(read(convert_message(fields(message_body()))).is_ok());
    assert!(read(convert_response(fields(response_body()))).is_ok());
    let mut random = Random(7);
    let mut accepted = 0;
    for round in 0..20_000 {
        let (mut message, mut response) = (message_body(), response_body());
        if round % 4 == 0 {
            (message, response) = (random.value(4), random.value(4));
        } else {
            random.damage(&mut message);
            random.damage(&mut response);
        }
        let texts = (message.to_string(), response.to_string());
        let outcomes =
            [read(convert_message(fields(message))), read(convert_response(fields(response)))];
        for outcome in outcomes {
            match outcome {
                Ok(_) => accepted += 1,
                Err(rejection) => {
                    assert!(rejection.message.ends_with('.'), "{rejection:?}: {texts:?}");
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}
