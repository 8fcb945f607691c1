//! Tests that calls which a format's grammar allows are extracted and accepted by the functions.

use std::sync::Arc;

use grammar::{
    Calls, Checker, CompiledGrammarCache, Function, Grammar, GrammarMatcher, GrammarSet, Vocabulary,
};

use super::formats::{FORMATS, syntax};
use super::tool_calls::TOKENS;
use crate::answer_parts::{AnswerParts, Call};
use crate::char_or_token::CharOrToken;
use crate::tool_calls::format::CallFormat;
use crate::tool_calls::parse::ToolCallParser;

/// First token of a byte; the ids below are those of [`TOKENS`].
const FIRST_BYTE: u32 = TOKENS.len() as u32;
const END: u32 = FIRST_BYTE + 256;

fn vocabulary() -> Vocabulary {
    let mut words = vec![Vec::new(); TOKENS.len()];
    words.extend((0..=255u8).map(|byte| vec![byte]));
    words.push(Vec::new());
    Vocabulary { words, ends: vec![END] }
}

fn functions() -> Vec<Function> {
    let function = |name: &str, parameters: &str| Function {
        name: name.to_owned(),
        parameters: parameters.to_owned(),
    };
    let pet = r#"{"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
        "required": ["kind", "age"], "additionalProperties": false}"#;
    let note = r#"{"type": "object", "properties": {"text": {"type": "string"},
        "n": {"type": "integer"}}, "required": ["text"], "additionalProperties": false}"#;
    let none = r#"{"type": "object", "properties": {}, "additionalProperties": false}"#;
    vec![function("pet", pet), function("note", note), function("now", none)]
}

fn calls(format: CallFormat, functions: Vec<Function>) -> Calls {
    Calls { syntax: syntax(format), functions, is_required: true, are_several: true }
}

fn start(calls: &Calls) -> GrammarMatcher {
    let grammar = Grammar::Calls(Box::new(calls.clone()));
    Checker::new().and_then(|checker| checker.check(&grammar)).expect("a grammar");
    let grammars = GrammarSet::new(vocabulary(), vec![grammar], |_| None);
    CompiledGrammarCache::new(Arc::new(grammars)).expect("compiles").start_matcher(0)
}

/// Returns the tokens that are allowed next.
fn allowed(matcher: &mut GrammarMatcher) -> Vec<u32> {
    let mut mask = vec![0; (END as usize + 1).div_ceil(32)];
    matcher.fill_mask(&mut mask);
    (0..=END).filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1).collect()
}

fn encode(text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    for char in text.chars() {
        match TOKENS.iter().position(|token| *token == char) {
            Some(token) => tokens.push(token as u32),
            None => {
                let bytes = char.encode_utf8(&mut [0; 4]).as_bytes().to_vec();
                tokens.extend(bytes.iter().map(|byte| FIRST_BYTE + u32::from(*byte)));
            }
        }
    }
    tokens
}

/// Returns the number of tokens that are allowed, one after the other, and true if the answer may
/// end after all of them.
fn accepted(calls: &Calls, tokens: &[u32]) -> (usize, bool) {
    let mut matcher = start(calls);
    for (index, token) in tokens.iter().enumerate() {
        if !allowed(&mut matcher).contains(token) {
            return (index, false);
        }
        matcher.accept_token(*token);
    }
    (tokens.len(), allowed(&mut matcher).contains(&END))
}

/// Returns the calls in an answer that has no other text.
fn read(calls: &Calls, tokens: &[u32]) -> Vec<Call> {
    let mut parser = ToolCallParser::new(calls);
    let mut bytes = Vec::new();
    for token in tokens {
        if *token < FIRST_BYTE {
            parser.push(CharOrToken::Token(*token));
            continue;
        }
        bytes.push((*token - FIRST_BYTE) as u8);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            text.chars().for_each(|char| parser.push(CharOrToken::Char(char)));
            bytes.clear();
        }
    }
    let AnswerParts { content, calls, .. } = AnswerParts::from_deltas(vec![parser.end()]);
    assert_eq!(content.trim(), "", "{tokens:?}");
    calls
}

