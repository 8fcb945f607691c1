//! Reasoning is separated regardless of how an answer is split.

use std::sync::Arc;

use crate::stop::GeneratedTokens;
use engine_api::codec::TextCodec;
use engine_api::event::FinishCause;
use engine_api::token_rules::ReasoningBudget;
use grammar::{CallSyntax, Calls, Grammar, Marker};
use testkit::byte_codec::ByteCodec;

use super::formats::{functions, syntax};
use crate::answer_accumulator::{AnswerAccumulator, AnswerDelta, FinishedAnswer};
use crate::answer_options::AnswerOptions;
use crate::answer_parser::AnswerParser;
use crate::answer_parts::{AnswerParts, Call, PartsDelta};
use crate::reasoning::Reasoning;
use crate::reasoning::syntax::{HarmonyTokens, ReasoningSyntax, Tag, Tags};
use crate::stop::finish;
use crate::tool_calls::format::CallFormat;

/// Characters that represent tokens in the texts of these tests: Harmony's start, channel, message,
/// end and constrain, then `[THINK]` and `[/THINK]`.
const TOKENS: &str = "①②③④⑤⑥⑦";

fn tags(is_open: bool) -> Reasoning {
    let (open, close) = (Tag::Text("<think>".into()), Tag::Text("</think>".into()));
    Reasoning { syntax: ReasoningSyntax::Tags(Tags { open, close }), is_open }
}

fn token_tags() -> Reasoning {
    let (open, close) = (Tag::Token(5), Tag::Token(6));
    Reasoning { syntax: ReasoningSyntax::Tags(Tags { open, close }), is_open: false }
}

fn harmony() -> Reasoning {
    let answer = vec![1, 9, 2];
    let tokens =
        HarmonyTokens { start: 0, channel: 1, message: 2, end: 3, constrain: Some(4), answer };
    Reasoning { syntax: ReasoningSyntax::Harmony(tokens), is_open: false }
}

fn following(reasoning: Reasoning, calls: Option<CallSyntax>) -> AnswerOptions {
    let calls = calls.map(|syntax| {
        let functions = functions();
        Calls { syntax, functions, is_required: false, are_several: true }
    });
    let grammar = calls.map(|calls| Arc::new(Grammar::Calls(Box::new(calls))));
    let reasoning = Some(Arc::new(reasoning));
    AnswerOptions { is_streamed: true, reasoning, grammar, ..AnswerOptions::default() }
}

/// Returns the parts that are found if they are taken after each of `cuts`.
fn found(following: &AnswerOptions, text: &str, cuts: &[usize]) -> AnswerParts {
    let mut reader = AnswerParser::new(following).expect("parts");
    let mut all: Vec<PartsDelta> = Vec::new();
    for (index, char) in text.chars().enumerate() {
        match TOKENS.chars().position(|token| token == char) {
            Some(token) => reader.push_token(token as u32),
            None => reader.push_char(char),
        }
        if cuts.contains(&index) {
            all.push(reader.take());
        }
    }
    all.push(reader.end());
    AnswerParts::from_deltas(all)
}

