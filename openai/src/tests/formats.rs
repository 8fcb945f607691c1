//! Formats of tool calls, detected from templates like those of the models.

use grammar::{CallSyntax, Calls, Checker, Function, Grammar, SyntaxElement, SyntaxPart};

use crate::tool_calls::format::CallFormat;

/// Returns the token of a marker that is a token.
fn special(text: &str) -> Option<u32> {
    [
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "[CALL_ID]",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
    ]
    .iter()
    .position(|other| *other == text)
    .map(|at| at as u32)
}

pub(super) fn syntax(format: CallFormat) -> CallSyntax {
    format.syntax(&|text| Ok(special(text))).expect("a tokenizer")
}

/// Returns functions, including one whose name is the beginning of another name.
pub(super) fn functions() -> Vec<Function> {
    let any = r#"{"type": "object"}"#.to_owned();
    let text = r#"{"type": "object", "properties": {"text": {"type": "string"},
        "n": {"type": "integer"}}, "required": ["text"]}"#;
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
        ("{% if tools %}<tool_call>name\n<arg_key>k</arg_key>arguments", None),
        (
            "{% if tools %}<|start|>assistant to=functions.name<|channel|>commentary<|message|>",
            Some(CallFormat::Harmony),
        ),
        ("{{ messages[0].content }}<tool_call>arguments</tool_call>", None),
        ("{{ messages[0].content }}", None),
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
    for format in [
        CallFormat::Hermes,
        CallFormat::Llama,
        CallFormat::MistralList,
        CallFormat::MistralNamed,
        CallFormat::QwenCoder,
        CallFormat::Harmony,
    ] {
        for (is_required, are_several) in [(false, true), (true, false)] {
            let (syntax, functions) = (syntax(format), functions());
            let calls = Calls { syntax, functions, is_required, are_several };
            checker.check(&Grammar::Calls(Box::new(calls))).expect("a form");
        }
    }
}
