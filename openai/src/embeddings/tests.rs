use engine_api::request::Pooling;
use serde_json::{Value, json};

use super::model::EmbeddingModel;
use super::request::{EmbeddingBody, EmbeddingRequest, VectorEncoding};
use super::response::EmbeddingList;
use super::vector::{embedding, to_base64};
use crate::body::RawPrompt;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::input_line::{ErrorCode, Rejection};
use crate::prompt::ModelLimits;

const LIMITS: ModelLimits =
    ModelLimits { context: 5, vocab_size: 100, unsupported_tokenizer: None };

fn model(is_matryoshka: bool) -> EmbeddingModel {
    EmbeddingModel { pooling: Ok(Pooling::LastToken), hidden_size: 4, is_matryoshka }
}

fn read(body: Value) -> Result<EmbeddingBody, Rejection> {
    EmbeddingBody::read(body.as_object().expect("an object"), &UnknownFieldPolicy::default())
}

fn build(body: Value, model: &EmbeddingModel) -> Result<EmbeddingRequest, Rejection> {
    EmbeddingRequest::build(&read(body)?, model, None, LIMITS)
}

#[test]
fn inputs_have_four_forms() {
    let text = |text: &str| RawPrompt::Text(text.to_owned());
    for (input, expected) in [
        (json!("a"), vec![text("a")]),
        (json!(["a", "b"]), vec![text("a"), text("b")]),
        (json!([1, 2]), vec![RawPrompt::Tokens(vec![1, 2])]),
        (json!([[1], [2, 3]]), vec![RawPrompt::Tokens(vec![1]), RawPrompt::Tokens(vec![2, 3])]),
    ] {
        let body = read(json!({"input": input, "user": "u", "model": "m", "dimensions": null}));
        let body = body.expect("valid");
        assert_eq!((body.inputs, body.encoding), (expected, VectorEncoding::Float));
    }
}

#[test]
fn invalid_bodies_name_the_field() {
    let many = vec!["x"; 2049];
    for (field, value) in [
        ("input", Value::Null),
        ("input", json!("")),
        ("input", json!([])),
        ("input", json!(["a", ""])),
        ("input", json!(["a", [1]])),
        ("input", json!([1, "a"])),
        ("input", json!([1.5])),
        ("input", json!([[-1]])),
        ("input", json!([[]])),
        ("input", json!(many)),
        ("encoding_format", json!("int8")),
        ("dimensions", json!(0)),
        ("dimensions", json!("4")),
        ("truncate", json!(true)),
    ] {
        let mut body = json!({"input": "a"});
        body[field] = value.clone();
        let refused = read(body).expect_err(field);
        assert_eq!(refused.param.as_deref(), Some(field), "{value}");
    }
}

#[test]
fn requests_are_within_the_model() {
    let request = build(json!({"input": [[1, 2], [99]]}), &model(false)).expect("valid");
    assert_eq!((request.prompt_tokens(), request.inputs.len()), (3, 2));
    let generation = request.generation_request(0);
    assert_eq!((&generation.prompt[..], generation.max_new), (&[1, 2][..], 1));
    assert_eq!(generation.pooling, Some(Pooling::LastToken));
    for (body, code, param) in [
        (json!({"input": [100]}), ErrorCode::TokenOutOfVocabulary, "input"),
        (json!({"input": [1, 2, 3, 4, 5]}), ErrorCode::ContextLengthExceeded, "input"),
        (json!({"input": "text"}), ErrorCode::NoTokenizer, "input"),
        (json!({"input": [1], "dimensions": 2}), ErrorCode::InvalidValue, "dimensions"),
    ] {
        let refused = build(body, &model(false)).expect_err(param);
        assert_eq!((refused.code, refused.param.as_deref()), (code, Some(param)));
    }
    assert!(build(json!({"input": [1, 2, 3, 4]}), &model(false)).is_ok(), "one is left to follow");
    assert!(build(json!({"input": [1], "dimensions": 4}), &model(false)).is_ok(), "all of them");
    assert!(build(json!({"input": [1], "dimensions": 2}), &model(true)).is_ok());
    assert!(build(json!({"input": [1], "dimensions": 5}), &model(true)).is_err());
    let refusing = EmbeddingModel { pooling: Err("It does not.".to_owned()), ..model(false) };
    let refused = build(json!({"input": [1]}), &refusing).expect_err("refused");
    assert_eq!(refused.message, "It does not.");
}

#[test]
fn identities_depend_on_everything_that_decides_an_answer() {
    let request = build(json!({"input": [[1, 2], [3]]}), &model(true)).expect("valid");
    let changed = [
        EmbeddingRequest { pooling: Pooling::Mean, ..request.clone() },
        EmbeddingRequest { encoding: VectorEncoding::Base64, ..request.clone() },
        EmbeddingRequest { dimensions: Some(2), ..request.clone() },
        EmbeddingRequest { custom_id: "b".to_owned(), ..request.clone() },
        EmbeddingRequest { inputs: vec![[1].into(), [2, 3].into()], ..request.clone() },
    ];
    let mut ids: Vec<String> = changed.iter().map(EmbeddingRequest::request_id).collect();
    ids.push(request.request_id());
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    let moved = EmbeddingRequest { line: 9, ..request.clone() };
    assert_eq!(moved.request_id(), request.request_id());
}

#[test]
fn vectors_have_length_one() {
    assert_eq!(embedding(&[3.0, 0.0, 4.0], None), Some(vec![0.6, 0.0, 0.8]));
    assert_eq!(embedding(&[-3.0, 0.0, 4.0], Some(1)), Some(vec![-1.0]));
    let huge = embedding(&[3e38, 2e38], None).expect("f64 holds the squares");
    assert!((huge.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-6);
    for broken in [&[0.0, 0.0][..], &[1.0, f32::NAN], &[f32::INFINITY]] {
        assert_eq!(embedding(broken, None), None);
    }
}

#[test]
fn base64_is_that_of_little_endian_floats() {
    // By Python: base64.b64encode(struct.pack("<3f", 1, -2.5, 1e-3)).
    assert_eq!(to_base64(&[1.0, -2.5, 1e-3]), "AACAPwAAIMBvEoM6");
    assert_eq!(to_base64(&[1.0]), "AACAPw==");
    assert_eq!(to_base64(&[1.0, 2.0]), "AACAPwAAAEA=");
    assert_eq!(to_base64(&[]), "");
}

#[test]
fn answers_have_the_format_of_openai() {
    let body = json!({"input": [[1, 2], [3]], "encoding_format": "base64"});
    let request = build(body, &model(true)).expect("valid");
    let list = EmbeddingList::new(&request, vec![vec![1.0], vec![1.0]], "m");
    let expected = json!({"object": "list", "data": [
        {"object": "embedding", "index": 0, "embedding": "AACAPw=="},
        {"object": "embedding", "index": 1, "embedding": "AACAPw=="},
    ], "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3}});
    assert_eq!(serde_json::to_value(&list).expect("JSON"), expected);
}
