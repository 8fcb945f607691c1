//! OpenAI's Responses API.

use std::path::Path;
use std::sync::Arc;

use engine_api::request::AnswerGrammar;
use serde_json::{Value, json};
use testkit::byte_codec::{ByteCodec, END_OF_TEXT};

use super::clients::card;
use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, exchange, request};
use super::test_server::TestServer;
use crate::config::{ModelCard, ResponseStorage, ServerOptions};

const RESPONSES: &str = "/v1/responses";

fn server_with(codec: ByteCodec, storage: Option<&Path>) -> TestServer {
    let manner = FakeEngineOptions { context: 2048, ..FakeEngineOptions::default() };
    let mut card = ModelCard { codec: Some(Arc::new(codec)), ..card("echo") };
    card.sampling.temperature = 0.0;
    let response_storage =
        storage.map(|path| ResponseStorage { path: path.to_owned(), max_bytes: 1 << 20 });
    let options = ServerOptions { response_storage, ..ServerOptions::default() };
    TestServer::with_model(manner, options, card)
}

fn server() -> TestServer {
    server_with(ByteCodec::CHAT, None)
}

/// Returns a request whose answer is `<user>` and `text`.
fn body(text: &str) -> Value {
    json!({"model": "echo", "input": format!("{text}{END_OF_TEXT}")})
}

fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    json!([{"type": "function", "name": "get", "description": "Gets.", "parameters": schema,
        "strict": true}])
}

/// Returns the prompt of the last submission.
fn prompt(server: &TestServer) -> String {
    let prompt = server.engine.submissions().pop().expect("a request").prompt;
    String::from_utf8(prompt.iter().map(|token| *token as u8).collect()).expect("UTF-8")
}

fn send(server: &TestServer, method: &str, path: &str) -> Reply {
    exchange(server.address, &request(method, path, "", b""))
}

/// Checks the order of a stream's events, and returns the response of the last one and the types of
/// the events without repetitions.
fn check_stream(events: &[Value]) -> (Value, Vec<String>) {
    let mut kinds: Vec<String> = Vec::new();
    let mut items: Vec<Value> = Vec::new();
    let mut text = String::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let kind = event["type"].as_str().expect("a type").to_owned();
        match kind.as_str() {
            "response.output_item.added" => {
                assert_eq!(event["output_index"], items.len());
                assert_eq!(event["item"]["status"], "in_progress");
                text.clear();
            }
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => {
                text.push_str(event["delta"].as_str().expect("a text"));
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], *text);
            }
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], *text),
            "response.content_part.done" => assert_eq!(event["part"]["text"], *text),
            "response.output_item.done" => items.push(event["item"].clone()),
            _ => {}
        }
        if kinds.last() != Some(&kind) {
            kinds.push(kind);
        }
    }
    let response = events.last().expect("events")["response"].clone();
    assert_eq!(response["output"], json!(items));
    (response, kinds)
}

