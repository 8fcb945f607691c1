use std::time::{Duration, UNIX_EPOCH};

use super::*;

const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + \
 message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
'<|im_start|>assistant\n' }}{% endif %}";
const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages \
 %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ \
 message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = \
 bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt \
 %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

fn turns(turns: &[(&str, &str)]) -> Vec<ChatMessage> {
    turns
        .iter()
        .map(|(role, content)| ChatMessage::new((*role).into(), (*content).into(), Vec::new()))
        .collect()
}

#[test]
fn the_last_message_may_be_continued() {
    let continued = |template: &str, said: &str| {
        let messages = turns(&[("user", "Hi"), ("assistant", said)]);
        let template = ChatTemplate::new(template, None, None).expect("a template");
        template.render_continued(&messages, &[], &[], UNIX_EPOCH).map_err(|e| e.to_string())
    };
    let plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}";
    assert_eq!(continued(plain, "So, "), Ok("<user>Hi</><assistant>So, ".to_owned()));
    let strips = plain.replace("m.content", "m.content | trim");
    assert_eq!(continued(&strips, "So, "), Ok("<user>Hi</><assistant>So,".to_owned()));
    let silent = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    let refused = continued(silent, "So").expect_err("refused");
    assert!(refused.contains("leaves out the message that is to be continued"), "{refused}");
}

#[test]
fn a_conversation_may_be_rendered_without_what_begins_an_answer() {
    let template = ChatTemplate::new(CHATML, None, None).expect("a template");
    let messages = turns(&[("user", "Hi")]);
    let rendered = template.render_without_generation_prompt(&messages, &[], &[], UNIX_EPOCH);
    assert_eq!(rendered.expect("rendered"), "<|im_start|>user\nHi<|im_end|>\n");
}

#[test]
fn thoughts_have_the_name_that_a_template_asks_for() {
    let more = || vec![("reasoning_content".to_owned(), "\"hm\"".to_owned())];
    let message = || ChatMessage::new("assistant".into(), "a".into(), more());
    for (template, expected) in [
        ("{{ messages[0].reasoning_content }}", "hm"),
        ("{% for message in messages %}{{ message.thinking }}{% endfor %}", "hm"),
        ("{{ messages[0].thoughts }}", ""),
    ] {
        let template = ChatTemplate::new(template, None, None).expect("a template");
        let message = message().with_reasoning_for(&template);
        assert_eq!(template.render(&[message], &[], &[], UNIX_EPOCH).expect("rendered"), expected);
    }
}

