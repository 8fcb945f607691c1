//! Anthropic's Messages API.

use std::sync::Arc;

use engine_api::request::AnswerGrammar;
use serde_json::{Value, json};
use testkit::byte_codec::{ByteCodec, END_OF_TEXT};

use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, exchange, request};
use super::test_server::TestServer;
use crate::api_key::ApiKey;
use crate::config::{ModelCard, ServerOptions};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn server_with(codec: ByteCodec, options: ServerOptions) -> TestServer {
    let manner = FakeEngineOptions { context: 2048, ..FakeEngineOptions::default() };
    let mut card = ModelCard { codec: Some(Arc::new(codec)), ..card("echo") };
    card.sampling.temperature = 0.0;
    TestServer::with_model(manner, options, card)
}

fn server() -> TestServer {
    server_with(ByteCodec::CHAT, ServerOptions::default())
}

/// Returns a request whose answer is `<user>` and `text`.
fn body(text: &str) -> Value {
    let content = format!("{text}{END_OF_TEXT}");
    json!({"model": "echo", "max_tokens": 900, "messages": [{"role": "user", "content": content}]})
}

fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    json!([{"name": "get", "description": "Gets.", "input_schema": schema,
        "cache_control": {"type": "ephemeral"}}])
}

/// Returns the prompt of the last submission.
fn prompt(server: &TestServer) -> String {
    let prompt = server.engine.submissions().pop().expect("a request").prompt;
    String::from_utf8(prompt.iter().map(|token| *token as u8).collect()).expect("UTF-8")
}

/// Returns the types of events, and the message that they add up to.
fn accumulate(events: &[Value]) -> (Vec<String>, Value) {
    let mut message = Value::Null;
    let mut kinds = Vec::new();
    for event in events {
        let kind = event["type"].as_str().expect("a type").to_owned();
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        match kind.as_str() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let blocks = message["content"].as_array_mut().expect("blocks");
                assert_eq!(blocks.len(), index);
                let mut block = event["content_block"].clone();
                if block["type"] == "tool_use" {
                    assert_eq!(block["input"], json!({}));
                    block["input"] = json!("");
                }
                blocks.push(block);
            }
            "content_block_delta" => {
                let block = &mut message["content"][index];
                let (field, piece) = match event["delta"]["type"].as_str().expect("a type") {
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("signature", "signature"),
                    "input_json_delta" => ("input", "partial_json"),
                    other => panic!("{other}"),
                };
                let piece = event["delta"][piece].as_str().expect("a text");
                block[field] = (block[field].as_str().expect("a text").to_owned() + piece).into();
            }
            "content_block_stop" => {
                let block = &mut message["content"][index];
                if let Some(input) = block["input"].as_str() {
                    block["input"] = serde_json::from_str(input).expect("JSON");
                }
            }
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = event["delta"][field].clone();
                }
                message["usage"] = event["usage"].clone();
                if let Some(warnings) = event.get("warnings") {
                    message["warnings"] = warnings.clone();
                }
            }
            _ => {}
        }
        if kinds.last() != Some(&kind) {
            kinds.push(kind);
        }
    }
    (kinds, message)
}

/// Sends a request as a whole and as a stream; checks that both have equal messages apart from
/// their ids, and returns the message and the types of the events.
fn both(server: &TestServer, body: &Value) -> (Value, Vec<String>) {
    let reply = server.post(MESSAGES, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    let mut streamed_body = body.clone();
    streamed_body["stream"] = json!(true);
    let (kinds, mut streamed) = accumulate(&server.post(MESSAGES, &streamed_body).named_events());
    streamed["id"] = whole["id"].clone();
    let blocks = whole["content"].as_array().expect("blocks").clone();
    for (index, block) in blocks.iter().enumerate() {
        for field in ["id", "signature"] {
            if let Some(value) = block.get(field).cloned() {
                assert!(
                    streamed["content"][index][field].as_str().is_some_and(|id| !id.is_empty())
                );
                streamed["content"][index][field] = value;
            }
        }
    }
    assert_eq!(streamed, whole);
    (whole, kinds)
}

#[test]
fn a_message_has_the_fields_of_the_api() {
    let server = server();
    let mut body = body("Hi");
    body["system"] = json!([{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief."}]);
    body["metadata"] = json!({"user_id": "me"});
    let (message, kinds) = both(&server, &body);
    assert!(message["id"].as_str().expect("an id").starts_with("msg_"));
    let text = "<system>Be\nbrief.<user>Hi";
    let expected = json!({
        "id": message["id"], "type": "message", "role": "assistant", "model": "echo",
        "content": [{"type": "text", "text": text, "citations": null}],
        "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": text.len(), "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1, "output_tokens": text.len() + 1},
    });
    assert_eq!(message, expected);
    let order = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, order);
}

#[test]
fn answers_end_for_the_reasons_of_the_api() {
    let server = server();
    let mut cut = body("Hello");
    cut["max_tokens"] = json!(8);
    let (message, _) = both(&server, &cut);
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("max_tokens"), &json!(null))
    );
    assert_eq!(message["content"][0]["text"], "<user>He");
    let mut stopped = body("Hello you");
    stopped["stop_sequences"] = json!(["zz", "lo"]);
    let (message, _) = both(&server, &stopped);
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("stop_sequence"), &json!("lo"))
    );
    assert_eq!(message["content"][0]["text"], "<user>Hel");
}

