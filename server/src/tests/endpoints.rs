//! Each endpoint with ordinary requests.

use serde_json::json;

use super::fake_engine::FakeEngineOptions;
use super::test_server::{CHAT, COMPLETIONS, TestServer};
use crate::api_key::ApiKey;
use crate::config::ServerOptions;

#[test]
fn a_completion_is_told_whole() {
    let test_server = TestServer::new();
    let body = json!({"model": "echo", "prompt": "abc", "max_tokens": 5, "logprobs": 1});
    let reply = test_server.post(COMPLETIONS, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    let answer = reply.json();
    // The prompt's tokens are BOS and its bytes, and the answer repeats them; BOS has no text.
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "echo");
    assert_eq!(answer["system_fingerprint"], "fp_test");
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abc");
    assert_eq!(choice["token_ids"], json!([256, 97, 98, 99, 256]));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["tokens"][1], "a");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 1, 2, 3]));
    let usage = json!({
        "prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 1},
    });
    assert_eq!(answer["usage"], usage);
}

#[test]
fn a_chat_goes_on_to_the_end_of_the_context() {
    let test_server = TestServer::new();
    let messages = json!([{"role": "user", "content": "Hi", "annotations": "unknown"}]);
    let body = json!({"messages": messages, "user": "me", "store": false, "n": 2, "seed": 3});
    let answer = test_server.post(CHAT, &body).json();
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["id"].as_str().expect("an id").starts_with("chatcmpl-"));
    let prompt = "<user>Hi".len();
    for index in 0..2 {
        let choice = &answer["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["role"], "assistant");
        let text = choice["message"]["content"].as_str().expect("a text");
        assert_eq!(text.len(), 256 - prompt);
        assert!(text.starts_with("<user>Hi<user>Hi"), "{text}");
    }
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
    assert_eq!(answer["usage"]["completion_tokens"], 2 * (256 - prompt));
}

#[test]
fn an_answer_ends_with_its_token_and_before_its_stop_string() {
    let test_server = TestServer::new();
    let body = json!({"prompt": [[97, 98, 257], [97, 98, 99]], "max_tokens": 9, "stop": "ca"});
    let answer = test_server.post(COMPLETIONS, &body).json();
    let (first, second) = (&answer["choices"][0], &answer["choices"][1]);
    assert_eq!((&first["text"], &first["finish_reason"]), (&json!("ab"), &json!("stop")));
    assert_eq!((&second["text"], &second["finish_reason"]), (&json!("ab"), &json!("stop")));
    assert_eq!(second["token_ids"], json!([97, 98]));
    // The first answer has a, b and the end token, the second a, b, c and a.
    assert_eq!(answer["usage"]["completion_tokens"], 7);
    let ignored = json!({"prompt": [97, 257], "max_tokens": 4, "ignore_eos": true});
    let answer = test_server.post(COMPLETIONS, &ignored).json();
    assert_eq!(answer["choices"][0]["token_ids"], json!([97, 257, 97, 257]));
}

#[test]
fn an_echo_has_the_prompt_and_what_is_known_of_it() {
    let test_server = TestServer::new();
    let body = json!({
        "prompt": [[97, 98, 99], [100, 101]], "echo": true, "logprobs": 1, "max_tokens": 1,
    });
    let answer = test_server.post(COMPLETIONS, &body).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abca");
    assert_eq!(choice["token_ids"], json!([97]));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c", "a"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.25, -0.25, -0.25]));
    assert_eq!(logprobs["top_logprobs"][0], json!(null));
    assert_eq!(logprobs["top_logprobs"][1], json!({"a": -0.75, "b": -0.25}));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(answer["choices"][1]["text"], "ded");
    assert_eq!(test_server.engine.submissions()[0].prompt_logprobs, 2);
    // Older evaluation harnesses request the prompt alone.
    let alone = json!({"prompt": "ab", "echo": true, "logprobs": 0, "max_tokens": 0});
    let answer = test_server.post(COMPLETIONS, &alone).json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["token_ids"]), (&json!("ab"), &json!([])));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.25, -0.25]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    assert_eq!(test_server.engine.submissions().last().map(|last| last.max_new), Some(0));
}

#[test]
fn a_prompt_is_told_as_vllm_tells_it() {
    let test_server = TestServer::new();
    let mut body = json!({"prompt": [97, 98], "prompt_logprobs": 1, "max_tokens": 1});
    let answer = test_server.post(COMPLETIONS, &body).json();
    let second = json!({
        "98": {"logprob": -0.25, "rank": null, "decoded_token": "b"},
        "97": {"logprob": -0.75, "rank": 1, "decoded_token": "a"},
    });
    assert_eq!(answer["choices"][0]["prompt_logprobs"], json!([null, second]));
    assert_eq!(answer["choices"][0]["text"], "a");
    body["stream"] = json!(true);
    let refused = test_server.post(COMPLETIONS, &body);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("stream")));
}

