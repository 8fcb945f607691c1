//! Requests with functions, and answers that call them.

use engine_api::request::{AnswerGrammar, GenerationRequest};
use serde_json::{Value, json};
use testkit::byte_codec::END_OF_TEXT;
use testkit::schema::{assert_shape, chat_completion, tool_call};

use super::test_server::{CHAT, COMPLETIONS, TestServer};

/// Returns two functions.
fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "get", "description": "Gets.",
            "parameters": schema, "strict": true}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

/// Returns a request whose answer consists of the tools, `<user>` and `text`.
fn body(text: &str) -> Value {
    let content = format!("{text}{END_OF_TEXT}");
    json!({"messages": [{"role": "user", "content": content}], "tools": tools(), "max_tokens": 900})
}

/// Returns the part of an answer that precedes the text: the tools as the chat template renders
/// them.
fn tools_prompt() -> String {
    let tools = tools();
    let tools = tools.as_array().expect("a list").iter();
    tools.map(|tool| format!("<tool>{tool}")).collect::<String>() + "<user>"
}

const TWO: &str = "Well. <tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 5}}\n\
     </tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

fn test_server() -> TestServer {
    use super::clients::card;
    use super::fake_engine::FakeEngineOptions;
    let manner = FakeEngineOptions { context: 2048, ..FakeEngineOptions::default() };
    let mut card = card("echo");
    card.sampling.temperature = 0.0;
    TestServer::with_model(manner, crate::config::ServerOptions::default(), card)
}

/// Returns the message and the finish reason of a streamed answer.
fn joined(events: &[Value]) -> (Value, Value) {
    let (mut content, mut calls, mut reason) = (None::<String>, Vec::new(), Value::Null);
    for event in events {
        for choice in event["choices"].as_array().expect("choices") {
            assert_eq!(reason, Value::Null, "nothing follows the end");
            let delta = &choice["delta"];
            if let Some(piece) = delta["content"].as_str() {
                assert!(calls.is_empty(), "{event}");
                *content.get_or_insert_default() += piece;
            }
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let index = call["index"].as_u64().expect("an index") as usize;
                if index == calls.len() {
                    let function = json!({"name": call["function"]["name"], "arguments": ""});
                    let made =
                        json!({"id": call["id"], "type": call["type"], "function": function});
                    calls.push(made);
                } else {
                    assert_eq!(call.get("id"), None, "{event}");
                    assert_eq!(call["function"].get("name"), None, "{event}");
                }
                let arguments = &mut calls[index]["function"]["arguments"];
                let piece = call["function"]["arguments"].as_str().expect("a text");
                *arguments = (arguments.as_str().expect("a text").to_owned() + piece).into();
            }
            reason = choice["finish_reason"].clone();
        }
    }
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    (message, reason)
}

#[test]
fn calls_are_told_whole_and_in_streams() {
    let test_server = test_server();
    let mut ids = Vec::new();
    for choice in [json!(null), json!("auto")] {
        let mut body = body(TWO);
        body["tool_choice"] = choice;
        let answer = test_server.post(CHAT, &body).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let message = &choice["message"];
        assert_eq!(message["content"], format!("{}Well.", tools_prompt()));
        let calls = message["tool_calls"].as_array().expect("calls");
        assert_shape(&answer, &chat_completion());
        calls.iter().for_each(|call| assert_shape(call, &tool_call()));
        let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
        assert_eq!(*functions[0], json!({"name": "get", "arguments": "{\"a\": 5}"}));
        assert_eq!(*functions[1], json!({"name": "now", "arguments": "{}"}));
        assert!(calls.iter().all(|call| call["type"] == "function"));
        let call_id = |call: &Value| call["id"].as_str().expect("an id").to_owned();
        ids.extend(calls.iter().map(call_id));
        let tokens = choice["token_ids"].as_array().expect("ids").len() as u64;
        assert_eq!(answer["usage"]["completion_tokens"], tokens + 1);

        body["stream"] = json!(true);
        let events = test_server.post(CHAT, &body).events();
        let (mut streamed, reason) = joined(&events);
        assert_eq!(reason, "tool_calls");
        for (index, call) in
            streamed["tool_calls"].as_array_mut().expect("calls").iter_mut().enumerate()
        {
            ids.push(call_id(call));
            call["id"] = calls[index]["id"].clone();
        }
        assert_eq!(streamed, *message);
        // Tokens that are generated faster than the client reads them share an event.
        assert!(events.len() as u64 <= tokens + 1, "{} for {tokens} tokens", events.len());
    }
    assert!(ids.iter().all(|id| id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric())));
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8, "each call has its own");
}

