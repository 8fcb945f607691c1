//! Tests of fields that other servers know, unknown columns, and defaults from the command line.

use engine_api::request::Sampling;
use openai::body::defaults::Defaults;
use openai::body::unknown_fields::UnknownFieldPolicy;
use openai::chats::ChatRules;
use openai::input_line::{CompletionRequest, ErrorCode, InputLine};
use openai::prompt::ModelLimits;
use serde_json::{Map, Value, json};

use super::fake::{EchoEngine, TestJob, read_items};
use testkit::byte_codec::ByteCodec;

use crate::input::{InputFormat, InputOptions};
use crate::sink::OutputMode;

const CODEC: ByteCodec = ByteCodec::CHAT;

struct Reading {
    format: InputFormat,
    chat: bool,
    defaults: Defaults,
    unread: UnknownFieldPolicy,
}

impl Reading {
    fn lines() -> Reading {
        let (defaults, unread) = (Defaults::default(), UnknownFieldPolicy::default());
        Reading { format: InputFormat::JsonLines, chat: false, defaults, unread }
    }

    fn read(&self, line: &str) -> Result<CompletionRequest, (ErrorCode, String)> {
        let options = InputOptions {
            format: self.format,
            chat: self.chat,
            chat_rules: &ChatRules::default(),
            max_tokens: None,
            seed: 0,
            now_s: 0,
            defaults: &self.defaults,
            unknown_fields: &self.unread,
            codec: Some(&CODEC),
            limits: ModelLimits { context: 256, vocab_size: 300, unsupported_tokenizer: None },
            bounds: None,
        };
        match read_items(line.as_bytes(), &options).pop().expect("an item") {
            InputLine::Request(request) => Ok(request),
            InputLine::Error(error) => Err((error.rejection.code, error.rejection.message)),
        }
    }

    fn prompt(&self, line: &str) -> String {
        let request = self.read(line).expect("a request");
        let bytes = request.prompts[0].tokens.iter().map(|token| *token as u8);
        String::from_utf8(bytes.collect()).expect("UTF-8")
    }
}

