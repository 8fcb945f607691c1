//! Tests of function calls of a real model with random weights, with the whole program.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Place, coordinator, finish, fixture, text};
use crate::serve::Served;

const SEEDS: usize = 28;
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Templates that describe functions in few words: the model has 128 positions.
const HERMES: &str = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}\
     {% for message in messages %}{{ message.content }}{% endfor %}\
     {% if false %}<tool_call>{\"name\": , \"arguments\": }</tool_call>{% endif %}";
const MISTRAL: &str = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}\
     {% for message in messages %}{{ message.content }}{% endfor %}\
     {% if false %}[TOOL_CALLS]name[ARGS]{}{% endif %}";
const QWEN_CODER: &str = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}\
     {% for message in messages %}{{ message.content }}{% endfor %}\
     {% if false %}<tool_call><function=name><parameter=key></tool_call>{% endif %}";
const GLM: &str = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}\
     {% for message in messages %}{{ message.content }}{% endfor %}\
     {% if false %}<tool_call>name<arg_key>key</arg_key></tool_call>{% endif %}";
const HARMONY: &str = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}\
     {% for message in messages %}{{ message.content }}{% endfor %}\
     {% if false %}to=functions.name<|channel|>commentary<|message|>{% endif %}";
/// Template that does not describe functions, so that prompts are those of requests without
/// functions.
const SILENT: &str = "{% for message in messages %}{{ message.content }}{% endfor %}\
     {% if false %}{{ tools }}<tool_call>{\"name\": , \"arguments\": }</tool_call>{% endif %}";

/// Copies the fixture `llama` with another template and with new names for two of its special
/// tokens.
fn model(place: &Place, template: &str, specials: [&str; 2]) -> PathBuf {
    let (from, to) = (fixture("llama"), place.path("model"));
    std::fs::create_dir_all(&to).expect("a folder");
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), to.join(name)).expect("a copy");
    }
    let read = |name: &str| std::fs::read_to_string(from.join(name)).expect("a file");
    let mut config: Value = serde_json::from_str(&read("tokenizer_config.json")).expect("JSON");
    config["chat_template"] = json!(template);
    std::fs::write(to.join("tokenizer_config.json"), config.to_string()).expect("written");
    let [first, second] = specials;
    let tokenizer = read("tokenizer.json").replace("<|im_start|>", first);
    let tokenizer = tokenizer.replace("<|im_end|>", second);
    std::fs::write(to.join("tokenizer.json"), tokenizer).expect("written");
    to
}

/// Copies the fixture `llama` with a template that describes functions.
pub(crate) fn model_with_tools(place: &Place) -> PathBuf {
    model(place, HERMES, ["<|im_start|>", "<|im_end|>"])
}

