//! Tests of constrained answers: the accepted fields, and answers that end before the grammar does.

use std::sync::Arc;

use grammar::{Grammar, Whitespace};
use openai::body::defaults::Defaults;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::chats::ChatRules;
use openai::input_line::{ErrorCode, InputLine};
use openai::output::{Choice, FinishReason};
use openai::prompt::ModelLimits;

use super::fake::{EchoEngine, TestJob, read_items};
use super::input::{refused, request};
use testkit::byte_codec::ByteCodec;

use crate::input::{InputFormat, InputOptions};
use crate::outcome::JobOutcome;
use crate::sink::OutputMode;

/// Requests whose echoes are "ye", "yes", "ye" cut at the limit, and "yes" up to a stop string.
const INPUT: &[u8] = br#"{"prompt": [121, 101, 257], "structured_outputs": {"choice": ["yes"]}}
{"prompt": [121, 101, 115, 257], "structured_outputs": {"choice": ["yes"]}}
{"prompt": [121, 101, 257], "structured_outputs": {"choice": ["yes"]}, "max_tokens": 2}
{"prompt": [121, 101, 115, 257], "structured_outputs": {"choice": ["yes!"]}, "stop": "s"}
{"prompt": [123, 257], "response_format": {"type": "json_object"}}
"#;

fn endings(test_job: &TestJob) -> Vec<(FinishReason, Option<String>)> {
    let lines = test_job.lines().into_iter().map(|line| line.response.expect("an answer"));
    let choices = lines.flat_map(|response| response.body.choices);
    choices
        .map(|choice| match choice {
            Choice::Text { finish_reason, error, .. }
            | Choice::Chat { finish_reason, error, .. } => (finish_reason, error),
        })
        .collect()
}

#[test]
fn an_answer_that_ends_early_is_an_error() {
    let test_job = TestJob::new(INPUT);
    let summary = test_job.run(&mut EchoEngine::new(2)).unwrap();
    let endings = endings(&test_job);
    let reasons: Vec<FinishReason> = endings.iter().map(|(reason, _)| *reason).collect();
    use FinishReason::{Error, Length, Stop};
    assert_eq!(reasons, [Error, Stop, Length, Stop, Error]);
    for (reason, error) in &endings {
        assert_eq!(error.is_some(), *reason == Error, "{error:?}");
    }
    let sentence = endings[0].1.as_deref().unwrap();
    assert!(sentence.contains("not one of the choices"), "{sentence}");
    assert_eq!((summary.answered, summary.failed_lines.as_slice()), (3, &[1, 5][..]));
    assert_eq!(summary.outcome(), JobOutcome::Partial);
    let text = String::from_utf8(test_job.output()).unwrap();
    assert_eq!(text.matches("\"error\":null").count(), 5, "of the lines, not of whole answers");
}

#[test]
fn a_resume_tries_it_again() {
    let mut test_job = TestJob::new(INPUT);
    test_job.run(&mut EchoEngine::new(2)).unwrap();
    let whole = test_job.output();
    test_job.options.mode = OutputMode::Resume;
    assert_eq!(
        test_job.prepare().unwrap().resume_summary().as_deref(),
        Some("3 answers kept, 2 remaining")
    );
    let mut engine = EchoEngine::new(8);
    let summary = test_job.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [2]);
    assert_eq!(summary.failed_lines, [1, 5]);
    assert_eq!(test_job.output(), whole);
}

#[test]
fn lines_share_equal_forms() {
    let line = |choice: &str| {
        format!("{{\"prompt\": \"a\", \"structured_outputs\": {{\"choice\": [\"{choice}\"]}}}}\n")
    };
    let options = InputOptions {
        format: InputFormat::JsonLines,
        chat: false,
        chat_rules: &ChatRules::default(),
        max_tokens: None,
        seed: 0,
        now_s: 0,
        defaults: &Defaults::default(),
        unknown_fields: &UnknownFieldPolicy::default(),
        codec: Some(&ByteCodec::CHAT),
        limits: ModelLimits { context: 64, vocab_size: 300, unsupported_tokenizer: None },
        bounds: None,
    };
    let text = [line("yes"), line("no"), line("yes")].concat();
    let forms = read_items(text.as_bytes(), &options).into_iter().map(|item| match item {
        InputLine::Request(request) => request.grammar.expect("a form"),
        InputLine::Error(error) => panic!("{error:?}"),
    });
    let forms: Vec<_> = forms.collect();
    assert!(Arc::ptr_eq(&forms[0], &forms[2]));
    assert_ne!(forms[0], forms[1]);
}

