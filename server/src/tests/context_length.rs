//! Prompts and answers that exceed the context: refused in OpenAI's words if no useful answer is
//! possible, and otherwise shortened with a warning.

use serde_json::{Value, json};

use super::test_server::{CHAT, COMPLETIONS, TestServer};

fn refused(test_server: &TestServer, path: &str, body: &Value) -> (String, String) {
    let reply = test_server.post(path, body);
    let error = reply.json()["error"].clone();
    assert_eq!(reply.status, 400, "{error}");
    assert_eq!(error["code"], "context_length_exceeded", "{error}");
    assert_eq!(error["type"], "invalid_request_error");
    let text = |name: &str| error[name].as_str().expect("a text").to_owned();
    (text("message"), text("param"))
}

/// Proxies and agents look for these words to shorten a conversation and retry.
#[test]
fn too_long_a_prompt_is_refused_in_the_words_that_clients_look_for() {
    let test_server = TestServer::new();
    let long = "a".repeat(300);
    let body = json!({"prompt": long, "max_tokens": 5});
    let expected = "This model's maximum context length is 256 tokens. However, you requested 306 \
                    tokens (301 in the prompt, 5 in the completion). Please reduce the length of \
                    the prompt or completion.";
    assert_eq!(
        refused(&test_server, COMPLETIONS, &body),
        (expected.to_owned(), "prompt".to_owned())
    );
    let messages = json!([{"role": "user", "content": long}]);
    let body = json!({"messages": messages, "max_completion_tokens": 5});
    let expected = "This model's maximum context length is 256 tokens. However, you requested 311 \
                    tokens (306 in the messages, 5 in the completion). Please reduce the length \
                    of the messages or completion.";
    assert_eq!(refused(&test_server, CHAT, &body), (expected.to_owned(), "messages".to_owned()));
    let body = json!({"messages": messages, "stream": true});
    let expected = "This model's maximum context length is 256 tokens. However, your messages \
                    resulted in 306 tokens. Please reduce the length of the messages.";
    assert_eq!(refused(&test_server, CHAT, &body), (expected.to_owned(), "messages".to_owned()));
    // A prompt that fills the context leaves no positions for an answer.
    let full = json!({"prompt": "a".repeat(255)});
    let (message, _) = refused(&test_server, COMPLETIONS, &full);
    assert!(message.contains("256 tokens, which leave none for the completion"), "{message}");
    assert_eq!(test_server.engine.submissions().len(), 0);
}

#[test]
fn an_answer_with_a_format_or_tools_is_never_cut_by_the_context() {
    let test_server = TestServer::new();
    let messages = json!([{"role": "user", "content": "a"}]);
    let schema = json!({"name": "s", "schema": {"type": "object"}});
    let function = json!({"type": "function", "function": {"name": "f"}});
    for (name, value) in [
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": schema})),
        ("structured_outputs", json!({"regex": "a+"})),
        ("tools", json!([function])),
    ] {
        let body = |max_tokens: usize| {
            let mut body = json!({"messages": messages, "max_tokens": max_tokens});
            body[name] = value.clone();
            body
        };
        // The chat template puts the tools before the messages.
        let tools_len = if name == "tools" { format!("<tool>{function}").len() } else { 0 };
        let prompt = tools_len + "<user>a".len();
        let max_tokens = 256 - prompt;
        let (message, _) = refused(&test_server, CHAT, &body(max_tokens + 1));
        let most = max_tokens + 1;
        let expected = format!("257 tokens ({prompt} in the messages, {most} in the completion)");
        assert!(message.contains(&expected), "{name}: {message}");
        let reply = test_server.post(CHAT, &body(max_tokens));
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        assert_eq!(reply.json().get("warnings"), None, "{name}");
    }
    // Without `max_tokens` an answer may use the rest of the context.
    let body = json!({"messages": messages, "response_format": {"type": "json_object"}});
    assert_eq!(test_server.post(CHAT, &body).status, 200);
}

#[test]
fn any_other_answer_says_that_it_was_shortened() {
    let test_server = TestServer::new();
    let body = json!({"prompt": "a", "max_tokens": 1_000_000});
    let answer = test_server.post(COMPLETIONS, &body).json();
    let expected = "max_tokens was reduced to 254: the maximum context length is 256 tokens and \
                    the prompt has 2.";
    assert_eq!(answer["warnings"], json!([expected]));
    assert_eq!(answer["usage"]["completion_tokens"], 254);
    let mut body = body;
    body["stream"] = json!(true);
    let events = test_server.post(COMPLETIONS, &body).events();
    let (last, others) = events.split_last().expect("events");
    assert_eq!(last["warnings"], json!([expected]));
    assert!(others.iter().all(|event| event.get("warnings").is_none()));
    let several = json!({"prompt": ["a", "b".repeat(99), "c"], "max_tokens": 254});
    let answer = test_server.post(COMPLETIONS, &several).json();
    let expected = "max_tokens was reduced for 1 of 3 prompts: the maximum context length is 256 \
                    tokens.";
    assert_eq!(answer["warnings"], json!([expected]));
    for plain in [
        json!({"messages": [{"role": "user", "content": "a"}]}),
        json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 249}),
    ] {
        assert_eq!(test_server.post(CHAT, &plain).json().get("warnings"), None, "{plain}");
    }
}