/// Wraps a body in a batch line.
fn batch(mut body: Map<String, Value>) -> String {
    body.entry("prompt").or_insert(json!("a"));
    json!({"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body}).to_string()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn fields_of_other_servers_are_accepted_while_they_change_nothing() {
    for (field, neutral, other) in [
        ("repetition_penalty", json!(1), json!(0)),
        ("skip_special_tokens", json!(true), json!(false)),
        ("min_tokens", json!(0), json!(-3)),
        ("min_p", json!(0), json!(1.5)),
        ("presence_penalty", json!(0), json!(2.5)),
        ("frequency_penalty", json!(0.0), json!(-3)),
        ("best_of", json!(1), json!(2)),
        ("stream", json!(false), json!(true)),
        ("logit_bias", json!({}), json!({"5": 101})),
        ("tools", json!([]), json!([{"type": "function"}])),
        ("tool_choice", json!("none"), json!("required")),
        ("length_penalty", json!(1.0), json!(2)),
        ("stop_token_ids", json!([]), json!([-2])),
        ("include_stop_str_in_output", json!(false), json!("yes")),
        ("bad_words", json!([]), json!([""])),
        ("allowed_token_ids", json!([5]), json!([-1])),
        ("truncate_prompt_tokens", json!(-1), json!(0)),
        ("include_reasoning", json!(true), json!(1)),
        ("thinking_token_budget", json!(-1), json!(-2)),
        ("return_tokens_as_token_ids", json!(false), json!(1)),
        ("guided_json", json!(null), json!({"type": "object"})),
        ("verbosity", json!("medium"), json!("high")),
        ("mirostat", json!(0), json!(2)),
        ("repeat_penalty", json!(1.0), json!(1.1)),
    ] {
        let read = |value: &Value| {
            let mut body = Map::new();
            body.insert(field.to_owned(), value.clone());
            let short = Value::Object(Map::from_iter([
                ("prompt".to_owned(), json!("a")),
                (field.to_owned(), value.clone()),
            ]));
            let reading = Reading::lines();
            (reading.read(&batch(body)).map(|_| ()), reading.read(&short.to_string()).map(|_| ()))
        };
        assert_eq!(read(&neutral), (Ok(()), Ok(())), "{field}: {neutral}");
        // Short lines do not treat these fields as columns either.
        let (in_batch, in_short) = read(&other);
        for refused in [in_batch, in_short] {
            let (_, message) = refused.expect_err(field);
            assert!(message.contains(field), "{field}: {message}");
        }
    }
    for (field, value) in [
        ("user", json!("me")),
        ("parallel_tool_calls", json!(false)),
        ("store", json!(true)),
        ("metadata", json!({"a": "b"})),
        ("service_tier", json!("flex")),
    ] {
        let body = Map::from_iter([(field.to_owned(), value)]);
        Reading::lines().read(&batch(body)).expect(field);
    }
    let equal = batch(object(json!({"n": 3, "best_of": 3})));
    Reading::lines().read(&equal).expect("as many as are asked for");
    assert!(Reading::lines().read(&batch(object(json!({"n": 3, "best_of": 4})))).is_err());
}

#[test]
fn messages_have_known_roles_and_what_templates_know() {
    let line = |messages: Value| json!({"messages": messages}).to_string();
    for role in ["system", "developer", "user", "assistant", "tool", "function"] {
        Reading::lines().read(&line(json!([{"role": role, "content": "a"}]))).expect(role);
    }
    for role in ["User", "bot", "", "model"] {
        let refused = Reading::lines().read(&line(json!([{"role": role, "content": "a"}])));
        let (code, message) = refused.expect_err(role);
        assert_eq!(code, ErrorCode::InvalidValue);
        assert!(
            message.contains("assistant") && message.contains(&format!("'{role}'")),
            "{message}"
        );
    }
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    // Templates take arguments as objects.
    let in_template =
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}});
    let notes = json!([
        {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]);
    assert_eq!(
        Reading::lines().prompt(&line(notes)),
        format!(
            "<user name=\"Ada\">a<assistant content=null tool_calls=[{in_template}]><tool \
             tool_call_id=\"c\">5"
        )
    );
    // Conversations may contain assistant turns without content.
    let silent = line(json!([{"role": "assistant", "content": null}]));
    assert_eq!(Reading::lines().prompt(&silent), "<assistant content=null>");
    let empty = Reading::lines().read(&line(json!([{"role": "user", "content": null}])));
    assert!(empty.is_err(), "{empty:?}");
    let odd = Reading::lines().read(&line(json!([{"role": "user", "content": "a", "mood": 1}])));
    assert!(odd.expect_err("unknown").1.contains("mood"));
}

#[test]
fn an_answer_may_go_on_with_the_last_message() {
    let line = |role: &str, more: Value| {
        let mut line = json!({"messages": [{"role": "user", "content": "a"},
            {"role": role, "content": "b"}], "continue_final_message": true});
        line.as_object_mut().expect("fields").extend(object(more));
        line.to_string()
    };
    for more in [json!({}), json!({"add_generation_prompt": false})] {
        let prompt = Reading::lines().prompt(&line("assistant", more));
        assert_eq!(prompt, "<user>a<assistant>b<continued>");
    }
    let thought = json!([{"role": "assistant", "content": "b", "reasoning_content": "hm"}]);
    let prompt = Reading::lines().prompt(&line("user", json!({"messages": thought})));
    assert_eq!(prompt, "<assistant reasoning_content=\"hm\">b<continued>");
    let begins = line("assistant", json!({"continue_final_message": false}));
    assert_eq!(Reading::lines().prompt(&begins), "<user>a<assistant>b");
    for (role, more) in [
        ("user", json!({})),
        ("assistant", json!({"continue_final_message": false, "add_generation_prompt": false})),
        ("assistant", json!({"continue_final_message": 1})),
    ] {
        let (code, _) = Reading::lines().read(&line(role, more)).expect_err("refused");
        assert_eq!(code, ErrorCode::InvalidValue, "{role}");
    }
}

