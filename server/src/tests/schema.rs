//! Answers, streamed or not, have the fields of OpenAI's published schema, and vLLM's extensions
//! where vLLM has them.

use serde_json::{Value, json};
use testkit::byte_codec::END_OF_TEXT;
use testkit::schema::{
    assert_shape, chat_completion, chat_completion_chunk, completion, completion_chunk,
};

use super::test_server::{CHAT, COMPLETIONS, TestServer};

fn messages(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

fn streamed(test_server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    test_server.post(path, &body).events()
}

#[test]
fn whole_answers_have_the_required_fields() {
    let test_server = TestServer::new();
    let ends = format!("a{END_OF_TEXT}");
    for body in [
        json!({"messages": messages("a"), "max_tokens": 3}),
        json!({"messages": messages(&ends), "n": 2, "logprobs": true, "top_logprobs": 2}),
        json!({"messages": messages("a"), "max_tokens": 3, "prompt_logprobs": 1}),
        json!({"messages": messages("a"), "max_tokens": 3, "return_token_ids": true}),
    ] {
        assert_shape(&test_server.post(CHAT, &body).json(), &chat_completion());
    }
    for body in [
        json!({"prompt": "a", "max_tokens": 3}),
        json!({"prompt": [97, 257], "n": 2, "logprobs": 2}),
        json!({"prompt": ["a", "b"], "max_tokens": 1, "logprobs": 0, "echo": true}),
        json!({"prompt": "a", "max_tokens": 3, "prompt_logprobs": 1, "return_token_ids": true}),
    ] {
        assert_shape(&test_server.post(COMPLETIONS, &body).json(), &completion());
    }
}

#[test]
fn events_have_the_required_fields() {
    let test_server = TestServer::new();
    let options = json!({"include_usage": true});
    let ends = format!("a{END_OF_TEXT}");
    let body = json!({"messages": messages(&ends), "n": 2, "logprobs": true, "top_logprobs": 1,
        "stream_options": options});
    let events = streamed(&test_server, CHAT, &body);
    events.iter().for_each(|event| assert_shape(event, &chat_completion_chunk()));
    let body = json!({"prompt": [97, 257], "n": 2, "logprobs": 2, "stream_options": options});
    let events = streamed(&test_server, COMPLETIONS, &body);
    events.iter().for_each(|event| assert_shape(event, &completion_chunk()));
    let (last, others) = events.split_last().expect("events");
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
    assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)));
}

/// The last event of an answer that ends by itself has no token, and hence no log-probability.
#[test]
fn the_last_event_of_a_stream_has_null_for_its_logprobs() {
    let test_server = TestServer::new();
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": [97, 98, 257], "logprobs": 2})),
        (CHAT, json!({"messages": messages(&format!("a{END_OF_TEXT}")), "logprobs": true})),
    ] {
        let events = streamed(&test_server, path, &body);
        let (last, others) = events.split_last().expect("events");
        let last = &last["choices"][0];
        assert_eq!(last["finish_reason"], "stop", "{path}");
        assert_eq!(last.get("logprobs"), Some(&Value::Null), "{path}");
        assert_eq!(last["token_ids"], json!([]), "{path}");
        assert!(!others.is_empty(), "{path}");
        for event in others {
            assert!(event["choices"][0]["logprobs"].is_object(), "{path}: {event}");
        }
    }
}

#[test]
fn an_empty_answer_has_lists_of_the_most_likely_tokens_where_they_are_requested() {
    let test_server = TestServer::new();
    let logprobs_of = |logprobs: u32| {
        let body = json!({"prompt": [257], "logprobs": logprobs});
        test_server.post(COMPLETIONS, &body).json()["choices"][0]["logprobs"].clone()
    };
    let mut expected = json!({"tokens": [], "token_logprobs": [], "text_offset": []});
    for (logprobs, top) in [(2, json!([])), (0, Value::Null)] {
        expected["top_logprobs"] = top;
        assert_eq!(logprobs_of(logprobs), expected);
    }
}