#[test]
fn what_is_cut_is_told_as_far_as_it_goes() {
    let test_server = test_server();
    let from = TWO.find("5}}").expect("within the arguments");
    let mut cut = body(TWO);
    cut["max_tokens"] = json!(tools_prompt().len() + from);
    let answer = test_server.post(CHAT, &cut).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": ");
    cut["stream"] = json!(true);
    let (message, reason) = joined(&test_server.post(CHAT, &cut).events());
    assert_eq!(reason, "length");
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\": ");
    let mut stopped = body(TWO);
    stopped["stop"] = json!("now\", \"arg");
    let answer = test_server.post(CHAT, &stopped).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["tool_calls"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_answer_without_calls_is_one_without_functions() {
    let test_server = test_server();
    let plain = body("No call.");
    let answer = test_server.post(CHAT, &plain).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    let expected =
        json!({"role": "assistant", "content": tools_prompt() + "No call.", "refusal": null});
    assert_eq!(choice["message"], expected);
    // An answer that must call a function and does not is an error. The engine of these tests
    // ignores grammars, so it can generate one.
    let mut required = plain.clone();
    required["tool_choice"] = json!("required");
    let choice = &test_server.post(CHAT, &required).json()["choices"][0];
    assert_eq!(choice["finish_reason"], "error");
    assert!(choice["error"].as_str().is_some_and(|error| error.contains("calls no function")));
    // Arguments are checked even if no grammar enforced them.
    let wrong = body("<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": \"b\"}}</tool_call>");
    let choice = &test_server.post(CHAT, &wrong).json()["choices"][0];
    assert_eq!(choice["finish_reason"], "error");
    assert!(choice["error"].as_str().is_some_and(|error| error.contains("arguments")), "{choice}");
    // With `none`, the functions are not in the prompt either.
    let mut none = body(TWO);
    none["tool_choice"] = json!("none");
    let choice = &test_server.post(CHAT, &none).json()["choices"][0];
    assert_eq!(choice["message"]["content"], format!("<user>{TWO}"));
    let forms: Vec<bool> = test_server
        .engine
        .submissions()
        .iter()
        .map(|asked| asked.grammar != AnswerGrammar::None)
        .collect();
    assert_eq!(forms, [true, true, true, false]);
}

#[test]
fn a_conversation_goes_on_with_results() {
    let test_server = test_server();
    let call = json!({"id": "0a1b2c3d4", "type": "function",
        "function": {"arguments": "{\"a\": 1}", "name": "get"}});
    let mut body = body("");
    body["max_tokens"] = json!(1);
    body["messages"] = json!([
        {"role": "user", "content": "Get."},
        {"role": "assistant", "content": null, "tool_calls": [call], "refusal": null},
        {"role": "tool", "tool_call_id": "0a1b2c3d4", "content": [{"type": "text", "text": "7"}]},
        {"role": "assistant", "content": "Seven.", "tool_calls": []},
    ]);
    assert_eq!(test_server.post(CHAT, &body).status, 200);
    let prompt: Vec<u8> =
        test_server.engine.submissions()[0].prompt.iter().map(|token| *token as u8).collect();
    let prompt = String::from_utf8(prompt).expect("UTF-8");
    let expected = "<user>Get.<assistant content=null tool_calls=[{\"id\":\"0a1b2c3d4\",\
         \"type\":\"function\",\"function\":{\"name\":\"get\",\"arguments\":{\"a\":1}}}]><tool \
         tool_call_id=\"0a1b2c3d4\">7<assistant>Seven.";
    assert_eq!(
        prompt.split_once("<user>").map(|(_, rest)| format!("<user>{rest}")).as_deref(),
        Some(expected)
    );
    let tokenized = json!({"messages": body["messages"], "tools": tools()});
    let tokens = test_server.post("/tokenize", &tokenized).json()["count"].clone();
    assert_eq!(tokens, prompt.len());
}

#[test]
fn wrong_functions_are_refused_with_a_sentence() {
    let test_server = test_server();
    let function = |name: &str, parameters: Value| {
        let function = json!({"name": name, "parameters": parameters});
        json!([{"type": "function", "function": function}])
    };
    let object = json!({"type": "object"});
    let deep = (0..60)
        .fold(object.clone(), |schema, _| json!({"type": "object", "properties": {"a": schema}}));
    let deeper = (0..45).fold(deep, |schema, _| json!({"items": schema}));
    let twice =
        [function("f", object.clone())[0].clone(), function("f", object.clone())[0].clone()];
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (field, value, word) in [
        ("tools", json!({}), "an array"),
        ("tools", json!([5]), "an array"),
        ("tools", json!([{"type": "retrieval"}]), "an array"),
        ("tools", json!([{"type": "function", "function": {}}]), "an array"),
        ("tools", function("f g", object.clone()), "\\\"f g\\\" must consist of"),
        ("tools", function("", object.clone()), "must consist of"),
        ("tools", function("é\"", object.clone()), "must consist of"),
        ("tools", function(&"f".repeat(65), object.clone()), "must consist of"),
        ("tools", function("f", json!({"type": "string"})), "a JSON Schema of an object"),
        ("tools", function("f", json!("object")), "a JSON Schema of an object"),
        (
            "tools",
            function("f", json!({"properties": {"a": {"type": "objekt"}}})),
            "parameters of `f`",
        ),
        ("tools", function("f", deeper), "recursion limit"),
        ("tools", json!(twice), "`f`"),
        ("tool_choice", json!("sometimes"), "must be"),
        ("tool_choice", json!({"type": "function"}), "must be"),
        ("tool_choice", named("other"), "one of the"),
        ("parallel_tool_calls", json!("no"), "a boolean"),
        ("ignore_eos", json!(true), "false for a request with tools"),
    ] {
        let mut body = body("a");
        body[field] = value;
        let reply = test_server.post(CHAT, &body);
        assert_eq!(reply.status, 400, "{field}: {}", reply.text());
        let error = reply.text();
        assert!(error.contains(word) && error.contains('.'), "{error}");
    }
    let earlier = |calls: Value| {
        let mut body = body("a");
        body["messages"] = json!([{"role": "assistant", "content": null, "tool_calls": calls}]);
        test_server.post(CHAT, &body)
    };
    for calls in [
        json!({}),
        json!([{}]),
        json!([{"function": {"name": 5}}]),
        json!([{"function": {"name": "f", "arguments": 5}}]),
        json!([{"function": {"name": "f", "arguments": []}}]),
    ] {
        let reply = earlier(calls.clone());
        assert_eq!(reply.status, 400, "{calls}");
        assert!(reply.text().contains("tool_calls"), "{}", reply.text());
    }
    assert_eq!(earlier(json!([{"function": {"name": "f", "arguments": ""}}])).status, 200);
    let text = json!({"prompt": "a", "tools": tools()});
    assert_eq!(test_server.post(COMPLETIONS, &text).status, 400);
    let chosen = json!({"prompt": "a", "tool_choice": "required"});
    assert_eq!(test_server.post(COMPLETIONS, &chosen).status, 400);
    assert_eq!(test_server.engine.submissions().len(), 1);
}

/// With functions, the response format applies to answers that call none.
#[test]
fn functions_stand_beside_a_response_format() {
    let test_server = test_server();
    let schema = json!({"type": "object", "properties": {"b": {"type": "boolean"}},
        "required": ["b"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let asked = |text: &str, choice: &str| {
        let content = format!("{text}{END_OF_TEXT}");
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 900,
            "tools": tools(), "tool_choice": choice, "response_format": format})
    };
    // The engine repeats the prompt, so the tools and `<user>` precede the text of every answer.
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 5}}\n</tool_call>";
    for (text, choice, reason) in [
        (call, "auto", "tool_calls"),
        ("No JSON.", "auto", "error"),
        (call, "required", "tool_calls"),
        ("{\"b\": true}", "required", "error"),
    ] {
        let mut body = asked(text, choice);
        let answer = test_server.post(CHAT, &body).json();
        assert_eq!(answer["choices"][0]["finish_reason"], reason, "{text} {choice}: {answer}");
        body["stream"] = json!(true);
        let (message, streamed) = joined(&test_server.post(CHAT, &body).events());
        assert_eq!(streamed, reason, "{text} {choice}");
        assert_eq!(message["content"], answer["choices"][0]["message"]["content"]);
    }
    let forms = test_server.engine.submissions();
    let grammar_of = |asked: &GenerationRequest| match &asked.grammar {
        AnswerGrammar::Prepared(prepared) => Some(prepared.grammar.clone()),
        AnswerGrammar::None | AnswerGrammar::Number(_) => None,
    };
    let both = forms
        .iter()
        .filter(|asked| matches!(grammar_of(asked).as_deref(), Some(grammar::Grammar::CallsOr(_))));
    assert_eq!(both.count(), 4, "with auto");
    let mut none = asked("{\"b\": true}", "none");
    none["messages"] = json!([{"role": "user", "content": "a"}]);
    assert_eq!(test_server.post(CHAT, &none).status, 200);
    let last = test_server.engine.submissions().pop().and_then(|asked| grammar_of(&asked));
    assert!(matches!(last.as_deref(), Some(grammar::Grammar::JsonSchema(..))), "{last:?}");
}

