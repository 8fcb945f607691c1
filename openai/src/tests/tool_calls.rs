//! Tool calls are found regardless of how an answer is split.

use std::sync::Arc;

use crate::stop::GeneratedTokens;
use engine_api::event::FinishCause;
use grammar::{Calls, Grammar};
use testkit::byte_codec::ByteCodec;

use super::formats::{functions, syntax};
use crate::answer_accumulator::{AnswerAccumulator, AnswerDelta, FinishedAnswer};
use crate::answer_options::AnswerOptions;
use crate::answer_parts::{AnswerParts, Call, PartsDelta};
use crate::char_or_token::CharOrToken;
use crate::stop::finish;
use crate::tool_calls::format::CallFormat;
use crate::tool_calls::parse::ToolCallParser;

/// Characters that represent tokens in the texts of these tests.
const TOKENS: [char; 4] = ['①', '②', '③', '④'];

fn calls(format: CallFormat) -> Calls {
    let (syntax, functions) = (syntax(format), functions());
    Calls { syntax, functions, is_required: false, are_several: true }
}

fn push(reader: &mut ToolCallParser, char: char) {
    let token = TOKENS.iter().position(|token| *token == char);
    reader.push(token.map_or(CharOrToken::Char(char), |token| CharOrToken::Token(token as u32)));
}

/// Returns the content and the calls that are found if they are taken after each of `cuts`.
fn found(format: CallFormat, text: &str, cuts: &[usize]) -> (String, Vec<Call>) {
    let mut reader = ToolCallParser::new(&calls(format));
    let mut all: Vec<PartsDelta> = Vec::new();
    for (index, char) in text.chars().enumerate() {
        push(&mut reader, char);
        if cuts.contains(&index) {
            all.push(reader.take());
        }
    }
    all.push(reader.end());
    let AnswerParts { content, calls, .. } = AnswerParts::from_deltas(all);
    (content, calls)
}

