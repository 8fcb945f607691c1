//! Fields that OpenAI's published schema requires of answers.

use serde_json::{Value, json};

/// Asserts that `value` has the fields of `shape`, in which a string lists types separated by `|`,
/// an object with `or_null` may be null, and a list gives the shape of each entry.
pub fn assert_shape(value: &Value, shape: &Value) {
    check(value, shape, "answer").unwrap_or_else(|place| panic!("{place} of {value}"));
}

fn check(value: &Value, shape: &Value, place: &str) -> Result<(), String> {
    match shape {
        Value::String(types) => {
            let is_one = types.split('|').any(|name| name == type_of(value));
            is_one.then_some(()).ok_or_else(|| format!("{place} is no {types}: {value}"))
        }
        Value::Array(each) => {
            let entries = value.as_array().ok_or_else(|| format!("{place} is no list"))?;
            entries.iter().try_for_each(|entry| check(entry, &each[0], &format!("{place}[]")))
        }
        Value::Object(fields) => match fields.get("or_null") {
            Some(_) if value.is_null() => Ok(()),
            Some(shape) => check(value, shape, place),
            None => fields.iter().try_for_each(|(name, shape)| {
                let place = format!("{place}.{name}");
                let field = value.get(name).ok_or_else(|| format!("{place} is missing"))?;
                check(field, shape, &place)
            }),
        },
        shape => panic!("{shape} is no shape"),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn usage() -> Value {
    json!({
        "prompt_tokens": "number", "completion_tokens": "number", "total_tokens": "number",
    })
}

fn chat_logprobs() -> Value {
    let top = json!({"token": "string", "logprob": "number", "bytes": "array|null"});
    let token = json!({
        "token": "string", "logprob": "number", "bytes": "array|null", "top_logprobs": [top],
    });
    json!({"or_null": {"content": {"or_null": [token]}, "refusal": "array|null"}})
}

fn text_logprobs() -> Value {
    json!({"or_null": {
        "text_offset": ["number"], "token_logprobs": ["number|null"], "tokens": ["string"],
        "top_logprobs": {"or_null": ["object|null"]},
    }})
}

/// Returns the shape of `CreateChatCompletionResponse`, with vLLM's fields about the prompt.
pub fn chat_completion() -> Value {
    let message = json!({"role": "string", "content": "string|null", "refusal": "string|null"});
    let choice = json!({
        "finish_reason": "string", "index": "number", "message": message,
        "logprobs": chat_logprobs(),
    });
    json!({
        "id": "string", "object": "string", "created": "number", "model": "string",
        "choices": [choice], "usage": usage(),
        "prompt_logprobs": "array|null", "prompt_token_ids": "array|null",
    })
}

/// Returns the shape of `CreateCompletionResponse`, with vLLM's fields about the prompts.
pub fn completion() -> Value {
    let choice = json!({
        "finish_reason": "string", "index": "number", "text": "string",
        "logprobs": text_logprobs(),
        "prompt_logprobs": "array|null", "prompt_token_ids": "array|null",
    });
    json!({
        "id": "string", "object": "string", "created": "number", "model": "string",
        "choices": [choice], "usage": usage(),
    })
}

/// Returns the shape of `CreateChatCompletionStreamResponse`.
pub fn chat_completion_chunk() -> Value {
    let choice = json!({
        "delta": "object", "finish_reason": "string|null", "index": "number",
        "logprobs": chat_logprobs(),
    });
    json!({
        "id": "string", "object": "string", "created": "number", "model": "string",
        "choices": [choice],
    })
}

/// Returns the shape of `CreateCompletionResponse` as an event, whose `finish_reason` is null
/// before the end.
pub fn completion_chunk() -> Value {
    let choice = json!({
        "finish_reason": "string|null", "index": "number", "text": "string",
        "logprobs": text_logprobs(),
    });
    json!({
        "id": "string", "object": "string", "created": "number", "model": "string",
        "choices": [choice],
    })
}

/// Returns the shape of `ChatCompletionMessageToolCall`.
pub fn tool_call() -> Value {
    let function = json!({"name": "string", "arguments": "string"});
    json!({"id": "string", "type": "string", "function": function})
}

#[test]
fn a_field_that_is_missing_or_of_another_type_is_named() {
    let shape = json!({"a": [{"b": "string|null"}], "c": {"or_null": {"d": "number"}}});
    let place = |value: Value| check(&value, &shape, "x");
    assert_eq!(place(json!({"a": [{"b": null}, {"b": "t"}], "c": null, "e": 1})), Ok(()));
    assert_eq!(place(json!({"a": [], "c": {"d": 1}})), Ok(()));
    assert_eq!(place(json!({"a": [{}], "c": null})), Err("x.a[].b is missing".to_owned()));
    assert_eq!(place(json!({"a": [], "c": {}})), Err("x.c.d is missing".to_owned()));
    assert!(place(json!({"a": [{"b": 1}], "c": null})).is_err());
    assert!(place(json!({"a": {}, "c": null})).is_err());
}
