//! Tests of answers that call functions, with vocabularies that contain special tokens.

use std::sync::Arc;

use grammar::{
    Behind, CallSyntax, Calls, CallsOr, Checker, CompiledGrammarCache, Function, Grammar,
    GrammarMatcher, GrammarSet, Headers, Marker, ParameterTags, SyntaxElement, SyntaxPart, Trigger,
    Vocabulary,
};

/// A special token.
const MARK: u32 = 256;
const MIDDLE: u32 = 257;
const END: u32 = 258;
/// A token in the middle of which a trigger ends.
const LONG: u32 = 259;

fn vocabulary() -> Vocabulary {
    let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    words.extend([Vec::new(), Vec::new(), Vec::new(), b"l>\n{\"name\"".to_vec()]);
    words.extend([b"l>!".to_vec(), b" Oh <call>\n{\"na".to_vec()]);
    Vocabulary { words, ends: vec![END] }
}

fn text(text: &str) -> SyntaxPart {
    SyntaxPart::Must(SyntaxElement::Text(text.to_owned()))
}

fn maybe(text: &str) -> SyntaxPart {
    SyntaxPart::May(SyntaxElement::Text(text.to_owned()))
}

fn trigger(word: SyntaxElement) -> Trigger {
    Trigger { word, at_start: false }
}

/// Returns a syntax with calls between tags.
fn tagged() -> CallSyntax {
    CallSyntax {
        triggers: vec![trigger(SyntaxElement::Text("<call>".to_owned()))],
        open: vec![text("<call>"), maybe("\n"), text("{\"name\":"), maybe(" "), text("\"")],
        middle: vec![text("\", \"arguments\":"), maybe(" ")],
        close: vec![text("}"), maybe("\n"), text("</call>")],
        between: vec![maybe("\n")],
        ..CallSyntax::default()
    }
}

/// Returns a syntax with calls after special tokens.
fn marked() -> CallSyntax {
    CallSyntax {
        triggers: vec![trigger(SyntaxElement::Token(MARK))],
        open: vec![SyntaxPart::Must(SyntaxElement::Token(MARK))],
        middle: vec![SyntaxPart::Must(SyntaxElement::Token(MIDDLE))],
        ..CallSyntax::default()
    }
}

fn function(name: &str, parameters: &str) -> Function {
    Function { name: name.to_owned(), parameters: parameters.to_owned() }
}

