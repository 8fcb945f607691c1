//! Answers that must have a form and end without it.

use std::sync::Arc;

use crate::exit::Exit;
use crate::job::input::{Format, InputOptions};
use crate::job::item::Item;
use crate::job::output::{Choice, FinishReason};
use crate::job::prompt::Limits;
use crate::job::sink::OutputMode;

use super::fake::{Bytes, Desk, Echo, read_items};

/// The echo says "ye" and ends, "yes" and ends, "ye" and is cut, and "yes" up to a stop string.
const INPUT: &[u8] = br#"{"prompt": [121, 101, 257], "structured_outputs": {"choice": ["yes"]}}
{"prompt": [121, 101, 115, 257], "structured_outputs": {"choice": ["yes"]}}
{"prompt": [121, 101, 257], "structured_outputs": {"choice": ["yes"]}, "max_tokens": 2}
{"prompt": [121, 101, 115, 257], "structured_outputs": {"choice": ["yes!"]}, "stop": "s"}
{"prompt": [123, 257], "response_format": {"type": "json_object"}}
"#;

fn told(desk: &Desk) -> Vec<(FinishReason, Option<String>)> {
    let lines = desk.lines().into_iter().map(|line| line.response.expect("an answer"));
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
    let desk = Desk::new(INPUT);
    let summary = desk.run(&mut Echo::new(2)).unwrap();
    let told = told(&desk);
    let reasons: Vec<FinishReason> = told.iter().map(|(reason, _)| *reason).collect();
    use FinishReason::{Error, Length, Stop};
    assert_eq!(reasons, [Error, Stop, Length, Stop, Error]);
    for (reason, error) in &told {
        assert_eq!(error.is_some(), *reason == Error, "{error:?}");
    }
    let sentence = told[0].1.as_deref().unwrap();
    assert!(sentence.contains("none of the choices"), "{sentence}");
    assert_eq!((summary.answered, summary.failed_lines.as_slice()), (3, &[1, 5][..]));
    assert_eq!(summary.exit(), Exit::SomeFailed);
    let text = String::from_utf8(desk.output()).unwrap();
    assert_eq!(text.matches("\"error\":null").count(), 5, "of the lines, not of whole answers");
}

#[test]
fn a_resume_tries_it_again() {
    let mut desk = Desk::new(INPUT);
    desk.run(&mut Echo::new(2)).unwrap();
    let whole = desk.output();
    desk.options.mode = OutputMode::Resume;
    assert_eq!(desk.prepare().unwrap().resumed().as_deref(), Some("3 answers kept, 2 to be made"));
    let mut engine = Echo::new(8);
    let summary = desk.run(&mut engine).unwrap();
    assert_eq!(engine.groups, [2]);
    assert_eq!(summary.failed_lines, [1, 5]);
    assert_eq!(desk.output(), whole);
}

#[test]
fn lines_share_equal_forms() {
    let line = |choice: &str| {
        format!("{{\"prompt\": \"a\", \"structured_outputs\": {{\"choice\": [\"{choice}\"]}}}}\n")
    };
    let options = InputOptions {
        format: Format::JsonLines,
        chat: false,
        max_tokens: None,
        seed: 0,
        now_s: 0,
        codec: Some(&Bytes { chat: true }),
        limits: Limits { context: 64, vocab_size: 300, sliding_window: None },
    };
    let text = [line("yes"), line("no"), line("yes")].concat();
    let forms = read_items(text.as_bytes(), &options).into_iter().map(|item| match item {
        Item::Request(request) => request.grammar.expect("a form"),
        Item::Error(error) => panic!("{error:?}"),
    });
    let forms: Vec<_> = forms.collect();
    assert!(Arc::ptr_eq(&forms[0], &forms[2]));
    assert_ne!(forms[0], forms[1]);
}