/// Sends a request as a whole and as a stream; checks that both have equal responses apart from
/// their ids and times, and returns the whole one and the types of the events.
fn both(server: &TestServer, body: &Value) -> (Value, Vec<String>) {
    let reply = server.post(RESPONSES, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let whole = reply.json();
    let mut streamed_body = body.clone();
    streamed_body["stream"] = json!(true);
    let events = server.post(RESPONSES, &streamed_body).named_events();
    let (mut streamed, kinds) = check_stream(&events);
    for field in ["id", "created_at", "completed_at"] {
        assert_eq!(streamed[field].is_null(), whole[field].is_null(), "{field}");
        streamed[field] = whole[field].clone();
    }
    for (index, item) in whole["output"].as_array().expect("items").iter().enumerate() {
        for field in ["id", "call_id"] {
            if let Some(value) = item.get(field) {
                streamed["output"][index][field] = value.clone();
            }
        }
    }
    assert_eq!(streamed, whole);
    (whole, kinds)
}

#[test]
fn a_response_has_the_fields_of_the_api() {
    let server = server();
    let mut asked = body("Hi");
    asked["instructions"] = json!("Be brief.");
    asked["metadata"] = json!({"a": "b"});
    asked["store"] = json!(true);
    asked["include"] = json!(["reasoning.encrypted_content"]);
    let (response, kinds) = both(&server, &asked);
    let text = "<system>Be brief.<user>Hi";
    let id = response["id"].as_str().expect("an id").strip_prefix("resp_").expect("a prefix");
    let content = json!([{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]);
    let expected = json!({
        "id": response["id"], "object": "response", "created_at": response["created_at"],
        "completed_at": response["completed_at"], "status": "completed", "error": null,
        "incomplete_details": null, "model": "echo", "instructions": "Be brief.",
        "output": [{"type": "message", "id": format!("msg_{id}_0"), "role": "assistant",
            "content": content, "status": "completed"}],
        "usage": {"input_tokens": text.len() + 1,
            "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
            "output_tokens": text.len() + 1, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2 * text.len() + 2},
        "temperature": 0.0, "top_p": 1.0, "background": false, "max_output_tokens": null,
        "max_tool_calls": null, "metadata": {"a": "b"}, "parallel_tool_calls": true,
        "previous_response_id": null, "prompt_cache_key": null,
        "reasoning": {"effort": null, "summary": null}, "safety_identifier": null,
        "service_tier": "default", "store": false,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
        "tools": [], "top_logprobs": 0, "truncation": "disabled", "user": null,
    });
    assert_eq!(response, expected);
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, order);
}

#[test]
fn a_cut_or_empty_response_says_so() {
    let server = server();
    let mut cut = body("Hello");
    cut["max_output_tokens"] = json!(8);
    let (response, kinds) = both(&server, &cut);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!(response["output"][0]["content"][0]["text"], "<user>He");
    assert_eq!(kinds.last().map(String::as_str), Some("response.incomplete"));
    let mut empty = body("a");
    empty["stop"] = json!("<user>");
    let (response, _) = both(&server, &empty);
    assert_eq!(response["output"][0]["content"][0]["text"], "");
    let mut likely = body("ab");
    likely["top_logprobs"] = json!(2);
    let (response, _) = both(&server, &likely);
    let logprobs = response["output"][0]["content"][0]["logprobs"].as_array().expect("a list");
    assert_eq!(logprobs.len(), "<user>ab".len());
    assert_eq!(
        (&logprobs[6]["token"], logprobs[6]["top_logprobs"].as_array().map(Vec::len)),
        (&json!("a"), Some(2))
    );
}

#[test]
fn reasoning_is_an_item_and_comes_back() {
    let server = server_with(ByteCodec::THINKING, None);
    let mut asked = body("So.\n</think>\n\nYes.");
    asked["chat_template_kwargs"] = json!({"think": true});
    asked["include"] = json!(["reasoning.encrypted_content"]);
    let (response, kinds) = both(&server, &asked);
    assert!(kinds.contains(&"response.reasoning_text.delta".to_owned()), "{kinds:?}");
    let reasoning = &response["output"][0];
    assert_eq!(reasoning["content"], json!([{"type": "reasoning_text", "text": "<user>So."}]));
    assert_eq!((&reasoning["type"], &reasoning["summary"]), (&json!("reasoning"), &json!([])));
    assert_eq!(response["output"][1]["content"][0]["text"], "Yes.");
    let tokens = "<user>So.\n</think>".len();
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], tokens);
    let mut without_content = reasoning.clone();
    without_content["content"] = json!([]);
    for item in [reasoning.clone(), without_content] {
        let input = json!([{"role": "user", "content": "a"}, item, response["output"][1],
            {"role": "user", "content": "b"}]);
        let next = json!({"input": input, "max_output_tokens": 1});
        assert_eq!(server.post(RESPONSES, &next).status, 200);
        let expected = "<user>a<assistant reasoning_content=\"<user>So.\">Yes.<user>b";
        assert_eq!(prompt(&server), expected);
    }
    let foreign = json!([
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"role": "user", "content": "b"}]);
    server.post(RESPONSES, &json!({"input": foreign, "max_output_tokens": 1}));
    assert_eq!(prompt(&server), "<user>b");
}