pub(crate) fn tools() -> Value {
    let schema = json!({"type": "object", "properties": {
        "kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30},
    }, "required": ["kind", "age"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "pet", "parameters": schema}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

fn body(seed: usize, choice: &str) -> Value {
    json!({"messages": [{"role": "user", "content": "A pet!"}], "tools": tools(), "seed": seed,
        "tool_choice": choice, "parallel_tool_calls": false, "temperature": 1, "max_tokens": 110})
}

fn batch(place: &Place, model: &Path, bodies: &[Value], options: &[&str]) -> String {
    let line = |(i, body): (usize, &Value)| {
        let line = json!({"custom_id": i.to_string(), "method": "POST", "url": CHAT, "body": body});
        format!("{line}\n")
    };
    let input: String = bodies.iter().enumerate().map(line).collect();
    // The creation time of answers is the modification time of the input, so it is only written if
    // it changes.
    let path = place.path("in.jsonl");
    if std::fs::read_to_string(&path).ok().as_deref() != Some(input.as_str()) {
        std::fs::write(&path, input).expect("a writable folder");
    }
    let mut command = coordinator();
    command.arg("--model").arg(model).arg("--input").arg(path);
    command.arg("--output").arg(place.path("out.jsonl")).arg("--quiet").args(options);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
    std::fs::read_to_string(place.path("out.jsonl")).expect("answers")
}

fn choices(output: &str) -> Vec<Value> {
    let lines = output.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|line| line["response"]["body"]["choices"][0].clone()).collect()
}

/// Asserts that an answer is one valid call; returns its name and arguments.
fn call(choice: &Value) -> (String, Value) {
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{choice}");
    let function = &calls[0]["function"];
    let arguments = function["arguments"].as_str().expect("a text");
    let arguments: Value =
        serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{choice}: {e}"));
    match function["name"].as_str() {
        Some("pet") => {
            assert!(matches!(arguments["kind"].as_str(), Some("cat" | "dog")), "{choice}");
            assert!(arguments["age"].as_u64().is_some_and(|age| age <= 30), "{choice}");
            assert_eq!(arguments.as_object().map(serde_json::Map::len), Some(2), "{choice}");
        }
        Some("now") => assert_eq!(arguments, json!({}), "{choice}"),
        other => panic!("{other:?}: {choice}"),
    }
    (function["name"].to_string(), arguments)
}

/// Returns the choice of a stream, with its calls put together.
fn gathered(body: &str) -> Value {
    let mut choice = json!({"message": {"content": null, "tool_calls": []}, "token_ids": []});
    for event in body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(event) else { continue };
        let piece = &event["choices"][0];
        let message = &mut choice["message"];
        if let Some(more) = piece["delta"]["content"].as_str() {
            let text = message["content"].as_str().unwrap_or_default().to_owned() + more;
            message["content"] = text.into();
        }
        for more in piece["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = more["index"].as_u64().expect("a place") as usize;
            let calls = message["tool_calls"].as_array_mut().expect("a list");
            if index == calls.len() {
                calls.push(more.clone());
            } else {
                let arguments = &mut calls[index]["function"]["arguments"];
                let piece = more["function"]["arguments"].as_str().expect("a text");
                *arguments = (arguments.as_str().expect("a text").to_owned() + piece).into();
            }
        }
        let ids = piece["token_ids"].as_array().cloned().unwrap_or_default();
        choice["token_ids"].as_array_mut().expect("a list").extend(ids);
        choice["finish_reason"] = piece["finish_reason"].clone();
    }
    choice
}

#[test]
fn required_calls_have_their_schema() {
    for (template, specials) in [
        (HERMES, ["<|im_start|>", "<|im_end|>"]),
        (MISTRAL, ["[TOOL_CALLS]", "[ARGS]"]),
        (QWEN_CODER, ["<|im_start|>", "<|im_end|>"]),
        (GLM, ["<arg_value>", "</arg_value>"]),
        (HARMONY, ["<|channel|>", "<|message|>"]),
    ] {
        let place = Place::new();
        let model = model(&place, template, specials);
        let mut bodies: Vec<Value> = (0..SEEDS).map(|seed| body(seed, "required")).collect();
        // With some of the syntaxes such a model would only ever generate one of the names.
        let named = json!({"type": "function", "function": {"name": "pet"}});
        bodies.iter_mut().step_by(2).for_each(|body| body["tool_choice"] = named.clone());
        let output = batch(&place, &model, &bodies, &["--batches", "2x4"]);
        let expected: Vec<(String, Value)> = choices(&output).iter().map(call).collect();
        let names: Vec<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        let both = names.contains(&"\"pet\"") && names.contains(&"\"now\"");
        assert!(both, "{template}: {names:?}: {output}");
        // Other batches and a resumed run give the same bytes.
        let again = batch(&place, &model, &bodies, &["--batches", "1x5", "--force"]);
        assert_eq!(again, output);
        let half = output.split_inclusive('\n').take(20).collect::<String>();
        std::fs::write(place.path("out.jsonl"), half).expect("written");
        let resumed = batch(&place, &model, &bodies, &["--batches", "1x7", "--resume"]);
        assert_eq!(resumed, output);
        // Over HTTP, whole or in a stream, each for both kinds of choices.
        let path = model.to_string_lossy().into_owned();
        let served = Served::of(&["--model", &path, "--slots", "4"]);
        let choices = choices(&output);
        let answers = bodies.iter().zip(choices.iter().zip(&expected));
        for (index, (body, (choice, expected))) in answers.enumerate() {
            if index % 4 < 2 {
                let (status, reply) = served.post(CHAT, body);
                assert_eq!(status, 200, "{reply}");
                let reply: Value = serde_json::from_str(&reply).expect("JSON");
                assert_eq!(call(&reply["choices"][0]), *expected);
                assert_eq!(reply["choices"][0]["token_ids"], choice["token_ids"]);
                continue;
            }
            let mut streamed = body.clone();
            streamed["stream"] = json!(true);
            let (status, reply) = served.post(CHAT, &streamed);
            assert_eq!(status, 200, "{reply}");
            let found = gathered(&reply);
            assert_eq!(call(&found), *expected);
            assert_eq!(found["token_ids"], choice["token_ids"]);
        }
    }
}

/// With both functions and a response format, every answer is a call or follows the format.
#[test]
fn answers_are_calls_or_of_the_response_format() {
    for (template, specials) in [
        (HERMES, ["<|im_start|>", "<|im_end|>"]),
        (MISTRAL, ["[TOOL_CALLS]", "[ARGS]"]),
        (QWEN_CODER, ["<|im_start|>", "<|im_end|>"]),
    ] {
        let place = Place::new();
        let model = model(&place, template, specials);
        let schema = json!({"type": "object", "properties": {"b": {"type": "boolean"}},
            "required": ["b"], "additionalProperties": false});
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        let bodies: Vec<Value> = (0..SEEDS)
            .map(|seed| {
                let mut body = body(seed, "auto");
                body["response_format"] = format.clone();
                body
            })
            .collect();
        let output = batch(&place, &model, &bodies, &["--batches", "2x4"]);
        let (mut called, mut said) = (0, 0);
        for choice in choices(&output) {
            if choice["finish_reason"] == "tool_calls" {
                call(&choice);
                called += 1;
                continue;
            }
            assert_eq!(choice["finish_reason"], "stop", "{template}: {choice}");
            let text = choice["message"]["content"].as_str().expect("a text");
            let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert!(value["b"].is_boolean(), "{text}");
            said += 1;
        }
        assert!(called > 0 && said > 0, "{template}: {called} called, {said} said");
        let path = model.to_string_lossy().into_owned();
        let served = Served::of(&["--model", &path, "--slots", "4"]);
        for (body, expected) in bodies.iter().zip(choices(&output)).take(8) {
            let mut body = body.clone();
            body["stream"] = json!(true);
            let (status, reply) = served.post(CHAT, &body);
            assert_eq!(status, 200, "{reply}");
            let found = gathered(&reply);
            assert_eq!(found["token_ids"], expected["token_ids"]);
            assert_eq!(found["finish_reason"], expected["finish_reason"]);
        }
    }
}

/// A text continues as if there were no functions until it calls one.
#[test]
fn functions_that_are_not_called_change_nothing() {
    let place = Place::new();
    let model = model(&place, SILENT, ["<|im_start|>", "<|im_end|>"]);
    let all = |choice: &str| {
        let bodies: Vec<Value> = (0..SEEDS).map(|seed| body(seed, choice)).collect();
        choices(&batch(&place, &model, &bodies, &["--batches", "2x4", "--force"]))
    };
    assert_eq!(all("auto"), all("none"));
}

#[test]
fn several_calls_follow_each_other() {
    let place = Place::new();
    let model = model(&place, MISTRAL, ["[TOOL_CALLS]", "[ARGS]"]);
    let bodies: Vec<Value> = (0..SEEDS)
        .map(|seed| {
            let mut body = body(seed, "required");
            body["parallel_tool_calls"] = json!(true);
            body
        })
        .collect();
    let mut several = 0;
    for choice in choices(&batch(&place, &model, &bodies, &["--batches", "2x4"])) {
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        several += usize::from(calls.len() > 1);
        // The last call may be cut.
        let whole = calls.len() - usize::from(choice["finish_reason"] == "length");
        for one in &calls[..whole] {
            let message = json!({"content": null, "tool_calls": [one]});
            call(&json!({"finish_reason": "tool_calls", "message": message}));
        }
    }
    assert!(several > 5, "only {several} answers have several calls");
}

#[test]
fn a_model_that_is_told_of_no_functions_says_so() {
    let place = Place::new();
    let path = fixture("llama").to_string_lossy().into_owned();
    let served = Served::of(&["--model", &path, "--slots", "2"]);
    let (status, reply) = served.post(CHAT, &body(0, "auto"));
    assert_eq!(status, 400, "{reply}");
    let error: Value = serde_json::from_str(&reply).expect("JSON");
    let error = &error["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("unsupported_field"), &json!("tools")));
    assert!(reply.contains("chat template does not render tools"), "{reply}");
    let odd =
        "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}<function=f>";
    let odd = model(&place, odd, ["<|im_start|>", "<|im_end|>"]).to_string_lossy().into_owned();
    let served = Served::of(&["--model", &odd, "--slots", "2"]);
    let (status, reply) = served.post(CHAT, &body(0, "auto"));
    assert_eq!(status, 400, "{reply}");
    assert!(reply.contains("Hermes") && reply.contains("Mistral"), "{reply}");
}