fn call(name: &str, arguments: &str) -> Call {
    Call { name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Format, text, expected content and expected calls.
type Case = (CallFormat, &'static str, &'static str, Vec<Call>);

fn cases() -> Vec<Case> {
    [tagged(), others(), one_by_one()].concat()
}

fn tagged() -> Vec<Case> {
    use CallFormat::Hermes;
    let tricky = r#"{"a": "}\"</tool_call>", "b": [{"c": "é{"}]}"#;
    vec![
        (Hermes, "Oh <tool_calls and no more", "Oh <tool_calls and no more", vec![]),
        (Hermes, "a < b\n\n", "a < b\n\n", vec![]),
        (Hermes, "a <tool", "a <tool", vec![]),
        (
            Hermes,
            "Well.\n\n<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>\n",
            "Well.",
            vec![call("get", "{}")],
        ),
        (
            Hermes,
            "<tool_call>{\"name\":\"get_all\",\"arguments\":{\"a\": \"}\\\"</tool_call>\", \"b\": \
             [{\"c\": \"é{\"}]}}</tool_call>\n<tool_call>\n{\"name\": \"put-1\", \"arguments\": \
             {\"x\": 1}}\n</tool_call>",
            "",
            vec![call("get_all", tricky), call("put-1", "{\"x\": 1}")],
        ),
        // Cut within the arguments, before them, and after a call.
        (
            Hermes,
            "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"b",
            "",
            vec![call("get", "{\"a\": \"b")],
        ),
        (Hermes, "Oh <tool_call>\n{\"name\": \"get\", \"argu", "Oh", vec![]),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool",
            "",
            vec![call("get", "{}")],
        ),
        // A call of an unknown function is text.
        (
            Hermes,
            "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
            vec![],
        ),
    ]
}

fn others() -> Vec<Case> {
    use CallFormat::{Llama, MistralList, MistralNamed};
    vec![
        (
            Llama,
            "{\"name\": \"get\", \"parameters\": {\"a\": 1}}",
            "",
            vec![call("get", "{\"a\": 1}")],
        ),
        (
            Llama,
            "\n③{\"type\": \"function\", \"name\": \"get_all\", \"parameters\": {}}",
            "",
            vec![call("get_all", "{}")],
        ),
        (Llama, "{\"na", "{\"na", vec![]),
        (Llama, "{\"a\": 1}\n", "{\"a\": 1}\n", vec![]),
        (
            Llama,
            "So: {\"name\": \"get\", \"parameters\": {}}",
            "So: {\"name\": \"get\", \"parameters\": {}}",
            vec![],
        ),
        (
            MistralList,
            "Yes ① [{\"name\": \"get\", \"arguments\": {}}, {\"name\": \"get\", \"arguments\": \
             {\"a\": 2}}]",
            "Yes",
            vec![call("get", "{}"), call("get", "{\"a\": 2}")],
        ),
        (
            MistralNamed,
            "①get_all②{\"a\": []}①put-1②{\"b\": {}}",
            "",
            vec![call("get_all", "{\"a\": []}"), call("put-1", "{\"b\": {}}")],
        ),
        // With an id, and with an invalid id.
        (MistralNamed, "①get④a1B2c3D4e②{}", "", vec![call("get", "{}")]),
        (MistralNamed, "①get④a1B2②{}", "geta1B2{}", vec![]),
        // Tokens have no text.
        (MistralNamed, "a ①get_al②{}", "a get_al{}", vec![]),
    ]
}

/// Returns cases with arguments between tags.
fn one_by_one() -> Vec<Case> {
    use CallFormat::QwenCoder;
    let tricky = r#"{"text": "a \"b\"\n</parameter> é", "n": 3}"#;
    vec![
        (
            QwenCoder,
            "Well.\n\n<tool_call>\n<function=get>\n</function>\n</tool_call>",
            "Well.",
            vec![call("get", "{}")],
        ),
        (
            QwenCoder,
            "<tool_call>\n<function=write>\n<parameter=text>\na \"b\"\n</parameter> é\n\
             </parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\n\
             <tool_call>\n<function=write>\n<parameter=text>\n\n</parameter>\n</function>\n\
             </tool_call>",
            "",
            vec![call("write", tricky), call("write", r#"{"text": ""}"#)],
        ),
        // The first tag is missing, and the text is cut within a value.
        (
            QwenCoder,
            "So <function=write>\n<parameter=text>\nab\n</param",
            "So",
            vec![call("write", r#"{"text": "ab"#)],
        ),
        (QwenCoder, "a <function=other>", "a <function=other>", vec![]),
    ]
}

#[test]
fn calls_are_found_however_the_text_is_cut() {
    for (format, text, content, expected) in cases() {
        let whole = found(format, text, &[]);
        assert_eq!(whole, (content.to_owned(), expected), "{format:?} {text}");
        let length = text.chars().count();
        let all: Vec<usize> = (0..length).collect();
        assert_eq!(found(format, text, &all), whole, "{format:?} {text}, each character");
        for cut in 0..length {
            assert_eq!(found(format, text, &[cut]), whole, "{format:?} {text} cut at {cut}");
        }
    }
}

#[test]
fn arguments_are_told_as_they_come() {
    let mut reader = ToolCallParser::new(&calls(CallFormat::Hermes));
    let mut deltas = Vec::new();
    for char in "Oh\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}".chars() {
        reader.push(CharOrToken::Char(char));
        let PartsDelta { content, calls, .. } = reader.take();
        let calls = calls.into_iter().map(|call| {
            assert_eq!(call.index, 0);
            format!("{}({}", call.name.unwrap_or_default(), call.arguments)
        });
        deltas.extend(Some(content).filter(|content| !content.is_empty()));
        deltas.extend(calls);
    }
    assert_eq!(deltas, ["O", "h", "get(", "({", "(\"", "(a", "(\"", "(:", "( ", "(1", "(}"]);
}

/// Streamed pieces add up to the whole answer, with and without stop strings.
#[test]
fn pieces_of_calls_put_together_are_the_whole() {
    let codec = ByteCodec::CHAT;
    let mut found = 0;
    for (format, text, ..) in cases() {
        if text.contains(TOKENS) {
            continue;
        }
        let grammar = Some(Arc::new(Grammar::Calls(Box::new(calls(format)))));
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        for stop in ["", "}", "arguments", "l>", "\n", "é"] {
            let stop = Some(stop.to_owned()).filter(|s| !s.is_empty()).into_iter().collect();
            let grammar = grammar.clone();
            let following =
                AnswerOptions { is_streamed: true, stop, grammar, ..AnswerOptions::default() };
            let mut growing = AnswerAccumulator::new(Some(&codec), following.clone());
            let mut all = Vec::new();
            let mut ids = Vec::new();
            for token in &tokens {
                if growing.push(*token, &[]) {
                    break;
                }
                let delta = growing.take();
                ids.extend(delta.token_ids);
                let AnswerDelta { text: content, reasoning, calls, .. } = delta;
                all.push(PartsDelta { reasoning, content, calls });
            }
            let FinishedAnswer { rest, answer, .. } = growing.end(FinishCause::Stop);
            ids.extend(rest.token_ids);
            let AnswerDelta { text: content, reasoning, calls, .. } = rest;
            all.push(PartsDelta { reasoning, content, calls });
            let generated = GeneratedTokens {
                tokens: tokens.clone(),
                logprobs: Vec::new(),
                finish: FinishCause::Stop,
            };
            let whole = finish(generated, &following, Some(&codec)).0;
            let context = format!("{format:?} {text} {:?}", following.stop);
            assert_eq!((&answer.text, &answer.calls), (&whole.text, &whole.calls), "{context}");
            let AnswerParts { content, calls, .. } = AnswerParts::from_deltas(all);
            assert_eq!(content, whole.text.unwrap_or_default(), "{context}");
            assert_eq!(calls, whole.calls, "{context}");
            assert_eq!(ids, whole.token_ids, "{context}");
            found += calls.len();
        }
    }
    assert!(found > 15, "only {found} calls");
}