#[test]
fn functions_are_called_and_their_outputs_read() {
    let server = server();
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 5}}\n</tool_call>";
    let mut asked = body(&format!("Well. {call}{call}"));
    asked["tools"] = tools();
    let (response, kinds) = both(&server, &asked);
    assert_eq!(response["status"], "completed");
    let output = response["output"].as_array().expect("items");
    assert_eq!(output.len(), 3, "{response}");
    assert_eq!((&output[1]["type"], &output[1]["name"]), (&json!("function_call"), &json!("get")));
    assert_eq!(output[1]["arguments"], "{\"a\": 5}");
    assert_ne!(output[1]["call_id"], output[2]["call_id"]);
    assert!(kinds.contains(&"response.function_call_arguments.done".to_owned()), "{kinds:?}");
    assert_ne!(server.engine.submissions()[0].grammar, AnswerGrammar::None);
    let mut items =
        vec![json!({"role": "user", "content": [{"type": "input_text", "text": "Get."}]})];
    items.push(output[1].clone());
    items.push(
        json!({"type": "function_call_output", "call_id": output[1]["call_id"], "output": "7"}),
    );
    let next = json!({"input": items, "max_output_tokens": 1});
    assert_eq!(server.post(RESPONSES, &next).status, 200);
    let id = output[1]["call_id"].as_str().expect("an id");
    let expected = format!(
        "<user>Get.<assistant content=null tool_calls=[{{\"id\":\"{id}\",\"type\":\
        \"function\",\"function\":{{\"name\":\"get\",\"arguments\":{{\"a\":5}}}}}}]><tool \
        tool_call_id=\"{id}\">7"
    );
    assert_eq!(prompt(&server), expected);
    let counted = server.post("/v1/responses/input_tokens", &json!({"input": items})).json();
    let expected = json!({"object": "response.input_tokens", "input_tokens": expected.len()});
    assert_eq!(counted, expected);
    for (choice, expected) in [
        (json!("required"), Some(true)),
        (json!({"type": "function", "name": "get"}), Some(true)),
        (
            json!({"type": "allowed_tools", "mode": "auto",
            "tools": [{"type": "function", "name": "get"}]}),
            Some(false),
        ),
        (json!("none"), None),
    ] {
        let mut chosen = body(call);
        chosen["tools"] = tools();
        chosen["tool_choice"] = choice.clone();
        assert_eq!(server.post(RESPONSES, &chosen).status, 200, "{choice}");
        let grammar = server.engine.submissions().pop().expect("a request").grammar;
        let calls = match &grammar {
            AnswerGrammar::Prepared(prepared) => prepared.grammar.calls(),
            _ => None,
        };
        assert_eq!(calls.map(|calls| calls.is_required), expected, "{choice}");
    }
    let mut failed = body("No call.");
    failed["tools"] = tools();
    failed["tool_choice"] = json!("required");
    assert_eq!(server.post(RESPONSES, &failed).status, 500);
    failed["stream"] = json!(true);
    let (response, kinds) = check_stream(&server.post(RESPONSES, &failed).named_events());
    assert_eq!(kinds.last().map(String::as_str), Some("response.failed"));
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
}

#[test]
fn a_text_format_is_a_grammar() {
    let server = server();
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    for format in [
        json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true}),
        json!({"type": "json_object"}),
    ] {
        let mut asked = body("{}");
        asked["text"] = json!({"format": format});
        server.post(RESPONSES, &asked);
        let submitted = server.engine.submissions().pop().expect("a request");
        assert_ne!(submitted.grammar, AnswerGrammar::None, "{format}");
    }
}