#[test]
fn forms_of_answers() {
    let grammar = |fields: &str| {
        request(&format!(r#"{{"prompt": "a", {fields}}}"#)).grammar.as_deref().cloned()
    };
    let schema = |text: &str| Some(Grammar::json_schema(text));
    assert_eq!(grammar(r#""response_format": {"type": "text"}"#), None);
    let object = grammar(r#""response_format": {"type": "json_object"}"#);
    assert_eq!(object, schema(r#"{"type":"object"}"#));
    let named = r#"{"name": "n", "strict": true, "schema": {"enum": [1, "b"]}}"#;
    let strict = grammar(&format!(
        r#""response_format": {{"type": "json_schema", "json_schema": {named}}}"#
    ));
    assert_eq!(strict, schema(r#"{"enum":[1,"b"]}"#));
    assert_eq!(grammar(r#""structured_outputs": {"json": {"enum": [1, "b"]}}"#), strict);
    assert_eq!(grammar(r#""structured_outputs": {"json": "{\"enum\": [1, \"b\"]}"}"#), strict);
    let regex = grammar(r#""structured_outputs": {"regex": "[ab]+", "json": null}"#);
    assert_eq!(regex, Some(Grammar::Regex("[ab]+".to_owned())));
    let choice = grammar(r#""structured_outputs": {"choice": ["yes", "no"]}"#);
    assert_eq!(choice, Some(Grammar::Choice(vec!["yes".to_owned(), "no".to_owned()])));
    assert_eq!(grammar(r#""structured_outputs": {"json_object": true, "json": null}"#), object);
    let spaced =
        |whitespace| Some(Grammar::JsonSchema(r#"{"type":"object"}"#.to_owned(), whitespace));
    let compact =
        grammar(r#""structured_outputs": {"json_object": true, "disable_any_whitespace": true}"#);
    assert_eq!(compact, spaced(Whitespace::Nothing));
    let lines = grammar(
        r#""response_format": {"type": "json_object"}, "structured_outputs": {"whitespace_pattern": "[ \\n]*"}"#,
    );
    assert_eq!(lines, spaced(Whitespace::Pattern(r"[ \n]*".to_owned())));
    for (wrong, words) in [
        (
            r#""structured_outputs": {"choice": ["a"], "whitespace_pattern": " "}"#,
            "Whitespace options apply only",
        ),
        (
            r#""structured_outputs": {"disable_any_whitespace": true}"#,
            "Whitespace options apply only",
        ),
        (
            r#""structured_outputs": {"json_object": true, "whitespace_pattern": "x"}"#,
            "more than whitespace",
        ),
        (
            r#""structured_outputs": {"json_object": true, "whitespace_pattern": " ", "disable_any_whitespace": true}"#,
            "one of",
        ),
        (r#""response_format": "json""#, "'response_format'"),
        (r#""response_format": {"type": "json_schema"}"#, "\"schema\""),
        (r#""response_format": {"type": "xml"}"#, "json_object"),
        (r#""structured_outputs": {}"#, "one of"),
        (r#""structured_outputs": {"choice": []}"#, "an array of strings"),
        (r#""structured_outputs": {"choice": ["a"], "regex": "b"}"#, "one of"),
        (r#""structured_outputs": {"regex": "(a"}"#, "Invalid response format"),
        (r#""structured_outputs": {"json": {"type": "objekt"}}"#, "Invalid response format"),
        (r#""response_format": {"type": "json_object"}, "ignore_eos": true"#, "'ignore_eos'"),
        (
            r#""response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}"#,
            "one of them",
        ),
    ] {
        refused(&format!(r#"{{"prompt": "a", {wrong}}}"#), ErrorCode::InvalidValue, words);
    }
}

/// Nested fields are applied, or refused by name.
#[test]
fn fields_within_are_followed_or_refused() {
    let grammar = |fields: &str| {
        request(&format!(r#"{{"prompt": "a", {fields}}}"#)).grammar.as_deref().cloned()
    };
    let schema = |text: &str| Some(Grammar::json_schema(text));
    let of_object =
        grammar(r#""response_format": {"type": "json_object", "schema": {"type": "integer"}}"#);
    assert_eq!(of_object, schema(r#"{"type":"integer"}"#));
    let open = r#"{"json": {"properties": {"a": {}}}, "disable_additional_properties": true}"#;
    let closed = grammar(&format!(r#""structured_outputs": {open}"#));
    assert_eq!(closed, schema(r#"{"properties":{"a":{}},"additionalProperties":false}"#));
    for wrong in [
        r#""response_format": {"type": "json_object", "json_scheme": {}}"#,
        r#""response_format": {"type": "text", "schema": {}}"#,
        r#""response_format": {"type": "json_schema", "schema": {}, "json_schema": {"schema": 1}}"#,
        r#""response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strikt": 1}}"#,
    ] {
        let line = format!(r#"{{"prompt": "a", {wrong}}}"#);
        refused(&line, ErrorCode::UnsupportedField, "Unknown parameter");
    }
    let named = r#"{"schema": {}, "strict": 1}"#;
    let strictly =
        format!(r#""response_format": {{"type": "json_schema", "json_schema": {named}}}"#);
    for (wrong, words) in [
        (r#""response_format": {"type": "json_object", "schema": 5}"#, "'response_format'"),
        (strictly.as_str(), "'strict'"),
        (
            r#""structured_outputs": {"regex": "a", "disable_additional_properties": true}"#,
            "applies only to JSON",
        ),
    ] {
        refused(&format!(r#"{{"prompt": "a", {wrong}}}"#), ErrorCode::InvalidValue, words);
    }
}

/// Objects of response formats are closed like those of function parameters, whatever `strict`
/// says, unless the schema permits other properties.
#[test]
fn objects_of_response_formats_have_declared_properties_only() {
    let schema_of = |fields: &str| {
        let request = request(&format!(r#"{{"prompt": "a", {fields}}}"#));
        match request.grammar.as_deref() {
            Some(Grammar::JsonSchema(schema, _)) => {
                serde_json::from_str::<serde_json::Value>(schema).expect("a schema")
            }
            other => panic!("{fields}: {other:?}"),
        }
    };
    let inner = r#"{"type": "object", "properties": {"b": {"type": "integer"}}}"#;
    let declared = format!(r#"{{"type": "object", "properties": {{"a": {inner}}}}}"#);
    let open = r#"{"type": "object", "properties": {"a": {}}, "additionalProperties": true}"#;
    for strict in ["", r#""strict": true, "#, r#""strict": false, "#] {
        let format = |schema: &str| {
            let named = format!(r#"{{"name": "n", {strict}"schema": {schema}}}"#);
            schema_of(&format!(
                r#""response_format": {{"type": "json_schema", "json_schema": {named}}}"#
            ))
        };
        let closed = format(&declared);
        assert_eq!(closed["additionalProperties"], false, "{strict}");
        assert_eq!(closed["properties"]["a"]["additionalProperties"], false, "{strict}");
        assert_eq!(format(open)["additionalProperties"], true, "{strict}");
        assert!(format(r#"{"type": "object"}"#).get("additionalProperties").is_none());
    }
    let object = format!(r#""response_format": {{"type": "json_object", "schema": {declared}}}"#);
    assert_eq!(schema_of(&object)["additionalProperties"], false);
    let structured = format!(r#""structured_outputs": {{"json": {declared}}}"#);
    assert!(schema_of(&structured).get("additionalProperties").is_none());
}