/// A function's schema that cannot be enforced during generation is checked at the end, and does
/// not make the request fail.
#[test]
fn a_schema_that_cannot_be_held_is_looked_at_in_the_end() {
    let test_server = test_server();
    let unique = json!({"type": "object", "properties": {"ids": {"type": "array",
        "items": {"type": "string"}, "uniqueItems": true}}});
    let with_ids = |ids: &str| {
        let text = format!(
            "<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"ids\": {ids}}}}}\n</tool_call>"
        );
        let mut body = body(&text);
        let function = json!({"name": "f", "parameters": unique});
        body["tools"]
            .as_array_mut()
            .expect("a list")
            .push(json!({"type": "function", "function": function}));
        body
    };
    let answer = test_server.post(CHAT, &with_ids("[\"x\", \"y\"]")).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
    let warning = answer["warnings"][0].as_str().expect("a sentence");
    assert!(warning.contains("`f`") && warning.contains("uniqueItems"), "{warning}");
    let mut body = with_ids("[\"x\", \"x\"]");
    let answer = test_server.post(CHAT, &body).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "error", "{answer}");
    let error = answer["choices"][0]["error"].as_str().expect("a sentence");
    assert!(error.contains("unique"), "{error}");
    body["stream"] = json!(true);
    let events = test_server.post(CHAT, &body).events();
    let (last, others) = events.split_last().expect("events");
    assert_eq!(last["warnings"], answer["warnings"]);
    assert!(others.iter().all(|event| event.get("warnings").is_none()));
}