#[test]
fn stored_responses_are_continued_listed_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server_with(ByteCodec::CHAT, Some(folder.path()));
    let first = server.post(RESPONSES, &body("a")).json();
    assert_eq!(first["store"], true);
    let id = first["id"].as_str().expect("an id").to_owned();
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(server.get(&path).json(), first);
    let mut second = json!({"input": "b", "previous_response_id": id, "max_output_tokens": 1});
    second["instructions"] = json!("S");
    second["stream"] = json!(true);
    let (second, _) = check_stream(&server.post(RESPONSES, &second).named_events());
    // The first answer is `<user>a`; its prompt ends with the end of text, which has no text.
    let shown = prompt(&server);
    assert!(
        shown.starts_with("<system>S<user>a") && shown.ends_with("<assistant><user>a<user>b"),
        "{shown}"
    );
    assert_eq!(second["previous_response_id"], *id);
    let second_path = format!("{RESPONSES}/{}", second["id"].as_str().expect("an id"));
    assert_eq!(server.get(&second_path).json(), second);
    let list = server.get(&format!("{second_path}/input_items?order=asc&limit=2")).json();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(true)));
    let items = list["data"].as_array().expect("items");
    assert_eq!((items.len(), &items[1]), (2, &first["output"][0]));
    assert_eq!(items[0]["content"][0]["type"], "input_text");
    assert_eq!((&list["first_id"], &list["last_id"]), (&items[0]["id"], &items[1]["id"]));
    let last = list["last_id"].as_str().expect("an id");
    let rest = server.get(&format!("{second_path}/input_items?order=asc&after={last}")).json();
    assert_eq!(rest["data"][0]["content"][0]["text"], "b");
    assert_eq!(rest["has_more"], false);
    // An item is referred to by its id.
    let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    let third = json!({"input": [reference, {"role": "user", "content": "c"}], "store": false,
        "max_output_tokens": 1});
    let third = server.post(RESPONSES, &third).json();
    assert_eq!(
        (prompt(&server).as_str(), &third["store"]),
        ("<assistant><user>a<user>c", &json!(false))
    );
    let third_path = format!("{RESPONSES}/{}", third["id"].as_str().expect("an id"));
    assert_eq!(server.get(&third_path).status, 404);
    assert_eq!(send(&server, "POST", &format!("{path}/cancel")).status, 400);
    let deleted = send(&server, "DELETE", &path).json();
    assert_eq!(deleted, json!({"id": id, "object": "response", "deleted": true}));
    assert_eq!(send(&server, "DELETE", &path).status, 404);
    let gone = server.post(RESPONSES, &json!({"input": "b", "previous_response_id": id}));
    assert_eq!(
        (gone.status, &gone.json()["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    drop(server);
    let server = server_with(ByteCodec::CHAT, Some(folder.path()));
    assert_eq!(server.get(&second_path).json(), second, "after a restart");
}

#[test]
fn a_server_without_storage_says_how_to_get_it() {
    let server = server();
    let previous = server.post(RESPONSES, &json!({"input": "b", "previous_response_id": "resp_1"}));
    let item = json!([{"type": "item_reference", "id": "msg_1_0"}]);
    for reply in [
        previous,
        server.post(RESPONSES, &json!({"input": item})),
        server.get("/v1/responses/resp_1"),
    ] {
        assert!([400, 404].contains(&reply.status));
        assert!(
            reply.text().contains("not found") && reply.text().contains("--store-responses"),
            "{}",
            reply.text()
        );
    }
}

#[test]
fn truncation_removes_the_earliest_turns() {
    let server = server();
    let long = "x".repeat(700);
    let mut input = vec![json!({"role": "system", "content": "S"})];
    for turn in 0..5 {
        input.push(json!({"role": "user", "content": format!("{turn}{long}")}));
        input
            .push(json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}));
        input.push(json!({"type": "function_call_output", "call_id": "c", "output": "o"}));
    }
    input.push(json!({"role": "user", "content": "last"}));
    let mut asked = json!({"input": input, "max_output_tokens": 1});
    let refused = server.post(RESPONSES, &asked);
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    asked["truncation"] = json!("auto");
    let reply = server.post(RESPONSES, &asked);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let shown = prompt(&server);
    assert!(shown.starts_with("<system>S<assistant") && shown.ends_with("<user>last"), "{shown}");
    assert!(shown.contains("<user>4x") && !shown.contains("<user>1x"), "{shown}");
    asked["input"] = json!([{"role": "user", "content": "y".repeat(3000)}]);
    assert_eq!(server.post(RESPONSES, &asked).status, 400);
}