#[test]
fn thoughts_are_blocks_and_come_back() {
    let server = server_with(ByteCodec::THINKING, ServerOptions::default());
    let mut thinking = body("So.\n</think>\n\nYes.");
    thinking["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    thinking["chat_template_kwargs"] = json!({"think": true});
    let (message, _) = both(&server, &thinking);
    assert_eq!(message["content"][0]["thinking"], "<user>So.");
    // The markers of this model are no single tokens.
    assert!(message["warnings"][0].as_str().is_some_and(|one| one.contains("has no effect")));
    assert_eq!(message["content"][1]["text"], "Yes.");
    let tokens = "<user>So.\n</think>".len();
    assert_eq!(message["usage"]["output_tokens_details"]["thinking_tokens"], tokens);
    let mut next = body("");
    next["messages"] = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": "b"}]);
    next["max_tokens"] = json!(1);
    assert_eq!(server.post(MESSAGES, &next).status, 200);
    assert_eq!(prompt(&server), "<user>a<assistant reasoning_content=\"<user>So.\">Yes.<user>b");
}

#[test]
fn tools_are_used_and_their_results_read() {
    let server = server();
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 5}}\n</tool_call>";
    let mut asked = body(&format!("Well. {call}"));
    asked["tools"] = tools();
    let (message, _) = both(&server, &asked);
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let text = message["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("\"name\":\"get\"") && text.ends_with("<user>Well."), "{text}");
    let used = &message["content"][1];
    assert_eq!((&used["type"], &used["name"]), (&json!("tool_use"), &json!("get")));
    assert_eq!(used["input"], json!({"a": 5}));
    assert_ne!(server.engine.submissions()[0].grammar, AnswerGrammar::None);

    let mut next = json!({"max_tokens": 1, "tools": tools()});
    next["messages"] = json!([
        {"role": "user", "content": "Get."},
        {"role": "assistant", "content": [{"type": "text", "text": "Well."},
            {"type": "tool_use", "id": "0a1b2c3d4", "name": "get", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "0a1b2c3d4",
                "content": [{"type": "text", "text": "7"}]},
            {"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
        {"role": "user", "content": "Go."}]);
    assert_eq!(server.post(MESSAGES, &next).status, 200);
    let shown = prompt(&server);
    let expected = "<user>Get.<assistant tool_calls=[{\"id\":\"0a1b2c3d4\",\"type\":\"function\",\
        \"function\":{\"name\":\"get\",\"arguments\":{\"a\":1}}}]>Well.<tool \
        tool_call_id=\"0a1b2c3d4\">7<user>And\nnow?\nGo.";
    assert_eq!(
        shown.split_once("<user>").map(|(_, rest)| format!("<user>{rest}")).as_deref(),
        Some(expected)
    );
    let count = json!({"messages": next["messages"], "tools": tools(), "model": "echo"});
    let counted = server.post(COUNT, &count).json();
    assert_eq!(counted, json!({"input_tokens": shown.len()}));
}

#[test]
fn a_choice_of_tools_restricts_the_answer() {
    let server = server();
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 5}}\n</tool_call>";
    for (choice, expected) in [
        (json!({"type": "auto", "disable_parallel_tool_use": true}), Some((false, false))),
        (json!({"type": "any"}), Some((true, true))),
        (json!({"type": "tool", "name": "get"}), Some((true, false))),
        (json!({"type": "none"}), None),
    ] {
        let mut asked = body(call);
        asked["tools"] = tools();
        asked["tool_choice"] = choice.clone();
        assert_eq!(server.post(MESSAGES, &asked).status, 200, "{choice}");
        let grammar = server.engine.submissions().pop().expect("a request").grammar;
        let calls = match &grammar {
            AnswerGrammar::Prepared(prepared) => prepared.grammar.calls(),
            _ => None,
        };
        let found = calls.map(|calls| (calls.is_required, calls.are_several));
        assert_eq!(found, expected, "{choice}");
    }
    // An answer that is not what was requested is an error.
    let mut required = body("No call.");
    required["tools"] = tools();
    required["tool_choice"] = json!({"type": "any"});
    let reply = server.post(MESSAGES, &required);
    assert_eq!(reply.status, 500);
    assert_eq!(reply.json()["error"]["type"], "api_error");
    required["stream"] = json!(true);
    let events = server.post(MESSAGES, &required).named_events();
    let last = events.last().expect("an event");
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
}

