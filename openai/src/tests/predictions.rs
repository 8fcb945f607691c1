//! Predictions of answers: their formats, and what is rejected.

use engine_api::request::Sampling;
use serde_json::{Value, json};
use testkit::byte_codec::ByteCodec;

use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::{Body, BodyOrigin, BodyRules, read_body};
use crate::chats::ChatRules;
use crate::input_line::{CompletionRequest, Endpoint, ErrorCode, Rejection};
use crate::prompt::ModelLimits;
use crate::prompt_bounds::PromptBounds;
use crate::request::RequestBuilder;

fn read(prediction: &Value) -> Result<Body, Rejection> {
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9,
                      "prediction": prediction});
    let rules = BodyRules {
        origin: BodyOrigin::Client,
        sampling: Sampling::GREEDY,
        unknown_fields: &UnknownFieldPolicy::default(),
    };
    read_body(body.as_object().expect("an object"), Endpoint::ChatCompletions, &rules)
}

fn build(prediction: &Value) -> Result<CompletionRequest, Rejection> {
    let builder = RequestBuilder {
        max_tokens: None,
        chat_max_tokens: 16,
        seed: 0,
        now_s: 0,
        codec: Some(&ByteCodec::CHAT),
        chat_rules: &ChatRules::default(),
        limits: ModelLimits { context: 100, vocab_size: 258, unsupported_tokenizer: None },
    };
    builder.build(Endpoint::ChatCompletions, &read(prediction)?)
}

#[test]
fn a_prediction_is_a_text_its_parts_or_its_tokens() {
    let tokens = |content: Value| {
        let prediction = json!({"type": "content", "content": content});
        let request = build(&prediction).expect("a request");
        request.prediction.map(|tokens| tokens.to_vec())
    };
    let abc = Some(b"abc".map(u32::from).to_vec());
    assert_eq!(tokens(json!("abc")), abc);
    let part = |text: &str| json!({"type": "text", "text": text});
    assert_eq!(tokens(json!([part("a"), part("bc")])), abc);
    assert_eq!(tokens(json!([97, 98, 99])), abc);
    assert_eq!(tokens(json!("")), None);
    assert_eq!(tokens(json!([])), None);
    assert_eq!(build(&Value::Null).expect("a request").prediction, None);
    let longest = tokens(json!("a".repeat(50))).expect("tokens");
    assert_eq!(longest.len(), 9, "no answer is longer");
}

#[test]
fn what_is_no_text_is_rejected_with_a_sentence() {
    let content = |content: Value| json!({"type": "content", "content": content});
    let image = json!([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]);
    for (prediction, code, words) in [
        (json!("abc"), ErrorCode::InvalidValue, "must be an object"),
        (json!({"content": "abc"}), ErrorCode::InvalidValue, "must be an object"),
        (json!({"type": "content"}), ErrorCode::InvalidValue, "must be an object"),
        (content(json!(7)), ErrorCode::InvalidValue, "must be an object"),
        (content(json!(["abc"])), ErrorCode::InvalidValue, "must be an object"),
        (content(json!([1, "abc"])), ErrorCode::InvalidValue, "must be an object"),
        (content(json!([{"type": "text"}])), ErrorCode::InvalidValue, "must be an object"),
        (json!({"type": "diff", "content": "a"}), ErrorCode::UnsupportedField, "type 'diff'"),
        (content(image), ErrorCode::UnsupportedField, "type 'image_url'"),
        (content(json!([258])), ErrorCode::TokenOutOfVocabulary, "at most 257"),
        (
            json!({"type": "content", "content": "a", "strict": true}),
            ErrorCode::UnsupportedField,
            "Unknown parameter: 'strict' in 'prediction'",
        ),
    ] {
        let rejection = build(&prediction).expect_err("a rejection");
        assert_eq!(rejection.code, code, "{prediction}: {}", rejection.message);
        assert!(rejection.message.contains(words), "{prediction}: {}", rejection.message);
        let param = if words.contains("strict") { "strict" } else { "prediction" };
        assert_eq!(rejection.param.as_deref(), Some(param), "{prediction}");
    }
}

#[test]
fn a_prediction_longer_than_the_context_is_not_tokenised() {
    let bounds = PromptBounds::new(100, 258, Some(&ByteCodec::CHAT));
    let body = read(&json!({"type": "content", "content": "a".repeat(300_000)})).expect("a body");
    let rejection = bounds.check_body(&body, Some(&ByteCodec::CHAT)).expect_err("a rejection");
    assert_eq!(rejection.code, ErrorCode::ContextLengthExceeded);
    assert_eq!(rejection.param.as_deref(), Some("prediction"));
    assert!(rejection.message.contains("the prediction has 300000 bytes"), "{}", rejection.message);
}
