//! Formats of tool calls, detected from templates like those of the models.

use grammar::{CallSyntax, Calls, Checker, Function, Grammar, SyntaxElement, SyntaxPart};

use crate::tool_calls::format::CallFormat;

/// Markers that are tokens, in the order of their ids.
const SPECIAL: [&str; 21] = [
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "[CALL_ID]",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<tool_calls:opensource>",
    "</tool_calls:opensource>",
    "<tool_call:opensource>",
    "</tool_call:opensource>",
    "<tool_sep:opensource>",
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
];

/// All formats.
pub(super) const FORMATS: [CallFormat; 14] = [
    CallFormat::Hermes,
    CallFormat::Llama,
    CallFormat::MistralList,
    CallFormat::MistralNamed,
    CallFormat::QwenCoder,
    CallFormat::Harmony,
    CallFormat::Glm,
    CallFormat::MiniMax,
    CallFormat::DeepSeekV3,
    CallFormat::DeepSeekV31,
    CallFormat::DeepSeekV4,
    CallFormat::KimiK2,
    CallFormat::Hy3,
    CallFormat::Hy3Preview,
];

/// Returns the token of a marker that is a token.
fn special(text: &str) -> Option<u32> {
    SPECIAL.iter().position(|other| *other == text).map(|at| at as u32)
}

pub(super) fn syntax(format: CallFormat) -> CallSyntax {
    format.syntax(&|text| Ok(special(text))).expect("a tokenizer")
}

/// Returns functions, including one whose name is the beginning of another name.
pub(super) fn functions() -> Vec<Function> {
    let any = r#"{"type": "object"}"#.to_owned();
    let text = r#"{"type": "object", "properties": {"text": {"type": "string"},
        "n": {"type": "integer"}, "list": {"type": "array"}}, "required": ["text"]}"#;
    let all = [("get", &*any), ("get_all", &*any), ("put-1", &*any), ("write", text)];
    let function = |(name, parameters): (&str, &str)| Function {
        name: name.to_owned(),
        parameters: parameters.to_owned(),
    };
    all.map(function).to_vec()
}

#[test]
fn formats_are_told_by_templates() {
    for (template, format) in [
        (
            "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
             <tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call>{% endif %}",
            Some(CallFormat::Hermes),
        ),
        (
            "{% if tools is not none %}{\"name\": function name, \"parameters\": dictionary}\
             {% endif %}<|start_header_id|>ipython<|end_header_id|>",
            Some(CallFormat::Llama),
        ),
        (
            "[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS] [{{ call.function | tojson }}]",
            Some(CallFormat::MistralList),
        ),
        (
            "[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
            Some(CallFormat::MistralNamed),
        ),
        (
            "{{ tools }}[TOOL_CALLS]{{ name }}[CALL_ID]{{ id }}[ARGS]{{ arguments }}",
            Some(CallFormat::MistralNamed),
        ),
        (
            "{% if tools %}<tool_call>\n<function=name>\n<parameter=key>arguments",
            Some(CallFormat::QwenCoder),
        ),
        ("{{ messages[0].content }}<tool_call>arguments</tool_call>", None),
        ("{{ messages[0].content }}", None),
    ] {
        assert_eq!(CallFormat::from_template(template), format, "{template}");
    }
}

#[test]
fn formats_with_lists_keys_and_tokens_are_told_by_templates() {
    for (template, format) in [
        ("{% if tools %}<tool_call>name\n<arg_key>k</arg_key>arguments", Some(CallFormat::Glm)),
        (
            "{% if tools %}<tool_call>{name}<arg_key>k</arg_key><arg_value>v</arg_value>",
            Some(CallFormat::Glm),
        ),
        (
            "{% if tools %}<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"k\">",
            Some(CallFormat::MiniMax),
        ),
        (
            "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json",
            Some(CallFormat::DeepSeekV3),
        ),
        (
            "{% if tools %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}",
            Some(CallFormat::DeepSeekV31),
        ),
        (
            "{% if tools %}<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">",
            Some(CallFormat::DeepSeekV4),
        ),
        ("{% if tools %}<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">", None),
        (
            "{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}\
             <|tool_call_argument_begin|>",
            Some(CallFormat::KimiK2),
        ),
        (
            "{% set end = ':opensource' %}{{ tools }}{{ '<tool_calls{}>'.format(end) }}\
             {{ '<tool_call{}>'.format(end) }}{{ '<tool_sep{}>'.format(end) }}\
             {{ '<arg_key{}>'.format(end) }}",
            Some(CallFormat::Hy3),
        ),
        (
            "{{ tools }}<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>k</arg_key>",
            Some(CallFormat::Hy3Preview),
        ),
        // Formats of other models that have some of these words.
        ("{{ tools }}<minimax:tool_call>arguments", None),
        ("{{ tools }}<|tool_call_begin|>arguments<|tool_call_end|>", None),
        ("{{ tools }}<tool_calls><tool_sep>arguments", None),
        (
            "{% if tools %}<|start|>assistant to=functions.name<|channel|>commentary<|message|>",
            Some(CallFormat::Harmony),
        ),
    ] {
        assert_eq!(CallFormat::from_template(template), format, "{template}");
    }
}

#[test]
fn what_is_a_token_is_written_as_one() {
    let named = syntax(CallFormat::MistralNamed);
    assert_eq!(named.open, [SyntaxPart::Must(SyntaxElement::Token(0))]);
    let id = SyntaxPart::MayAll(vec![SyntaxElement::Token(3), SyntaxElement::Alphanumeric(9)]);
    assert_eq!(named.middle, [id, SyntaxPart::Must(SyntaxElement::Token(1))]);
    let hermes = syntax(CallFormat::Hermes);
    assert_eq!(hermes.open[0], SyntaxPart::Must(SyntaxElement::Text("<tool_call>".to_owned())));
    let refused = CallFormat::Hermes.syntax(&|_| Err("it sleeps".to_owned()));
    assert_eq!(refused, Err("it sleeps".to_owned()));
}

#[test]
fn each_format_is_one_that_answers_can_have() {
    let checker = Checker::new().expect("a checker");
    for format in FORMATS {
        for (is_required, are_several) in [(false, true), (true, false)] {
            let (syntax, functions) = (syntax(format), functions());
            let calls = Calls { syntax, functions, is_required, are_several };
            checker.check(&Grammar::Calls(Box::new(calls))).expect("a form");
        }
    }
}
