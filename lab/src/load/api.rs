//! Request and stream formats of the servers that can be measured.

use serde::Deserialize;
use serde_json::{Value, json};

/// API of the measured server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Api {
    /// `/v1/completions`: Tandem, vLLM and others.
    #[default]
    Openai,
    /// `/completion` of llama.cpp's server.
    Llama,
}

/// Content of an event of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamEvent {
    /// True if the event has a token, or several if the server holds back parts of characters.
    pub has_tokens: bool,
    /// Number of tokens of the answer so far, if the event states it.
    pub answer_tokens: Option<u32>,
    /// True if no more events follow.
    pub is_last: bool,
}

#[derive(Deserialize)]
struct OpenaiEvent {
    #[serde(default)]
    choices: Vec<serde::de::IgnoredAny>,
    usage: Option<OpenaiUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct OpenaiUsage {
    completion_tokens: u32,
}

#[derive(Deserialize)]
struct LlamaEvent {
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    stop: bool,
    tokens_predicted: Option<u32>,
    error: Option<Value>,
}

impl Api {
    /// Returns the path of the API.
    pub fn path(self) -> &'static str {
        match self {
            Api::Openai => "/v1/completions",
            Api::Llama => "/completion",
        }
    }

    /// Returns the body of a streamed request for exactly `answer_tokens` tokens, sampled greedily.
    pub fn body(self, model: Option<&str>, prompt: &[u32], answer_tokens: u32) -> Vec<u8> {
        let mut body = json!({
            "prompt": prompt,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
        });
        let fields = body.as_object_mut().expect("an object");
        match self {
            Api::Openai => {
                fields.insert("max_tokens".into(), answer_tokens.into());
                fields.insert("stream_options".into(), json!({"include_usage": true}));
            }
            Api::Llama => {
                fields.insert("n_predict".into(), answer_tokens.into());
            }
        }
        if let Some(model) = model {
            fields.insert("model".into(), model.into());
        }
        body.to_string().into_bytes()
    }

    /// Parses the data of an event other than the end marker of the stream.
    ///
    /// # Errors
    /// Returns the server's error message, or a message that the event does not have this API's
    /// format.
    pub fn parse_event(self, data: &[u8]) -> Result<StreamEvent, String> {
        let other = |error| format!("an event does not have the expected format ({error})");
        let (event, error) = match self {
            Api::Openai => {
                let event: OpenaiEvent = serde_json::from_slice(data).map_err(other)?;
                let answer_tokens = event.usage.map(|usage| usage.completion_tokens);
                let has_tokens = !event.choices.is_empty();
                // The end of the stream is marked by `[DONE]`.
                (StreamEvent { has_tokens, answer_tokens, is_last: false }, event.error)
            }
            Api::Llama => {
                let event: LlamaEvent = serde_json::from_slice(data).map_err(other)?;
                let has_tokens = !event.stop && !event.tokens.is_empty();
                let answer_tokens = event.tokens_predicted;
                (StreamEvent { has_tokens, answer_tokens, is_last: event.stop }, event.error)
            }
        };
        error.map_or(Ok(event), |error| Err(error_text(&error)))
    }
}

/// Returns the message of an `error` field.
fn error_text(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str).or(error.as_str());
    message.map_or_else(|| error.to_string(), str::to_owned)
}

/// Returns the error message of a response that is not a stream.
pub fn response_error(body: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    match parsed.as_ref().and_then(|value| value.get("error")) {
        Some(error) => error_text(error),
        None => String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(api: Api) -> Value {
        serde_json::from_slice(&api.body(Some("m"), &[3, 1], 9)).expect("JSON")
    }

    #[test]
    fn a_request_of_each_form() {
        assert_eq!(
            parsed(Api::Openai),
            json!({"prompt": [3, 1], "temperature": 0, "ignore_eos": true, "stream": true,
                "max_tokens": 9, "stream_options": {"include_usage": true}, "model": "m"})
        );
        assert_eq!(
            parsed(Api::Llama),
            json!({"prompt": [3, 1], "temperature": 0, "ignore_eos": true, "stream": true,
                "n_predict": 9, "model": "m"})
        );
    }

    #[test]
    fn tokens_are_told_from_counts() {
        let token = StreamEvent { has_tokens: true, ..StreamEvent::default() };
        let count = StreamEvent { answer_tokens: Some(9), ..StreamEvent::default() };
        let openai = |data: &str| Api::Openai.parse_event(data.as_bytes());
        // Empty text counts as a token, and every event may have counts.
        assert_eq!(openai(r#"{"choices":[{"text":""}],"usage":null}"#), Ok(token));
        assert_eq!(openai(r#"{"choices":[],"usage":{"completion_tokens":9}}"#), Ok(count));
        let both = StreamEvent { answer_tokens: Some(1), ..token };
        assert_eq!(openai(r#"{"choices":[{}],"usage":{"completion_tokens":1}}"#), Ok(both));
        let llama = |data: &str| Api::Llama.parse_event(data.as_bytes());
        assert_eq!(llama(r#"{"content":"a","tokens":[5],"stop":false}"#), Ok(token));
        let last = llama(r#"{"content":"","tokens":[],"stop":true,"tokens_predicted":9}"#);
        assert_eq!(last, Ok(StreamEvent { is_last: true, ..count }));
    }

    #[test]
    fn errors_are_sentences() {
        for api in [Api::Openai, Api::Llama] {
            let error = api.parse_event(br#"{"error":{"message":"no room","code":503}}"#);
            assert_eq!(error, Err("no room".to_owned()));
            assert!(api.parse_event(b"<html>").expect_err("no JSON").contains("expected format"));
        }
        assert_eq!(response_error(br#"{"error":{"message":"queue full"}}"#), "queue full");
        assert_eq!(response_error(br#"{"error":"gone"}"#), "gone");
        assert_eq!(response_error(b"Bad gateway\n"), "Bad gateway");
    }
}