#[test]
fn what_is_wrong_or_unknown_is_refused_by_name() {
    let server = server();
    let message = |content: Value| json!([{"role": "user", "content": content}]);
    for (field, value, word) in [
        ("input", json!(5), "'input'"),
        ("input", json!([]), "must not be empty"),
        ("input", json!([5]), "'input'"),
        ("input", json!([{"role": "tool", "content": "a"}]), "'role'"),
        ("input", message(json!(5)), "content"),
        ("input", message(json!([{"type": "input_image", "image_url": "a"}])), "'input_image'"),
        ("input", json!([{"type": "web_search_call", "id": "a"}]), "'web_search_call'"),
        ("input", json!([{"type": "function_call", "name": "f"}]), "'call_id'"),
        ("input", json!([{"type": "function_call_output", "call_id": "f"}]), "'output'"),
        ("instructions", json!(5), "'instructions'"),
        ("max_output_tokens", json!(0), "'max_output_tokens'"),
        ("tools", json!([{"type": "web_search"}]), "'web_search'"),
        ("tools", json!([{"type": "custom", "name": "f"}]), "'custom'"),
        ("tools", json!([{"type": "function"}]), "'tools'"),
        ("tools", json!([{"type": "function", "name": "f", "other": 1}]), "'other'"),
        ("tool_choice", json!({"type": "web_search"}), "'tool_choice'"),
        ("tool_choice", json!(5), "'tool_choice'"),
        ("text", json!({"format": {"type": "grammar"}}), "'text.format'"),
        ("text", json!({"format": {"type": "json_schema", "name": "n"}}), "'text.format'"),
        ("text", json!({"verbosity": "high"}), "verbosity"),
        ("reasoning", json!({"effort": "some"}), "'reasoning.effort'"),
        ("reasoning", json!({"other": "some"}), "'other'"),
        ("include", json!(["everything"]), "'include'"),
        ("top_logprobs", json!(21), "'top_logprobs'"),
        ("metadata", json!({"a": 5}), "'metadata'"),
        ("truncation", json!("some"), "'truncation'"),
        ("store", json!("yes"), "'store'"),
        ("background", json!(true), "'background'"),
        ("conversation", json!("conv_1"), "conversation"),
        ("prompt", json!({"id": "p"}), "prompt"),
        ("previous_response_id", json!(5), "'previous_response_id'"),
        ("stream_options", json!({"include_obfuscation": true}), "include_obfuscation"),
        ("temperature", json!(3), "'temperature'"),
        ("nonsense", json!(1), "nonsense"),
    ] {
        let mut wrong = body("a");
        wrong[field] = value.clone();
        let reply = server.post(RESPONSES, &wrong);
        assert_eq!(reply.status, 400, "{field} {value}: {}", reply.text());
        let error = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(error.contains(word) && error.ends_with('.'), "{word}: {error}");
    }
    assert_eq!(server.post(RESPONSES, &json!({"model": "echo"})).status, 400);
    assert_eq!(server.engine.submissions().len(), 0);
}