#[test]
fn chatml_and_llama3() {
    let chatml = ChatTemplate::new(CHATML, None, None).expect("a template");
    assert_eq!(
        chatml.render(&turns(&[("user", "Hi")]), &[], &[], UNIX_EPOCH).expect("rendered"),
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let llama3 = ChatTemplate::new(LLAMA3, Some("<bos>"), Some("<eos>")).expect("a template");
    assert_eq!(
        llama3
            .render(&turns(&[("system", "Be brief. "), ("user", "Hi")]), &[], &[], UNIX_EPOCH)
            .expect("rendered"),
        "<bos><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
}

#[test]
fn python_methods_and_refusals() {
    let template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% \
     endif %}{{ messages[0].content.strip().startswith('a') }}";
    let template = ChatTemplate::new(template, None, None).expect("a template");
    assert_eq!(
        template.render(&turns(&[("user", " abc")]), &[], &[], UNIX_EPOCH).expect("rendered"),
        "True"
    );
    let thinks = ChatTemplate::new("{{ enable_thinking }} {{ messages|length }}", None, None);
    let variables = [("enable_thinking", "false"), ("messages", "[]")];
    let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let said =
        thinks.and_then(|it| it.render(&turns(&[("user", "a")]), &[], &variables, UNIX_EPOCH));
    assert_eq!(said.expect("rendered"), "False 1", "what is told anyway stays");
    let error =
        template.render(&turns(&[("system", "x")]), &[], &[], UNIX_EPOCH).expect_err("refused");
    assert!(error.to_string().contains("user first"), "{error}");
    assert!(matches!(ChatTemplate::new("{% for %}", None, None), Err(ChatError::Template(_))));
}

#[test]
fn templates_are_told_other_fields_in_their_order() {
    let calls =
        r#"[{"type": "function", "id": "c", "function": {"name": "f", "arguments": "{}"}}]"#;
    let more = vec![("name".into(), "\"Ada\"".into()), ("tool_calls".into(), calls.into())];
    let message = ChatMessage::new("assistant".into(), String::new(), more);
    let template = "{{ messages[0].name }} {{ messages[0].tool_calls | tojson }}\
                    {% if messages[0].tool_call_id is defined %}!{% endif %}";
    let template = ChatTemplate::new(template, None, None).expect("a template");
    assert_eq!(
        template.render(&[message], &[], &[], UNIX_EPOCH).expect("rendered"),
        format!("Ada {calls}")
    );
}

#[test]
fn the_environment_is_that_of_transformers() {
    let render = |template: &str| {
        ChatTemplate::new(template, None, None)
            .and_then(|template| {
                template.render(&turns(&[("user", "a<b>'é"), ("x", "y")]), &[], &[], UNIX_EPOCH)
            })
            .expect(template)
    };
    assert_eq!(render("{{ tools is none }} {{ documents is none }}"), "True True");
    assert_eq!(render("{{ messages[0].content | tojson }}"), r#""a<b>'é""#);
    assert_eq!(render("{{ {'a': [1, none, true]} | tojson }}"), r#"{"a": [1, null, true]}"#);
    assert_eq!(render("{{ messages[1:] | tojson }}"), r#"[{"role": "x", "content": "y"}]"#);
    assert_eq!(render("{{ {'a': 1} | tojson(indent=4) }}"), "{\n    \"a\": 1\n}");
    let skip = "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}\
                {{ m.content }}{% break %}{% endfor %}";
    assert_eq!(render(skip), "y");
    // Blocks are removed together with their line.
    assert_eq!(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
}

#[test]
fn hostile_templates_are_refused() {
    let doubled = "{% for a in range(9000) %}{{ messages[0].content }}{% endfor %}";
    let nested = |rest: &str, times: u32| {
        let begin = "{% set n = namespace(a=0) %}{% for i in range(";
        format!("{begin}{times}) %}}{{% set n.a = {rest} }}}}")
    };
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    for (template, reason) in [
        (doubled, "bytes"),
        (endless, "steps"),
        ("{{ 1 | tojson(indent=9223372036854775807) }}", "64 spaces"),
        ("{{ range(5) | slice(4000000000) }}", "slice"),
        ("{{ range(5) | batch(4000000000, 1) }}", "batch"),
        ("{{ 'a' | indent(4000000000) }}", "indent"),
        ("{{ '%1000000000s' | format('a') }}", "format"),
        ("{{ 'aaa'.count('') }}", "count"),
        (&nested("[n.a, n.a] %}{% endfor %}{{ n.a | string | length", 60), "format"),
        (&nested("[n.a] %}{% endfor %}{{ n.a", 5000), "format"),
        ("{{ [1] | tojson(separators=('x' * 1000, ' ')) }}", "separators"),
    ] {
        let error = ChatTemplate::new(template, None, None)
            .and_then(|template| {
                template.render(&turns(&[("user", &"x".repeat(10_000))]), &[], &[], UNIX_EPOCH)
            })
            .expect_err(template);
        assert!(error.to_string().contains(reason), "{template}: {error}");
    }
}

#[test]
fn harmless_filters_do_what_jinja_does() {
    for (template, expected) in [
        ("{{ [1, 2, 3] | slice(2) | list }}", "[[1, 2], [3]]"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}", "[[1, 2], [3, 0]]"),
        ("{{ 'a\nb\n\nc' | indent }}", "a\n    b\n\n    c"),
        ("{{ 'a\nb' | indent(2, true) }}", "  a\n  b"),
        ("{{ 'a\n\nb' | indent(width=1, blank=true) }}", "a\n \n b"),
        ("{{ '%5s|%.2f' | format('a', 0.5) }}", "    a|0.50"),
        ("{{ '100%% of 5000000 s' | format() }}", "100% of 5000000 s"),
        ("{{ 'banana'.count('an') }}", "2"),
    ] {
        let template_made = ChatTemplate::new(template, None, None).expect(template);
        assert_eq!(
            template_made.render(&turns(&[]), &[], &[], UNIX_EPOCH).expect(template),
            expected,
            "{template}"
        );
    }
}

#[test]
fn templates_are_told_the_date() {
    let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", None, None);
    let now = UNIX_EPOCH + Duration::from_secs(19_782 * 86400);
    assert_eq!(
        template.and_then(|it| it.render(&[], &[], &[], now)).expect("a date"),
        "29 Feb 2024"
    );
}

/// The expected texts are generated by `scripts/fixtures_chat.py`.
#[test]
fn constructs_of_published_templates_are_rendered_as_elsewhere() {
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../../tests/fixtures/chat_templates.json"))
            .expect("JSON");
    // 4 July 2025, 09:05:07.
    let now = UNIX_EPOCH + Duration::from_secs(20_273 * 86400 + 9 * 3600 + 5 * 60 + 7);
    let mut refused = 0;
    for case in &cases {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let message = |value: &serde_json::Value| {
            let mut more = value.as_object().expect("an object").clone();
            let role = more.remove("role").and_then(|role| text(&role)).expect("a role");
            let content = more.remove("content").and_then(|content| text(&content));
            ChatMessage { role, content: content.expect("content"), more }
        };
        let messages: Vec<ChatMessage> =
            case["messages"].as_array().expect("a list").iter().map(message).collect();
        let tools: Vec<String> =
            case["tools"].as_array().into_iter().flatten().map(ToString::to_string).collect();
        let variables = case["variables"].as_object().into_iter().flatten();
        let variables: Vec<(String, String)> =
            variables.map(|(name, value)| (name.clone(), value.to_string())).collect();
        let name = text(&case["name"]).expect("a name");
        let source = text(&case["template"]).expect("a template");
        let template = ChatTemplate::new(&source, Some("<s>"), Some("</s>")).expect(&name);
        match (template.render(&messages, &tools, &variables, now), text(&case["expected"])) {
            (Ok(rendered), Some(expected)) => assert_eq!(rendered, expected, "{name}"),
            (Err(ChatError::Render(words)), None) => {
                assert_eq!(Some(words), text(&case["refusal"]), "{name}");
                refused += 1;
            }
            (rendered, expected) => panic!("{name}: {rendered:?}, not {expected:?}"),
        }
    }
    assert!(refused > 1 && cases.len() - refused > 10, "{refused} of {} refused", cases.len());
}

#[test]
fn a_developers_message_is_the_systems_unless_the_template_names_developers() {
    let knows_system = "{% for m in messages %}{% if m.role == 'system' %}<s>{{ m.content }}\
        {% elif m.role == 'user' %}<u>{{ m.content }}{% endif %}{% endfor %}";
    let knows_both = "{% for m in messages %}<{{ m.role }}{% if m.role == 'developer' %}!\
        {% endif %}>{{ m.content }}{% endfor %}";
    let render = |text: &str| {
        let template = ChatTemplate::new(text, None, None).expect("a template");
        let message = |role: &str| {
            ChatMessage::new(role.to_owned(), "x".to_owned(), Vec::new()).with_role_for(&template)
        };
        let messages = ["developer", "system", "user"].map(message);
        template.render(&messages, &[], &[], SystemTime::UNIX_EPOCH).expect("rendered")
    };
    assert_eq!(render(knows_system), "<s>x<s>x<u>x");
    assert_eq!(render(knows_both), "<developer!>x<system>x<user>x");
}

/// The expected texts are generated by `scripts/fixtures_chat_snippets.py`.
#[test]
fn pieces_of_templates_write_what_jinja2_does() {
    let file: serde_json::Value =
        serde_json::from_str(include_str!("../../tests/fixtures/chat_snippets.json"))
            .expect("JSON");
    let variables = file["variables"].as_object().expect("by name");
    let variables: Vec<(String, String)> =
        variables.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    let mut wrong = Vec::new();
    let cases = file["cases"].as_array().expect("a list");
    for case in cases {
        let [template, expected] = [0, 1].map(|at| case[at].as_str().expect("a text"));
        let written = ChatTemplate::new(template, None, None)
            .and_then(|template| template.render(&[], &[], &variables, UNIX_EPOCH));
        match written {
            Ok(written) if written == expected => {}
            other => wrong.push(format!("{template:?}: {other:?}, not {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(cases.len() > 500, "{} are too few to say anything", cases.len());
}

#[test]
fn null_is_told_to_templates_that_ask_for_it() {
    let written = |template: &str, more: Vec<(String, String)>| {
        let message = ChatMessage::new("assistant".into(), String::new(), more);
        let template = ChatTemplate::new(template, None, None).expect("a template");
        template.render(&[message], &[], &[], UNIX_EPOCH).expect("rendered")
    };
    let null = || vec![("content".to_owned(), "null".to_owned())];
    let asks = "{% if messages[0]['content'] is none %}none{% else %}text{% endif %}";
    assert_eq!(written(asks, null()), "none");
    assert_eq!(written(asks, Vec::new()), "text");
    let takes = "<{{ messages[0]['content'] }}>{{ messages[0] | tojson }}";
    let told = r#"<>{"role": "assistant", "content": ""}"#;
    assert_eq!(written(takes, null()), told);
    assert_eq!(written(takes, Vec::new()), told);
}