/// Messages are accepted as OpenAI returns them.
#[test]
fn messages_come_back_as_they_were_returned() {
    let test_server = test_server();
    let call = |arguments: &str| {
        json!([{"id": "0a1b2c3d4", "type": "function",
            "function": {"name": "get", "arguments": arguments}}])
    };
    let answers = [
        json!({"role": "assistant", "content": null, "refusal": "No.", "annotations": []}),
        json!({"role": "assistant", "content": null, "audio": null}),
        json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]}),
        json!({"role": "assistant", "content": null, "tool_calls": call("{\"a\": \"Os")}),
        json!({"role": "assistant", "content": null, "tool_calls": call("five")}),
    ];
    let expected = [
        "<assistant>No.",
        "<assistant content=null>",
        "<assistant>Never.",
        "<assistant content=null tool_calls=[{\"id\":\"0a1b2c3d4\",\"type\":\"function\",\
         \"function\":{\"name\":\"get\",\"arguments\":{\"a\":\"Os\"}}}]>",
        "<assistant content=null tool_calls=[{\"id\":\"0a1b2c3d4\",\"type\":\"function\",\
         \"function\":{\"name\":\"get\",\"arguments\":\"five\"}}]>",
    ];
    for (answer, expected) in answers.into_iter().zip(expected) {
        let user = json!({"role": "user", "content": "Again."});
        let body = json!({"messages": [answer, user], "max_tokens": 1});
        let reply = test_server.post(CHAT, &body);
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        let prompt = test_server.engine.submissions().pop().expect("a request").prompt;
        let prompt: Vec<u8> = prompt.iter().map(|token| *token as u8).collect();
        let prompt = String::from_utf8(prompt).expect("UTF-8");
        assert!(prompt.contains(&format!("{expected}<user>Again.")), "{prompt}");
    }
    let body = json!({"messages": [{"role": "user", "content": null}], "max_tokens": 1});
    assert_eq!(test_server.post(CHAT, &body).status, 400);
}
