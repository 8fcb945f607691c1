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
pub(super) const TOKENS: [char; 21] = [
    '①', '②', '③', '④', '⑤', '⑥', '⑦', '⑧', '⑨', '⑩', '⑪', '⑫', '⑬', '⑭', '⑮', '⑯', '⑰', '⑱', '⑲',
    '⑳', '㉑',
];

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
    [tagged(), others(), one_by_one(), keys_and_values(), lists(), hy3()].concat()
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

/// Returns cases with arguments as keys and values, GLM's.
fn keys_and_values() -> Vec<Case> {
    use CallFormat::Glm;
    let tricky = r#"{"text": "a \"b\"\n</arg_valu <arg_key>é", "n": 3}"#;
    let list =
        r#"{"list": ["</arg_value>", "\"</arg_value>", {"a": "<"}], "text": "</tool_call>"}"#;
    vec![
        (Glm, "Well.\n<tool_call>get\n</tool_call>", "Well.", vec![call("get", "{}")]),
        (
            Glm,
            "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>a \"b\"\n</arg_valu <arg_key>é\
             </arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n\
             <tool_call>write<arg_key>text</arg_key><arg_value></arg_value></tool_call>",
            "",
            vec![call("write", tricky), call("write", r#"{"text": ""}"#)],
        ),
        // A string within JSON may contain the tag that ends a value.
        (
            Glm,
            "<tool_call>write<arg_key>list</arg_key><arg_value>[\"</arg_value>\", \
             \"\\\"</arg_value>\", {\"a\": \"<\"}]</arg_value><arg_key>text</arg_key>\
             <arg_value></tool_call></arg_value></tool_call>",
            "",
            vec![call("write", list)],
        ),
        // Cut within a value, within the tag that ends it, and after a name.
        (
            Glm,
            "So <tool_call>write<arg_key>text</arg_key><arg_value>ab</arg_val",
            "So",
            vec![call("write", r#"{"text": "ab"#)],
        ),
        (
            Glm,
            "<tool_call>write<arg_key>list</arg_key><arg_value>[\"</arg_value>",
            "",
            vec![call("write", r#"{"list": ["</arg_value>"#)],
        ),
        (Glm, "So <tool_call>get", "So", vec![]),
        // Neither an argument nor the end of the call follows the name.
        (Glm, "Oh <tool_call>get the sum", "Oh <tool_call>get the sum", vec![]),
        (Glm, "<tool_call>other\n</tool_call>", "<tool_call>other\n</tool_call>", vec![]),
        // An argument whose name is not plain ends the call.
        (
            Glm,
            "<tool_call>write<arg_key>a\"b</arg_key><arg_value>1</arg_value></tool_call>",
            "<arg_key>a\"b</arg_key><arg_value>1</arg_value></tool_call>",
            vec![call("write", "")],
        ),
    ]
}

/// Returns cases of formats that have a tag or token around all calls.
fn lists() -> Vec<Case> {
    use CallFormat::{DeepSeekV3, DeepSeekV4, DeepSeekV31, KimiK2, MiniMax};
    let tricky = r#"{"text": "<parameter name=\"n\">é</parameter", "list": ["</parameter>"]}"#;
    vec![
        (
            MiniMax,
            "Well.\n<minimax:tool_call>\n<invoke name=\"get\">\n</invoke>\n\
             <invoke name=\"write\">\n<parameter name=\"text\"><parameter name=\"n\">é</parameter\
             </parameter>\n<parameter name=\"list\">[\"</parameter>\"]</parameter>\n</invoke>\n\
             </minimax:tool_call>",
            "Well.",
            vec![call("get", "{}"), call("write", tricky)],
        ),
        (
            MiniMax,
            "<minimax:tool_call><invoke name=\"write\"><parameter name=\"text\">\n\n",
            "",
            vec![call("write", "{\"text\": \"\\n\\n")],
        ),
        (MiniMax, "a <minimax:tool_call>\n<invoke", "a", vec![]),
        (MiniMax, "a <minimax:tool_calls>", "a <minimax:tool_calls>", vec![]),
        (
            DeepSeekV3,
            "Oh.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n\
             {\"a\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>put-1\n\
             ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Oh.",
            vec![call("get", "{\"a\": \"```\"}"), call("put-1", "{}")],
        ),
        (
            DeepSeekV31,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_all<｜tool▁sep｜>{\"a\": \
             \"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{}\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            vec![call("get_all", "{\"a\": \"<｜tool▁call▁end｜>\"}"), call("get", "{}")],
        ),
        (DeepSeekV31, "a <｜tool▁calls", "a <｜tool▁calls", vec![]),
        (
            DeepSeekV4,
            "Well.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n\n</｜DSML｜invoke>\n\
             <｜DSML｜invoke name=\"write\">\n<｜DSML｜parameter name=\"text\" string=\"true\">\
             <parameter name=\"n\">é</parameter</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"list\" string=\"false\">[\"</parameter>\"]\
             </｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "Well.",
            vec![call("get", "{}"), call("write", tricky)],
        ),
        (DeepSeekV4, "a <｜DSML｜tool_cal", "a <｜DSML｜tool_cal", vec![]),
        // The tokens of Kimi K2 have no text.
        (
            KimiK2,
            "Oh ⑧⑨functions.get_all:0⑩{\"a\": 1}⑪⑨functions.put-1:12⑩{}⑪⑫",
            "Oh",
            vec![call("get_all", "{\"a\": 1}"), call("put-1", "{}")],
        ),
        (KimiK2, "⑧⑨functions.get:x⑩{}⑪⑫", "functions.get:x{}", vec![]),
        (KimiK2, "⑧⑨functions.get:1234567⑩{}⑪⑫", "functions.get:1234567{}", vec![]),
        (KimiK2, "a ⑧⑨functions.get:1", "a", vec![]),
    ]
}

/// Returns cases of the two formats of Hy3, the tags of one of which are tokens.
fn hy3() -> Vec<Case> {
    use CallFormat::{Hy3, Hy3Preview};
    let two = || vec![call("write", r#"{"text": "a\nb", "n": 3}"#), call("get", "{}")];
    vec![
        (Hy3, "Oh⑬\n⑮write⑰\n⑱text⑲\n⑳a\nb㉑\n⑱n⑲\n⑳3㉑\n⑯\n⑮get⑰\n⑯\n⑭", "Oh", two()),
        (
            Hy3Preview,
            "Oh<tool_calls>\n<tool_call>write<tool_sep>\n<arg_key>text</arg_key>\n<arg_value>a\nb\
             </arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n\
             <tool_call>get<tool_sep></tool_call></tool_calls>",
            "Oh",
            two(),
        ),
        (Hy3Preview, "<tool_calls>\n<tool_call>get\n", "<tool_calls>\n<tool_call>get\n", vec![]),
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