/// Returns a call of `pet` and a call of `note` as models write them, and the second one's text.
fn written(format: CallFormat) -> Option<(&'static str, &'static str)> {
    let two = match format {
        CallFormat::Glm => (
            "<tool_call>pet\n<arg_key>kind</arg_key>\n<arg_value>dog</arg_value>\n<arg_key>age\
             </arg_key>\n<arg_value>7</arg_value>\n</tool_call>\n<tool_call>note<arg_key>text\
             </arg_key><arg_value>1 < \"2\"\n</arg_valu é</arg_value></tool_call>",
            "1 < \"2\"\n</arg_valu é",
        ),
        CallFormat::MiniMax => (
            "<minimax:tool_call>\n<invoke name=\"pet\">\n<parameter name=\"kind\">dog</parameter>\n\
             <parameter name=\"age\">7</parameter>\n</invoke>\n<invoke name=\"note\">\n\
             <parameter name=\"text\"><b>\"é\"</b>\n</parameter>\n</invoke>\n</minimax:tool_call>",
            "<b>\"é\"</b>\n",
        ),
        CallFormat::DeepSeekV3 => (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>pet\n```json\n\
             {\"kind\": \"dog\", \"age\": 7}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function\
             <｜tool▁sep｜>note\n```json\n{\"text\": \"```\"}\n```<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
            "```",
        ),
        CallFormat::DeepSeekV31 => (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>pet<｜tool▁sep｜>{\"kind\": \"dog\", \"age\": 7}\
             <｜tool▁call▁end｜><｜tool▁call▁begin｜>note<｜tool▁sep｜>{\"text\": \"｜\"}\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "｜",
        ),
        CallFormat::DeepSeekV4 => (
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"pet\">\n\
             <｜DSML｜parameter name=\"kind\" string=\"true\">dog</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"age\" string=\"false\">7</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n<｜DSML｜invoke name=\"note\">\n\
             <｜DSML｜parameter name=\"text\" string=\"true\"></｜DSML｜ \"é\"\n\
             </｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "</｜DSML｜ \"é\"\n",
        ),
        CallFormat::KimiK2 => (
            "⑧⑨functions.pet:0⑩{\"kind\": \"dog\", \"age\": 7}⑪\
             ⑨functions.note:21⑩{\"text\": \"\"}⑪⑫",
            "",
        ),
        CallFormat::Hy3 => (
            "⑬\n⑮pet⑰\n⑱kind⑲\n⑳dog㉑\n⑱age⑲\n⑳7㉑\n⑯\n⑮note⑰\n⑱text⑲\n⑳</arg_value>\"\n㉑\n⑯\n⑭",
            "</arg_value>\"\n",
        ),
        CallFormat::Hy3Preview => (
            "<tool_calls>\n<tool_call>pet<tool_sep>\n<arg_key>kind</arg_key>\n<arg_value>dog\
             </arg_value>\n<arg_key>age</arg_key>\n<arg_value>7</arg_value>\n</tool_call>\n\
             <tool_call>note<tool_sep>\n<arg_key>text</arg_key>\n<arg_value></arg_value>\n\
             </tool_call>\n</tool_calls>",
            "",
        ),
        _ => return None,
    };
    Some(two)
}

#[test]
fn calls_as_models_write_them_are_allowed_and_read() {
    let mut tested = 0;
    for format in FORMATS {
        let Some((text, note)) = written(format) else { continue };
        let calls = calls(format, functions());
        let tokens = encode(text);
        assert_eq!(accepted(&calls, &tokens), (tokens.len(), true), "{format:?}");
        let read = read(&calls, &tokens);
        let call = |index: usize| {
            let Call { name, arguments } = &read[index];
            let arguments: serde_json::Value = serde_json::from_str(arguments).expect("JSON");
            (name.as_str(), arguments)
        };
        assert_eq!(call(0), ("pet", serde_json::json!({"kind": "dog", "age": 7})), "{format:?}");
        assert_eq!(call(1), ("note", serde_json::json!({ "text": note })), "{format:?}");
        // Nothing but the end may follow, and no call may break its schema.
        for (from, to) in
            [("dog", "cow"), ("7", "70"), ("7", "\"7\""), ("pet", "let"), ("note", "net")]
        {
            let wrong = encode(&text.replacen(from, to, 1));
            let at = encode(&text[..text.find(from).expect("a part")]).len();
            let (count, _) = accepted(&calls, &wrong);
            assert!((at..at + to.len()).contains(&count), "{format:?}: {to} instead of {from}");
        }
        let more = [tokens.clone(), encode("and")].concat();
        assert_eq!(accepted(&calls, &more).0, tokens.len(), "{format:?}");
        tested += 1;
    }
    assert_eq!(tested, 8);
}

/// Draws tokens among those that are allowed, until the answer ends.
#[test]
fn whatever_is_allowed_is_a_call_that_functions_accept() {
    let mut checker = Checker::new().expect("a checker");
    for format in FORMATS {
        // Strings that have no end in these formats would be drawn for long.
        let functions = functions().into_iter().filter(|one| one.name != "note").collect();
        let calls =
            Calls { are_several: format.supports_parallel_calls(), ..calls(format, functions) };
        let mut state = 7u64;
        let mut draw = |count: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % count
        };
        for _ in 0..12 {
            let (mut matcher, mut tokens) = (start(&calls), Vec::new());
            loop {
                let allowed = allowed(&mut matcher);
                // Whitespace within JSON has no end either.
                let is_blank = |token: &u32| (FIRST_BYTE..=FIRST_BYTE + 32).contains(token);
                let mut chosen: Vec<u32> =
                    allowed.iter().copied().filter(|token| !is_blank(token)).collect();
                if chosen.is_empty() {
                    chosen.clone_from(&allowed);
                }
                let ends = chosen.contains(&END) && (tokens.len() > 400 || draw(2) == 0);
                let token = if ends { END } else { chosen[draw(chosen.len())] };
                if token == END {
                    break;
                }
                assert!(tokens.len() < 4000, "{format:?} does not end");
                tokens.push(token);
                matcher.accept_token(token);
            }
            let read = read(&calls, &tokens);
            assert!(!read.is_empty(), "{format:?} {tokens:?}");
            for Call { name, arguments } in read {
                let checked = checker.check_call(&calls, &name, &arguments);
                assert_eq!(checked, Ok(()), "{format:?} {name} {arguments}");
            }
        }
    }
}