#[test]
fn token_ids_of_prompts_stand_where_vllm_has_them() {
    let test_server = TestServer::new();
    let chat = json!({"messages": messages("a"), "max_tokens": 2, "n": 2,
        "return_token_ids": true});
    let rendered: Vec<u32> = "<user>a".bytes().map(u32::from).collect();
    let answer = test_server.post(CHAT, &chat).json();
    assert_eq!(answer["prompt_token_ids"], json!(rendered));
    assert_eq!(answer["choices"][1]["token_ids"], json!(rendered[..2]));
    assert_eq!(answer["choices"][0].get("prompt_token_ids"), None);
    // The ids are in the first event of each choice.
    let mut first = [true; 2];
    for event in streamed(&test_server, CHAT, &chat) {
        let index = event["choices"][0]["index"].as_u64().expect("an index") as usize;
        let expected = std::mem::replace(&mut first[index], false).then(|| json!(rendered));
        assert_eq!(event.get("prompt_token_ids"), expected.as_ref());
    }
    let texts = json!({"prompt": ["a", "b"], "max_tokens": 2, "return_token_ids": true});
    let answer = test_server.post(COMPLETIONS, &texts).json();
    assert_eq!(answer.get("prompt_token_ids"), None);
    let expected = [json!([256, 97]), json!([256, 98])];
    for (choice, expected) in answer["choices"].as_array().expect("choices").iter().zip(&expected) {
        assert_eq!(&choice["prompt_token_ids"], expected);
    }
    for echo in [false, true] {
        let mut texts = texts.clone();
        texts["echo"] = json!(echo);
        let mut first = [true; 2];
        for event in streamed(&test_server, COMPLETIONS, &texts) {
            let choice = &event["choices"][0];
            let index = choice["index"].as_u64().expect("an index") as usize;
            let expected = std::mem::replace(&mut first[index], false).then(|| &expected[index]);
            assert_eq!(choice.get("prompt_token_ids"), expected);
        }
    }
    let plain = test_server.post(CHAT, &json!({"messages": messages("a"), "max_tokens": 2})).json();
    assert_eq!(plain.get("prompt_token_ids"), Some(&Value::Null));
}

#[test]
fn log_probabilities_of_a_conversation_stand_beside_its_choices() {
    let test_server = TestServer::new();
    let body = json!({"messages": messages("a"), "max_tokens": 1, "n": 2, "prompt_logprobs": 0});
    let answer = test_server.post(CHAT, &body).json();
    let prompt_logprobs = answer["prompt_logprobs"].as_array().expect("a list");
    assert_eq!((prompt_logprobs.len(), &prompt_logprobs[0]), ("<user>a".len(), &Value::Null));
    assert!(prompt_logprobs[1].is_object());
    for choice in answer["choices"].as_array().expect("choices") {
        assert_eq!(choice.get("prompt_logprobs"), None);
    }
    let plain = test_server.post(CHAT, &json!({"messages": messages("a"), "max_tokens": 1})).json();
    assert_eq!(plain.get("prompt_logprobs"), Some(&Value::Null));
    let text = test_server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).json();
    assert_eq!(text["choices"][0].get("prompt_logprobs"), Some(&Value::Null));
}

/// vLLM reports counts in every event only if the counts are requested at all.
#[test]
fn usage_is_counted_as_it_grows_only_with_include_usage() {
    let test_server = TestServer::new();
    for options in [
        json!({"continuous_usage_stats": true}),
        json!({"continuous_usage_stats": true, "include_usage": false}),
    ] {
        let body = json!({"prompt": "a", "max_tokens": 2, "stream_options": options});
        let events = streamed(&test_server, COMPLETIONS, &body);
        assert_eq!(events.len(), 2, "{options}");
        assert!(events.iter().all(|event| event.get("usage").is_none()), "{options}");
    }
}