#[test]
fn a_named_seed_gives_the_same_answer_and_others_draw_apart() {
    let test_server = TestServer::new();
    let send = |seed: Option<u64>| {
        let body = json!({"prompt": "abcdefgh", "temperature": 1.0, "seed": seed, "n": 2});
        let answer = test_server.post(COMPLETIONS, &body).json();
        [answer["choices"][0]["token_ids"].clone(), answer["choices"][1]["token_ids"].clone()]
    };
    assert_eq!(send(Some(7)), send(Some(7)));
    let [first, second] = send(Some(7));
    assert_ne!(first, second, "two answers to one request draw apart");
    assert_ne!(send(None), send(None), "requests without a seed draw apart");
}

#[test]
fn models_and_health_are_as_they_are() {
    let test_server = TestServer::new();
    let list = test_server.get("/v1/models").json();
    assert_eq!(list["data"][0]["id"], "echo");
    assert_eq!(list["data"][0]["max_model_len"], 256);
    assert_eq!(list["data"][0]["bos_token_id"], 256);
    assert_eq!(list["data"][0]["eos_token_ids"], json!([257]));
    assert_eq!(test_server.get("/v1/models/org/echo").json()["id"], "org/echo");
    assert_eq!(test_server.get("/v1/models/gpt").status, 404);
    assert_eq!(test_server.get("/health").status, 200);
}

#[test]
fn texts_become_tokens_and_back() {
    let test_server = TestServer::new();
    let reply = test_server.post("/tokenize", &json!({"prompt": "aé", "return_token_strs": true}));
    let tokens = json!({
        "count": 4, "max_model_len": 256, "tokens": [256, 97, 195, 169],
        "token_strs": ["", "a", "\u{fffd}", "\u{fffd}"],
    });
    assert_eq!(reply.json(), tokens);
    let plain = json!({"model": "echo", "prompt": "a", "add_special_tokens": false});
    assert_eq!(test_server.post("/tokenize", &plain).json()["tokens"], json!([97]));
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(test_server.post("/tokenize", &chat).json()["count"], 7);
    // Only here may the tokens that begin an answer be left out; a request for an answer needs
    // them.
    let mut alone = chat;
    alone["add_generation_prompt"] = json!(false);
    let spelled = test_server.post("/tokenize", &alone).json()["tokens"].clone();
    assert_eq!(spelled, json!("<user>a<end>".bytes().collect::<Vec<u8>>()));
    assert_eq!(test_server.post(CHAT, &alone).status, 400);
    alone["add_generation_prompt"] = json!(true);
    assert_eq!(test_server.post("/tokenize", &alone).json()["count"], 7);
    alone["add_generation_prompt"] = json!("no");
    assert_eq!(test_server.post("/tokenize", &alone).status, 400);
    let back = test_server.post("/detokenize", &json!({"tokens": [256, 97, 195, 169]}));
    assert_eq!(back.json(), json!({"prompt": "aé", "content": "aé"}));
    let wrong = json!({"tokens": ["a"]});
    assert_eq!(test_server.post("/detokenize", &wrong).status, 400);
}

#[test]
fn metrics_count_what_was_done() {
    let test_server = TestServer::new();
    test_server.post(COMPLETIONS, &json!({"prompt": "abc", "max_tokens": 5}));
    test_server.post(COMPLETIONS, &json!({"prompt": "abc", "stream": true, "max_tokens": 3}));
    test_server.post(COMPLETIONS, &json!({"prompt": "abc", "max_tokens": -1}));
    // A stream is counted once its connection drops it.
    super::test_server::wait_until("counted", || {
        test_server.get("/metrics").text().contains("tandem_e2e_request_latency_seconds_count 2")
    });
    let text = test_server.get("/metrics").text();
    for line in [
        "tandem_time_to_first_token_seconds_count 2",
        "tandem_inter_token_latency_seconds_count 6",
        "tandem_time_to_first_token_seconds_bucket{le=\"2560.0\"} 2",
        "tandem_request_success_total{finished_reason=\"length\"} 2",
        "tandem_request_refused_total{reason=\"invalid_value\"} 1",
        "tandem_http_responses_total{status=\"400\"} 1",
        "tandem_request_queue_time_seconds_sum 0.06",
        "tandem_request_queue_time_seconds_count 2",
        "tandem_request_generation_tokens_sum 8.0",
        "tandem_generation_tokens_total 8",
        "tandem_num_requests_running 0.0",
        "tandem_num_requests_open 0.0",
        "tandem_engine_ready 1.0",
        "# EOF",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn the_page_needs_no_key_and_loads_nothing_from_elsewhere() {
    let options = ServerOptions { api_key: Some(ApiKey::new("k")), ..ServerOptions::default() };
    let test_server = TestServer::with_options(FakeEngineOptions::default(), options);
    assert_eq!(test_server.get("/v1/models").status, 401);
    for (path, kind) in
        [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")]
    {
        let reply = test_server.get(path);
        assert_eq!(reply.status, 200, "{path}");
        assert!(
            reply.header("content-type").is_some_and(|found| found.starts_with(kind)),
            "{path}"
        );
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        let text = reply.text();
        assert!(!text.contains("//localhost") && !text.contains("://"), "{path} names a host");
    }
    let html = test_server.get("/").text().to_owned();
    assert!(html.contains("src=\"page.js\"") && html.contains("href=\"page.css\""), "{html}");
    assert_eq!(test_server.post("/", &json!({})).status, 405);
}