fn calls(syntax: CallSyntax, is_required: bool, are_several: bool) -> Grammar {
    let functions = vec![
        function(
            "get",
            r#"{"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"], "additionalProperties": false}"#,
        ),
        function("get_all", r#"{"type": "object"}"#),
    ];
    Grammar::Calls(Box::new(Calls { syntax, functions, is_required, are_several }))
}

fn begin(grammar: &Grammar) -> (GrammarMatcher, usize) {
    Checker::new().and_then(|checker| checker.check(grammar)).expect("a form");
    let grammars = GrammarSet::new(vocabulary(), vec![grammar.clone()], |_| None);
    let mut compiled = CompiledGrammarCache::new(Arc::new(grammars)).expect("compiles");
    let words = compiled.mask_words();
    (compiled.start_matcher(0), words)
}

/// Takes tokens as long as they are allowed; returns their number, the walk after them, and true if
/// the answer may end there.
fn taken(grammar: &Grammar, tokens: &[u32]) -> (usize, GrammarMatcher, bool) {
    let (mut walk, words) = begin(grammar);
    let mut mask = vec![0; words];
    for (index, token) in tokens.iter().enumerate() {
        walk.fill_mask(&mut mask);
        if mask[*token as usize / 32] >> (token % 32) & 1 == 0 {
            return (index, walk, false);
        }
        walk.accept_token(*token);
        assert_eq!(walk.failure(), None, "{token}");
    }
    walk.fill_mask(&mut mask);
    let may_end = mask[END as usize / 32] >> (END % 32) & 1 == 1;
    (tokens.len(), walk, may_end)
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

const CALL: &str = "<call>\n{\"name\": \"get\", \"arguments\": {\"a\": 12}}\n</call>";

#[test]
fn required_calls_are_all_that_is_said() {
    let one = calls(tagged(), true, false);
    let (all, mut walk, may_end) = taken(&one, &bytes(CALL));
    assert_eq!((all, may_end, walk.is_complete()), (CALL.len(), true, true));
    assert!(!walk.is_unconstrained());
    for said in [
        "a",
        "<call>{\"name\": \"p",
        "<call>{\"name\": \"get\", \"arguments\": {}",
        "<call>{\"name\": \"get\", \"arguments\": {\"a\": \"",
        "<call>{\"name\": \"get_all\", \"arguments\": {\"b\": 1, \"b\"",
    ] {
        // All but the last character are allowed.
        assert_eq!(taken(&one, &bytes(said)).0, said.len() - 1, "{said}");
    }
    let twice = format!("{CALL}\n{CALL}");
    assert_eq!(taken(&one, &bytes(&twice)).0, CALL.len());
    let (count, _, may_end) = taken(&calls(tagged(), true, true), &bytes(&twice));
    assert_eq!((count, may_end), (twice.len(), true));
}

#[test]
fn a_text_is_free_until_calls_begin() {
    let free = calls(tagged(), false, true);
    let before = "No {\"a\": 1, \"a\": 2}, a < b, <cal ";
    let (count, mut walk, may_end) = taken(&free, &bytes(before));
    assert_eq!((count, may_end, walk.is_unconstrained()), (before.len(), true, true));
    assert!(walk.is_complete());
    let (count, mut walk, may_end) = taken(&free, &bytes(&format!("{before}<call>")));
    assert_eq!((count, may_end, walk.is_unconstrained()), (before.len() + 6, false, false));
    assert!(!walk.is_complete());
    let said = format!("{before}{CALL}");
    let (count, _, may_end) = taken(&free, &bytes(&said));
    assert_eq!((count, may_end), (said.len(), true));
    // No text may follow a call.
    assert_eq!(taken(&free, &bytes(&format!("{said} and"))).0, said.len());
    let wrong = format!("{before}<call>{{\"name\": \"put");
    assert!(taken(&free, &bytes(&wrong)).0 < wrong.len());
}

#[test]
fn a_trigger_may_end_within_a_token() {
    let free = calls(tagged(), false, true);
    let rest = bytes(": \"get\", \"arguments\": {\"a\": 1}}</call>");
    let said = [bytes("Oh <cal"), vec![LONG], rest.clone()].concat();
    let (count, _, may_end) = taken(&free, &said);
    assert_eq!((count, may_end), (said.len(), true));
    let said = [vec![LONG + 2], bytes("me\""), rest].concat();
    let (count, walk, may_end) = taken(&free, &said);
    assert_eq!((count, may_end, walk.is_unconstrained()), (said.len(), true, false));
    // A trigger with an impossible continuation is ordinary text.
    let (_, walk, may_end) = taken(&free, &[bytes("Oh <cal"), vec![LONG + 1], bytes("?")].concat());
    assert!(walk.is_unconstrained() && may_end);
}

/// Messages have headers, with `MARK` before a header and `MIDDLE` between it and a text.
#[test]
fn triggers_count_in_headers_alone() {
    let syntax = CallSyntax {
        triggers: vec![trigger(SyntaxElement::Text("to=".to_owned()))],
        headers: Some(Headers { opens: vec![MARK], closes: vec![MIDDLE] }),
        first: vec![maybe(" ")],
        open: vec![text("to=")],
        middle: vec![maybe(" json"), SyntaxPart::Must(SyntaxElement::Token(MIDDLE))],
        ..CallSyntax::default()
    };
    let form = calls(syntax, false, false);
    let call = || [bytes(" to=get json"), vec![MIDDLE], bytes("{\"a\": 1}")].concat();
    let thought =
        || [bytes("analysis"), vec![MIDDLE], bytes("Call to=get json, to"), vec![MARK]].concat();
    for said in [call(), [thought(), bytes("commentary"), call()].concat()] {
        let (count, walk, may_end) = taken(&form, &said);
        assert_eq!(
            (count, may_end, walk.is_unconstrained()),
            (said.len(), true, false),
            "{said:?}"
        );
    }
    // A trigger that began in a text does not end in a header.
    let (_, walk, may_end) = taken(&form, &[thought(), bytes("=get")].concat());
    assert!(walk.is_unconstrained() && may_end);
    let wrong = [thought(), bytes("commentary to=put")].concat();
    assert!(taken(&form, &wrong).0 < wrong.len());
}

#[test]
fn tokens_that_no_text_has_begin_calls() {
    for is_required in [true, false] {
        let form = calls(marked(), is_required, true);
        let call =
            |name: &str| [vec![MARK], bytes(name), vec![MIDDLE], bytes("{\"a\":1}")].concat();
        for said in [call("get"), call("get_all"), [call("get"), call("get_all")].concat()] {
            let (count, walk, may_end) = taken(&form, &said);
            assert_eq!(
                (count, may_end, walk.is_unconstrained()),
                (said.len(), true, false),
                "{said:?}"
            );
        }
        let (count, ..) = taken(&form, &[vec![MARK], bytes("get"), bytes("{")].concat());
        assert_eq!(count, 4);
        let (count, ..) = taken(&form, &[vec![MARK], bytes("ge"), vec![MIDDLE]].concat());
        assert_eq!(count, 3);
    }
    let (count, ..) = taken(&calls(marked(), true, false), &bytes("a"));
    assert_eq!(count, 0);
}

#[test]
fn calls_are_checked_one_by_one() {
    let Grammar::Calls(calls) = calls(tagged(), true, true) else { unreachable!("they are calls") };
    let mut checker = Checker::new().expect("a checker");
    let mut told = |name: &str, arguments: &str| {
        checker.check_call(&calls, name, arguments).err().map(|error| error.to_string())
    };
    assert_eq!(told("get", "{\"a\": 1}"), None);
    for (name, arguments, word) in [
        ("get", "{\"a\": 1", "ends before"),
        ("get", "{\"a\": \"b\"}", "does not allow"),
        ("get_all", "{\"a\": 1, \"a\": 2}", "repeats the key"),
        ("put", "{}", "unknown function"),
    ] {
        let error = told(name, arguments).expect(word);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn functions_that_cannot_be_called_are_refused() {
    let checker = Checker::new().expect("a checker");
    let object = r#"{"type": "object"}"#;
    let deep = format!("{}{object}{}", r#"{"properties": {"a": "#.repeat(100), "}}".repeat(100));
    let many: Vec<Function> = (0..600).map(|i| function(&format!("f{i}"), object)).collect();
    for (functions, word) in [
        (vec![], "no function"),
        (vec![function("a b", object)], "plain"),
        (vec![function("", object)], "plain"),
        (vec![function("a\"b", object)], "plain"),
        (vec![function("f", object), function("f", object)], "`f`"),
        (vec![function("f", r#"{"type": "nothing"}"#)], "the parameters of `f`"),
        (vec![function("f", r#"{"not": {}}"#)], "the parameters of `f`"),
        (vec![function("f", r##"{"$ref": "#/a"}"##)], "the parameters of `f`"),
        (vec![function("f", &deep)], "recursion"),
        (many, "600"),
    ] {
        let (syntax, is_required, are_several) = (tagged(), true, true);
        let calls = Calls { syntax, functions, is_required, are_several };
        let error = checker.check(&Grammar::Calls(Box::new(calls))).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn two_hundred_functions_can_be_called() {
    let parameters = r#"{"type": "object", "properties": {"city": {"type": "string"},
        "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": false}"#;
    let functions = (0..200).map(|i| function(&format!("tool_{i}"), parameters)).collect();
    let (syntax, is_required, are_several) = (tagged(), true, true);
    let calls = Calls { syntax, functions, is_required, are_several };
    let call = "<call>{\"name\": \"tool_177\", \"arguments\": {\"city\": \"Oslo\"}}</call>";
    let (count, _, may_end) = taken(&Grammar::Calls(Box::new(calls)), &bytes(call));
    assert_eq!((count, may_end), (call.len(), true));
}

/// Returns a syntax with each argument between tags.
fn in_tags() -> CallSyntax {
    CallSyntax {
        triggers: vec![trigger(SyntaxElement::Text("<call>".to_owned()))],
        open: vec![text("<call><f=")],
        middle: vec![text(">\n")],
        parameters: Some(ParameterTags {
            open: vec![text("<p=")],
            middle: vec![text(">\n")],
            close: vec![text("\n</p>\n")],
        }),
        close: vec![text("</f>")],
        ..CallSyntax::default()
    }
}

fn of_places() -> Function {
    let parameters = r##"{"type": "object", "$defs": {"day": {"enum": [1, 2]}}, "properties": {
        "city": {"type": "string"}, "unit": {"enum": ["C", "F"]}, "day": {"$ref": "#/$defs/day"},
        "near": {"type": "array", "items": {"type": "boolean"}}}, "required": ["city", "day"]}"##;
    function("get", parameters)
}

#[test]
fn arguments_may_stand_between_tags_each() {
    let form = |is_required, functions: Vec<Function>| {
        let (syntax, are_several) = (in_tags(), false);
        Grammar::Calls(Box::new(Calls { syntax, functions, is_required, are_several }))
    };
    assert_eq!(of_places().text_parameters(), ["city", "unit"]);
    let city = "<p=city>\n{\"a\": 1, \"a\":\n\"</p>\" é}\n</p>\n";
    let day = "<p=day>\n2\n</p>\n";
    for is_required in [true, false] {
        let form = form(is_required, vec![of_places(), function("now", "{\"type\": \"object\"}")]);
        for said in [
            format!("<call><f=get>\n{city}{day}</f>"),
            format!("<call><f=get>\n{city}<p=unit>\nF\n</p>\n{day}<p=near>\n[true]\n</p>\n</f>"),
            "<call><f=now>\n</f>".to_owned(),
        ] {
            let (count, _, may_end) = taken(&form, &bytes(&said));
            assert_eq!((count, may_end), (said.len(), true), "{said}");
        }
        for said in [
            // The last character is not allowed.
            format!("<call><f=get>\n{day}"),
            format!("<call><f=get>\n{city}<p=unit>\nK"),
            format!("<call><f=get>\n{city}<p=day>\n3"),
            format!("<call><f=get>\n{city}</"),
            "<call><f=now>\n<p".to_owned(),
        ] {
            assert!(taken(&form, &bytes(&said)).0 < said.len(), "{said}");
        }
    }
    let wrong = r#"{"type": "object", "properties": {"a>b": {"type": "string"}}}"#;
    let wrong = form(true, vec![function("get", wrong)]);
    let told = Checker::new().expect("a checker").check(&wrong).expect_err("refused").to_string();
    assert!(told.contains("`a>b` has a name that is not plain"), "{told}");
}

/// Returns a grammar of calls, or of an answer that follows `grammar`.
fn calls_or(syntax: CallSyntax, grammar: Grammar) -> Grammar {
    let Grammar::Calls(calls) = calls(syntax, false, true) else { panic!("calls") };
    Grammar::CallsOr(Box::new(CallsOr { calls: *calls, grammar }))
}

#[test]
fn an_answer_is_calls_or_has_the_form() {
    let schema = r#"{"type": "object", "properties": {"name": {"type": "boolean"}},
        "required": ["name"], "additionalProperties": false}"#;
    for form in [
        Grammar::json_schema(schema),
        Grammar::Regex(r"\{.name.: ?(true|false)\}".to_owned()),
        Grammar::Choice(vec!["{\"name\":true}".to_owned(), "{\"name\": false}".to_owned()]),
    ] {
        let both = calls_or(tagged(), form);
        for said in [CALL, "{\"name\":true}"] {
            let (count, mut walk, may_end) = taken(&both, &bytes(said));
            assert_eq!((count, may_end, walk.is_complete()), (said.len(), true, true), "{said}");
        }
        for said in ["No", "<call>{\"name\": \"p", "{\"name\":1"] {
            assert!(taken(&both, &bytes(said)).0 < said.len(), "{said}");
        }
        let (_, mut walk, may_end) = taken(&both, &[]);
        assert!(!may_end && !walk.is_unconstrained() && !walk.is_complete());
    }
    // Keys are unique in both alternatives; a call with tags is not JSON.
    let any = calls_or(in_tags(), Grammar::json_schema(r#"{"type": "object"}"#));
    let twice = "{\"a\": 1, \"a\"";
    assert_eq!(taken(&any, &bytes(twice)).0, twice.len() - 1);
}

#[test]
fn calls_with_headers_give_way_to_a_marker() {
    let harmony = CallSyntax {
        triggers: vec![trigger(SyntaxElement::Text("to=f.".to_owned()))],
        headers: Some(Headers { opens: vec![LONG], closes: vec![MIDDLE] }),
        open: vec![text("to=f.")],
        middle: vec![SyntaxPart::Must(SyntaxElement::Token(MIDDLE))],
        ..CallSyntax::default()
    };
    let grammar = calls_or(harmony, Grammar::json_schema(r#"{"type": "boolean"}"#));
    let marker = Marker::Tokens(vec![MARK, MIDDLE]);
    let both = Grammar::Behind(Box::new(Behind { marker, grammar }));
    // The reasoning alone is not a complete answer.
    let mut thought = bytes("Hm");
    thought.push(MIDDLE);
    thought.extend(bytes("well"));
    let (count, mut walk, may_end) = taken(&both, &thought);
    assert_eq!((count, may_end, walk.is_complete()), (thought.len(), false, false));
    let mut said = thought.clone();
    said.extend([MARK, MIDDLE]);
    said.extend(bytes("true"));
    let (count, _, may_end) = taken(&both, &said);
    assert_eq!((count, may_end), (said.len(), true));
    let mut called = thought;
    called.push(LONG);
    called.extend(bytes("to=f.get"));
    called.push(MIDDLE);
    called.extend(bytes("{\"a\": 1}"));
    let (count, _, may_end) = taken(&both, &called);
    assert_eq!((count, may_end), (called.len(), true));
}