#[test]
fn what_is_not_implemented_is_left_out_where_that_was_asked_for() {
    let reading = Reading { unread: UnknownFieldPolicy::new(true), ..Reading::lines() };
    reading.read(&batch(object(json!({"length_penalty": 1.2, "mood": "gay"})))).expect("read");
    let message = json!({"messages": [{"role": "user", "content": "a", "weight": 1}]});
    reading.read(&message.to_string()).expect("read");
    let notes = reading.unread.notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].ends_with(": length_penalty, mood, weight."), "{notes:?}");
    // Invalid values are still refused.
    assert!(reading.read(&batch(object(json!({"temperature": 3})))).is_err());
    assert!(Reading::lines().unread.notes().is_empty());
}

#[test]
fn other_columns_of_short_lines_go_into_the_output() {
    let mut test_job = TestJob::new(
        b"{\"id\": 7, \"prompt\": [5], \"label\": \
         {\"a\": [1.50]}, \"none\": null, \"max_tokens\": 1}\n{\"prompt\": [6], \"max_tokens\": \
         1}\n",
    );
    test_job.run(&mut EchoEngine::new(2)).expect("runs");
    let lines = test_job.lines();
    assert_eq!(Value::from(lines[0].columns.clone()), json!({"id": 7, "label": {"a": [1.5]}}));
    assert!(lines[1].columns.is_empty());
    let text = String::from_utf8(test_job.output()).expect("UTF-8");
    assert_eq!(text.matches("\"columns\"").count(), 1, "{text}");
    test_job.options.mode = OutputMode::Resume;
    let notes = test_job.prepare().expect("its own answers").notes().to_vec();
    assert!(notes.len() == 1 && notes[0].ends_with(": id, label."), "{notes:?}");
    // Batch lines have no extra columns: their fields are the protocol's.
    let refused = Reading::lines().read(&batch(object(json!({"label": 1}))));
    assert_eq!(refused.expect_err("unknown").0, ErrorCode::UnsupportedField);
}

#[test]
fn the_command_line_says_what_a_line_does_not() {
    let defaults = Defaults {
        temperature: Some(0.7),
        top_p: Some(0.9),
        stop: vec!["\n".to_owned()],
        system: None,
        json_schema: Some(json!({"type": "object"})),
    };
    let reading = Reading { defaults: defaults.clone(), ..Reading::lines() };
    let request = reading.read(r#"{"prompt": "a"}"#).expect("read");
    let expected = Sampling { temperature: 0.7, top_p: 0.9, ..Sampling::GREEDY };
    assert_eq!((request.sampling, &request.stop[..]), (expected, &["\n".to_owned()][..]));
    assert!(request.grammar.is_some());
    let text =
        Reading { format: InputFormat::Text, defaults: defaults.clone(), ..Reading::lines() };
    assert_eq!(text.read("a").expect("read").sampling, expected);
    // Fields of a line take precedence, and batch lines ignore the defaults.
    let own =
        r#"{"prompt": "a", "temperature": 0, "stop": "x", "structured_outputs": {"regex": "a"}}"#;
    let request = reading.read(own).expect("read");
    assert_eq!((request.sampling.temperature, &request.stop[..]), (0.0, &["x".to_owned()][..]));
    assert!(format!("{:?}", request.grammar).contains("Regex"));
    let request = reading.read(&batch(Map::new())).expect("read");
    assert_eq!((request.sampling, request.grammar), (Sampling::GREEDY, None));
}

#[test]
fn a_system_message_is_put_before_chats_that_have_none() {
    let defaults = Defaults { system: Some("Brief.".to_owned()), ..Defaults::default() };
    let reading = Reading { defaults, ..Reading::lines() };
    let user = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    assert_eq!(reading.prompt(user), "<system>Brief.<user>a");
    let own = r#"{"messages": [{"role": "developer", "content": "b"}, {"role": "user", "content": "a"}]}"#;
    assert_eq!(reading.prompt(own), "<developer>b<user>a");
    let raw = reading.read(r#"{"prompt": "a"}"#).expect_err("no chat");
    assert!(raw.1.contains("--chat"), "{raw:?}");
    let chat = Reading { chat: true, format: InputFormat::Text, ..reading };
    assert_eq!(chat.prompt("a"), "<system>Brief.<user>a");
}