#[test]
fn an_answer_continues_the_assistant_and_follows_a_format() {
    let server = server();
    let mut prefilled = body("a");
    prefilled["messages"] =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    prefilled["max_tokens"] = json!(1);
    assert_eq!(server.post(MESSAGES, &prefilled).status, 200);
    assert_eq!(prompt(&server), "<user>a<assistant>b<continued>");
    let format = json!({"type": "json_schema", "schema": {"type": "object", "properties": {}}});
    for (field, value) in [
        ("output_config", json!({"format": format, "effort": "max"})),
        ("output_format", format.clone()),
    ] {
        let mut formatted = body("{}");
        formatted[field] = value;
        server.post(MESSAGES, &formatted);
        let submitted = server.engine.submissions().pop().expect("a request");
        assert_ne!(submitted.grammar, AnswerGrammar::None, "{field}");
    }
}

fn is_refused(reply: &Reply, word: &str) {
    assert_eq!(reply.status, 400, "{word}: {}", reply.text());
    let error = reply.json();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("invalid_request_error"))
    );
    assert!(error["request_id"].as_str().is_some_and(|id| id.starts_with("req_")), "{error}");
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains(word) && message.ends_with('.'), "{word}: {message}");
}

#[test]
fn what_is_wrong_or_unknown_is_refused_by_name() {
    let server = server();
    let message = |role: &str, content: Value| json!([{"role": role, "content": content}]);
    for (field, value, word) in [
        ("messages", json!([]), "must not be empty"),
        ("messages", json!("a"), "'messages'"),
        ("messages", json!([5]), "'messages'"),
        ("messages", message("tool", json!("a")), "'role'"),
        ("messages", message("user", json!(5)), "'content'"),
        ("messages", message("user", json!([{"text": "a"}])), "'type'"),
        ("messages", message("user", json!([{"type": "text"}])), "'text'"),
        ("messages", message("user", json!([{"type": "image", "source": {}}])), "'image'"),
        (
            "messages",
            message("user", json!([{"type": "tool_result", "content": "a"}])),
            "tool_use_id",
        ),
        ("messages", message("assistant", json!([{"type": "tool_use", "id": "a"}])), "tool_use"),
        ("messages", message("assistant", json!([{"type": "thinking"}])), "thinking"),
        ("system", json!(5), "'system'"),
        ("system", json!([{"type": "image"}]), "'image'"),
        ("max_tokens", json!(0), "'max_tokens'"),
        ("stop_sequences", json!([""]), "'stop_sequences'"),
        ("stop_sequences", json!(vec!["a"; 99]), "'stop_sequences'"),
        ("temperature", json!(3), "'temperature'"),
        ("tools", json!([{"name": "f"}]), "input_schema"),
        (
            "tools",
            json!([{"type": "web_search_20250305", "name": "web_search"}]),
            "'web_search_20250305'",
        ),
        ("tools", json!([{"name": "f", "input_schema": {}, "other": 1}]), "'other'"),
        ("tools", json!([{"name": "f g", "input_schema": {}}]), "must consist of"),
        ("tool_choice", json!({"type": "some"}), "'tool_choice'"),
        ("tool_choice", json!({"type": "tool", "name": "other"}), "'tool_choice'"),
        ("thinking", json!({"type": "on"}), "'thinking'"),
        ("thinking", json!({"type": "enabled", "budget_tokens": "many"}), "'thinking'"),
        ("output_config", json!({"effort": 3}), "'effort'"),
        ("output_config", json!({"format": {"type": "text"}}), "'format'"),
        ("mcp_servers", json!([{}]), "mcp_servers"),
        (
            "context_management",
            json!({"edits": [{"type": "compact_20260112"}]}),
            "context_management",
        ),
        ("n", json!(2), "n."),
        ("nonsense", json!(1), "nonsense"),
    ] {
        let mut wrong = body("a");
        wrong[field] = value;
        is_refused(&server.post(MESSAGES, &wrong), word);
    }
    // Clients that let the server keep a conversation send it themselves instead.
    let mut threaded = body("a");
    threaded["thread"] = json!({"type": "create"});
    let reply = server.post(MESSAGES, &threaded);
    assert!(reply.header("request-id").is_some_and(|id| id.starts_with("req_")));
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!((reply.status, &reply.json()["error"]["details"]), (400, &details));
    is_refused(&server.post(COUNT, &json!({"model": "echo"})), "'messages'");
    let model = server.post(MESSAGES, &json!({"model": "other", "messages": []}));
    assert_eq!((model.status, &model.json()["error"]["type"]), (404, &json!("not_found_error")));
    assert_eq!(server.get(MESSAGES).json()["error"]["type"], "invalid_request_error");
    assert_eq!(server.engine.submissions().len(), 0);
}

#[test]
fn the_key_may_be_in_either_header() {
    let options = ServerOptions { api_key: Some(ApiKey::new("k")), ..ServerOptions::default() };
    let server = server_with(ByteCodec::CHAT, options);
    let send = |headers: &str| {
        let body = body("a").to_string();
        exchange(server.address, &request("POST", MESSAGES, headers, body.as_bytes()))
    };
    assert_eq!(send("X-Api-Key: k\r\n").status, 200);
    assert_eq!(send("Authorization: Bearer k\r\n").status, 200);
    let refused = send("X-Api-Key: other\r\n");
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
}
