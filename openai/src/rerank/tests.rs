use engine_api::event::Logprob;
use serde_json::{Value, json};
use testkit::byte_codec::ByteCodec;

use super::prompt::{relevance, rerank_requests};
use super::request::RerankBody;
use super::response::RerankList;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::input_line::{ErrorCode, Rejection};
use crate::prompt::ModelLimits;

fn read(body: Value) -> Result<RerankBody, Rejection> {
    RerankBody::read(body.as_object().expect("an object"), &UnknownFieldPolicy::default())
}

#[test]
fn documents_are_texts_or_objects_with_texts() {
    let body = read(json!({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}));
    let body = body.expect("valid");
    assert_eq!((body.documents, body.top_n), (vec!["a".to_owned(), "b".to_owned()], Some(1)));
    assert!(body.instruction.starts_with("Given a web search query"));
    for (field, value) in [
        ("query", Value::Null),
        ("query", json!("")),
        ("documents", Value::Null),
        ("documents", json!([])),
        ("documents", json!([1])),
        ("documents", json!(vec!["x"; 2049])),
        ("top_n", json!(0)),
        ("return_documents", json!("yes")),
        ("instruction", json!(1)),
        ("max_chunks_per_doc", json!(1)),
    ] {
        let mut body = json!({"query": "q", "documents": ["a"]});
        body[field] = value;
        assert_eq!(read(body).expect_err(field).param.as_deref(), Some(field));
    }
}

#[test]
fn a_tokenizer_without_the_tokens_is_refused() {
    let limits = ModelLimits { context: 4096, vocab_size: 300, unsupported_tokenizer: None };
    let body = read(json!({"query": "q", "documents": ["a"]})).expect("valid");
    let refused = rerank_requests(&body, Some(&ByteCodec::CHAT), limits).expect_err("bytes");
    assert_eq!(refused.code, ErrorCode::UnsupportedField);
    assert!(refused.message.contains("<|im_start|>"), "{}", refused.message);
    let refused = rerank_requests(&body, None, limits).expect_err("no tokenizer");
    assert_eq!(refused.code, ErrorCode::NoTokenizer);
}

#[test]
fn relevance_is_the_softmax_over_two_answers() {
    let logprob = |logprob| Logprob { token: 0, logprob };
    let expected = 0.6f64 / (0.6 + 0.2);
    let found = relevance(logprob(0.6f32.ln()), logprob(0.2f32.ln())).expect("a number");
    assert!((found - expected).abs() < 1e-6, "{found}");
    assert_eq!(relevance(logprob(-1.0), logprob(f32::NEG_INFINITY)), Some(1.0));
    assert_eq!(relevance(logprob(-2000.0), logprob(-1.0)), Some(0.0));
    let impossible = logprob(f32::NEG_INFINITY);
    assert_eq!(relevance(impossible, impossible), None);
    assert_eq!(relevance(logprob(f32::NAN), logprob(0.0)), None);
}

#[test]
fn the_best_documents_come_first() {
    let body = json!({"query": "q", "documents": ["a", "b", "c", "d"], "top_n": 3,
        "return_documents": true});
    let body = read(body).expect("valid");
    let list = RerankList::new("rerank-1".to_owned(), body, &[0.5, 0.25, 1.0, 0.5], 9, "m");
    let expected = json!({"id": "rerank-1", "object": "list", "model": "m",
        "usage": {"prompt_tokens": 9, "total_tokens": 9}, "results": [
        {"index": 2, "document": {"text": "c"}, "relevance_score": 1.0},
        {"index": 0, "document": {"text": "a"}, "relevance_score": 0.5},
        {"index": 3, "document": {"text": "d"}, "relevance_score": 0.5},
    ]});
    assert_eq!(serde_json::to_value(&list).expect("JSON"), expected);
}