fn call(name: &str, arguments: &str) -> Call {
    Call { name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Reasoning and call syntax of an answer, its text, and the expected reasoning, content and calls.
type Case = (Reasoning, Option<CallSyntax>, &'static str, &'static str, &'static str, Vec<Call>);

fn tagged() -> Vec<Case> {
    let hermes = || Some(syntax(CallFormat::Hermes));
    vec![
        (tags(false), None, "Yes.\n", "", "Yes.\n", vec![]),
        (tags(false), None, "\n <thin air", "", "\n <thin air", vec![]),
        (
            tags(false),
            None,
            "<think>\nA < b.\n\nSo </thin.\n</think>\n\nYes. <think>",
            "A < b.\n\nSo </thin.",
            "Yes. <think>",
            vec![],
        ),
        (tags(false), None, "<think>\n\n</think>\n\nYes", "", "Yes", vec![]),
        (tags(false), None, "<think>\nCut </thi", "Cut </thi", "", vec![]),
        (tags(false), None, "<think>\nCut \n", "Cut", "", vec![]),
        (tags(false), None, " <thi", "", " <thi", vec![]),
        (tags(true), None, "Hm.\n</think>Yes", "Hm.", "Yes", vec![]),
        (tags(true), None, "<<</think>", "<<", "", vec![]),
        (token_tags(), None, "⑥Hm ⑦ Yes ⑦", "Hm", "Yes ", vec![]),
        (token_tags(), None, " Yes", "", " Yes", vec![]),
        (
            tags(true),
            hermes(),
            "Call <tool_call>?</think>\n<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n\
             </tool_call>",
            "Call <tool_call>?",
            "",
            vec![call("get", "{}")],
        ),
        (tags(false), hermes(), "<think>a</think>\nb", "a", "b", vec![]),
    ]
}

fn harmonies() -> Vec<Case> {
    let calls = || Some(syntax(CallFormat::Hermes));
    vec![
        (harmony(), None, "②analysis③Hm\n④①assistant②final③Yes ", "Hm\n", "Yes ", vec![]),
        (
            harmony(),
            None,
            "②analysis③a④①assistant②analysis③b④①assistant②final③c",
            "a\nb",
            "c",
            vec![],
        ),
        // Cut within a header, and within reasoning.
        (harmony(), None, "②analysis③a④①assistant②fin", "a", "", vec![]),
        (harmony(), None, "②analysis③a", "a", "", vec![]),
        // No header, and the beginning of text that could be one.
        (harmony(), None, "Yes", "", "Yes", vec![]),
        (harmony(), None, "to", "", "to", vec![]),
        (harmony(), None, "to=", "", "to=", vec![]),
        (harmony(), None, "②final③Yes④①assistant②final③And", "", "Yes\nAnd", vec![]),
        (
            harmony(),
            calls(),
            "②analysis③a④①assistant②commentary③I look.④①assistant②commentary \
             to=functions.get ⑤json③{\"a\": 1}",
            "a",
            "I look.",
            vec![call("get", "{\"a\": 1}")],
        ),
        (
            harmony(),
            calls(),
            " to=functions.get_all②commentary json③{}",
            "",
            "",
            vec![call("get_all", "{}")],
        ),
        // A call of an unknown function is content.
        (harmony(), calls(), "②commentary to=functions.other③{}", "", "{}", vec![]),
    ]
}

#[test]
fn thoughts_are_found_however_the_text_is_cut() {
    for (reasoning, calls, text, thought, content, expected) in [tagged(), harmonies()].concat() {
        let following = following(reasoning, calls);
        let whole = found(&following, text, &[]);
        let parts =
            AnswerParts { reasoning: thought.into(), content: content.into(), calls: expected };
        assert_eq!(whole, parts, "{text}");
        let length = text.chars().count();
        let all: Vec<usize> = (0..length).collect();
        assert_eq!(found(&following, text, &all), whole, "{text}, each character");
        for cut in 0..length {
            assert_eq!(found(&following, text, &[cut]), whole, "{text} cut at {cut}");
        }
    }
}

/// Streamed pieces add up to the whole answer, with and without stop strings.
#[test]
fn pieces_of_thoughts_put_together_are_the_whole() {
    let codec = ByteCodec::CHAT;
    let mut thoughts = 0;
    for (reasoning, calls, text, ..) in tagged() {
        if text.chars().any(|char| TOKENS.contains(char)) {
            continue;
        }
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        for stop in ["", "</think>", "\n", "s", "k>"] {
            let mut following = following(reasoning.clone(), calls.clone());
            following.stop =
                [stop.to_owned()].into_iter().filter(|stop| !stop.is_empty()).collect();
            let mut growing = AnswerAccumulator::new(Some(&codec), following.clone());
            let mut deltas = Vec::new();
            let found = |AnswerDelta { reasoning, text: content, calls, .. }| PartsDelta {
                reasoning,
                content,
                calls,
            };
            for token in &tokens {
                if growing.push(*token, &[]) {
                    break;
                }
                deltas.push(found(growing.take()));
            }
            let FinishedAnswer { rest, answer, .. } = growing.end(FinishCause::Stop);
            deltas.push(found(rest));
            let tokens = tokens.clone();
            let generated =
                GeneratedTokens { tokens, logprobs: Vec::new(), finish: FinishCause::Stop };
            let whole = finish(generated, &following, Some(&codec)).0;
            assert_eq!(answer, whole, "{text} {stop}");
            let parts = AnswerParts::from_deltas(deltas);
            let content = whole.text.unwrap_or_default();
            let expected = AnswerParts { reasoning: whole.reasoning, content, calls: whole.calls };
            assert_eq!(parts, expected, "{text} {stop}");
            thoughts += usize::from(!parts.reasoning.is_empty());
        }
    }
    assert!(thoughts > 20, "only {thoughts} with thoughts");
}

#[test]
fn prompts_that_end_within_thoughts_are_known() {
    let codec = ByteCodec::THINKING;
    let syntax = ReasoningSyntax::detect(&codec).expect("a tokenizer").expect("it thinks");
    assert_eq!(ReasoningSyntax::detect(&ByteCodec::CHAT), Ok(None));
    assert_eq!(ReasoningSyntax::detect(&ByteCodec::PLAIN), Ok(None));
    for (prompt, is_open) in [
        ("<user>Hi<think>\n", true),
        ("<think>", true),
        ("<think>\n\n</think>\n\n", false),
        ("<user>Hi", false),
        ("", false),
    ] {
        let tokens = codec.encode_part(prompt).expect("bytes");
        assert_eq!(syntax.is_open(&tokens, &codec), is_open, "{prompt}");
    }
}

#[test]
fn markers_are_those_that_a_template_shows() {
    for (template, open, close) in [
        ("{% if tools %}'</think>' in content", "<think>", "</think>"),
        ("[THINK][/THINK]", "[THINK]", "[/THINK]"),
        ("<seed:think></seed:think>", "<seed:think>", "</seed:think>"),
        ("{{ '</think{}>'.format(end) }}", "<think:opensource>", "</think:opensource>"),
        ("<think:opensource></think:opensource>", "<think:opensource>", "</think:opensource>"),
    ] {
        let codec = ByteCodec::with_template(template);
        let tag = |text: &str| Tag::Text(text.to_owned());
        let tags = Tags { open: tag(open), close: tag(close) };
        let syntax = ReasoningSyntax::detect(&codec).expect("a tokenizer");
        assert_eq!(syntax, Some(ReasoningSyntax::Tags(tags)), "{template}");
    }
}

/// A grammar applies after reasoning that the prompt began, and after Harmony's; otherwise it
/// applies from the beginning.
#[test]
fn forms_stand_behind_thoughts() {
    let form = Grammar::Regex("a".to_owned());
    assert_eq!(tags(false).wrap_grammar(form.clone()), form);
    let marker = |grammar: Grammar| match grammar {
        Grammar::Behind(behind) => behind.marker,
        other => panic!("{other:?}"),
    };
    assert_eq!(marker(tags(true).wrap_grammar(form.clone())), Marker::Text("</think>".to_owned()));
    assert_eq!(marker(harmony().wrap_grammar(form)), Marker::Tokens(vec![1, 9, 2]));
}

#[test]
fn reasoning_between_single_tokens_can_be_limited() {
    let between = |open: Tag, close: Tag, is_open: bool| {
        let syntax = ReasoningSyntax::Tags(Tags { open, close });
        Reasoning { syntax, is_open }.budget(7)
    };
    let text = || Tag::Text("<think>".to_owned());
    let budget = |open: Option<u32>| Some(ReasoningBudget { max_tokens: 7, open, close: 4 });
    assert_eq!(between(Tag::Token(3), Tag::Token(4), true), budget(None));
    assert_eq!(between(Tag::Token(3), Tag::Token(4), false), budget(Some(3)));
    assert_eq!(between(text(), Tag::Token(4), true), budget(None));
    assert_eq!(between(text(), Tag::Token(4), false), None);
    assert_eq!(between(Tag::Token(3), text(), true), None);
    assert_eq!(harmony().budget(7), None);
}
