//! Limits on the resources that one request can use, and on its effect on others.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::fake_engine::FakeEngineOptions;
use super::http::{Reply, connect, exchange, read_reply, request};
use super::test_server::{CHAT, COMPLETIONS, TestServer, wait_until};
use crate::config::{ServerOptions, SocketLimits};

/// Returns the maximum resident memory of this process so far, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn send(test_server: &TestServer, body: &Value) -> TcpStream {
    let mut stream = connect(test_server.address);
    let bytes = request("POST", COMPLETIONS, "", body.to_string().as_bytes());
    stream.write_all(&bytes).expect("sent");
    stream
}

fn refused(reply: &Reply, status: u16, code: &str, says: &str) {
    let error = &reply.json()["error"];
    let message = error["message"].as_str().expect("a sentence");
    assert_eq!((reply.status, &error["code"]), (status, &json!(code)), "{message}");
    assert!(message.contains(says), "{message}");
}

#[test]
fn stop_strings_are_bounded_in_number_and_size() {
    let test_server = TestServer::new();
    let with = |stop: Value| test_server.post(COMPLETIONS, &json!({"prompt": "ab", "stop": stop}));
    let many = |count: usize| Value::from((0..count).map(|i| format!("s{i}")).collect::<Vec<_>>());
    assert_eq!(with(many(64)).status, 200);
    refused(&with(many(65)), 400, "invalid_value", "at most 64");
    refused(&with(many(300_000)), 400, "invalid_value", "at most 64");
    refused(&with(json!(["x".repeat(20_000)])), 400, "invalid_value", "16384 bytes");
}

#[test]
fn a_grammar_is_prepared_once_and_holds_up_nobody() {
    let test_server = TestServer::new();
    let choices: Vec<String> = (0..4096).map(|index| format!("choice {index}")).collect();
    let body = json!({
        "prompt": "a", "n": 4, "max_tokens": 2, "structured_outputs": {"choice": choices},
    });
    test_server.engine.hold_prepare(true);
    // There are more requests than threads for grammars.
    let mut waiting: Vec<TcpStream> = (0..6).map(|_| send(&test_server, &body)).collect();
    wait_until("they are prepared", || test_server.engine.prepared() == 2);
    assert_eq!(test_server.get("/health").status, 200);
    let plain = json!({"prompt": "a", "max_tokens": 2, "stream": true});
    assert_eq!(test_server.post(COMPLETIONS, &plain).events().len(), 2);
    assert_eq!(test_server.post("/tokenize", &json!({"prompt": "a"})).status, 200);
    test_server.engine.hold_prepare(false);
    assert!(waiting.iter_mut().all(|stream| read_reply(stream).status == 200));
    assert_eq!(test_server.engine.prepared(), 6, "once for each request");
    let beyond = vec!["x".repeat(1000); 300];
    let body = json!({"prompt": "a", "structured_outputs": {"choice": beyond}});
    refused(&test_server.post(COMPLETIONS, &body), 400, "invalid_value", "bytes");
}

#[test]
fn bodies_have_a_bounded_number_of_values() {
    let test_server = TestServer::new();
    let list = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    let post = |body: String| {
        exchange(test_server.address, &request("POST", COMPLETIONS, "", body.as_bytes()))
    };
    let before = peak_bytes();
    // A field of about 14 MB that is ignored.
    let ignored = format!("{{\"prompt\":\"a\",\"max_tokens\":1,\"metadata\":{}}}", list(7_000_000));
    assert_eq!(post(ignored).status, 200);
    let tokens = format!("{{\"prompt\":{}}}", list(7_000_000));
    refused(&post(tokens), 400, "invalid_value", "1000000 JSON values");
    let unknown = format!("{{\"prompt\":\"a\",\"what\":{}}}", list(7_000_000));
    refused(&post(unknown), 400, "invalid_value", "1000000 JSON values");
    let message = "{\"role\":\"user\",\"content\":\"\"}";
    let messages = format!(
        "{{\"messages\":[{}]}}",
        format!("{message},").repeat(700_000).trim_end_matches(',')
    );
    let reply = exchange(test_server.address, &request("POST", CHAT, "", messages.as_bytes()));
    refused(&reply, 400, "invalid_value", "1000000 JSON values");
    let messages =
        format!("{{\"messages\":[{}]}}", format!("{message},").repeat(5000).trim_end_matches(','));
    let reply = exchange(test_server.address, &request("POST", CHAT, "", messages.as_bytes()));
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("5000 messages"), "{}", reply.text());
    // Includes the bodies that this test itself holds.
    let grown = peak_bytes().saturating_sub(before) >> 20;
    assert!(grown < 400, "{grown} MiB");
}

#[test]
fn a_text_to_tokenise_is_bounded() {
    let test_server = TestServer::new();
    let reply = test_server.post("/tokenize", &json!({"prompt": "a".repeat(1 << 20)}));
    assert_eq!((reply.status, &reply.json()["count"]), (200, &json!((1 << 20) + 1)));
    let reply = test_server.post("/tokenize", &json!({"prompt": "a".repeat(3 << 20)}));
    refused(&reply, 400, "invalid_value", "2097152");
}

#[test]
fn answers_stay_within_their_memory() {
    let manner = FakeEngineOptions { slots: 16, context: 1024, ..FakeEngineOptions::default() };
    let options = ServerOptions { answer_memory_bytes: 24 << 20, ..ServerOptions::default() };
    let test_server = TestServer::with_options(manner, options);
    let asks = |n: usize, max_tokens: usize| {
        json!({"prompt": "abcdefgh", "n": n, "max_tokens": max_tokens, "logprobs": 20,
               "temperature": 0})
    };
    refused(
        &test_server.post(COMPLETIONS, &asks(128, 1000)),
        400,
        "answers_too_large",
        "24 MiB for all",
    );
    let before = peak_bytes();
    let reply = test_server.post(COMPLETIONS, &asks(64, 400));
    let grown = peak_bytes().saturating_sub(before);
    assert_eq!(reply.status, 200, "{}", reply.text());
    // The counted bytes, and two copies of the reply that this test holds.
    let allowed = (24 << 20) + 4 * reply.body.len() as u64 + (8 << 20);
    assert!(grown < allowed, "{} of {} MiB", grown >> 20, allowed >> 20);
    // The response is the same as if it were written at once.
    let answer = reply.json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!((choices.len(), &answer["object"]), (64, &json!("text_completion")));
    assert_eq!(answer["usage"]["completion_tokens"], 64 * 400);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["logprobs"]["tokens"].as_array().map(Vec::len), Some(400));
        let top = &choice["logprobs"]["top_logprobs"][399];
        assert!(top.as_object().is_some_and(|top| top.len() > 10), "{top}");
    }
    let small = test_server.post(COMPLETIONS, &asks(2, 8)).json();
    for (index, choice) in small["choices"].as_array().expect("choices").iter().enumerate() {
        let ids = choice["token_ids"].as_array().expect("ids");
        let of_large = choices[index]["token_ids"].as_array().expect("ids");
        assert_eq!(ids[..], of_large[..8]);
    }
    // Memory that other requests use is not available until they end.
    test_server.engine.hold(true);
    let mut first = send(&test_server, &asks(64, 400));
    wait_until("taken", || test_server.engine.open() == 64);
    let reply = test_server.post(COMPLETIONS, &asks(64, 400));
    refused(&reply, 429, "answer_memory_full", "--max-answer-memory");
    assert!(reply.header("retry-after").is_some());
    let plain = send(&test_server, &json!({"prompt": "a", "max_tokens": 1000}));
    wait_until("a plain answer always has memory", || test_server.engine.open() == 65);
    test_server.engine.hold(false);
    assert_eq!(read_reply(&mut first).status, 200);
    drop(plain);
    wait_until("given back", || test_server.post(COMPLETIONS, &asks(64, 400)).status == 200);
}

#[test]
fn bodies_that_do_not_come_hold_no_places() {
    let limits =
        SocketLimits { body_timeout: Duration::from_millis(1500), ..SocketLimits::default() };
    let options = ServerOptions { max_queue: 0, limits, ..ServerOptions::default() };
    let test_server = TestServer::with_options(
        FakeEngineOptions { slots: 1, ..FakeEngineOptions::default() },
        options,
    );
    let whole = request("POST", COMPLETIONS, "", b"{\"prompt\": \"abcdefgh\"}");
    let mut dripping: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = connect(test_server.address);
            stream.write_all(&whole[..whole.len() - 18]).expect("sent");
            stream
        })
        .collect();
    // Their heads are read while the only place is free.
    std::thread::sleep(Duration::from_millis(200));
    let body = json!({"prompt": "a", "max_tokens": 1});
    wait_until("answered", || test_server.post(COMPLETIONS, &body).status == 200);
    // An occasional byte is too slow.
    for byte in &whole[whole.len() - 18..whole.len() - 8] {
        std::thread::sleep(Duration::from_millis(250));
        for stream in &mut dripping {
            // The server may have closed the connection already.
            let _ = stream.write_all(&[*byte]);
        }
    }
    let reply = read_reply(&mut dripping[0]);
    refused(&reply, 408, "body_timeout", "Timed out");
    assert_eq!(test_server.post(COMPLETIONS, &body).status, 200);
}

#[test]
fn a_slow_reader_holds_no_place_and_gets_the_whole_answer() {
    let manner = FakeEngineOptions { slots: 1, context: 1 << 20, ..FakeEngineOptions::default() };
    let mut model = super::clients::card("echo");
    model.max_positions = 1 << 20;
    let options = ServerOptions { max_queue: 0, ..ServerOptions::default() };
    let test_server = TestServer::with_model(manner, options, model);
    let tokens = 60_000;
    let mut slow = send(
        &test_server,
        &json!({"prompt": "slow", "max_tokens": tokens, "stream": true, "logprobs": 20,
                "temperature": 0}),
    );
    wait_until("begun", || !test_server.engine.submissions().is_empty());
    wait_until("computed", || test_server.engine.open() == 0);
    // The answer exceeds the socket buffers, so it is not written completely yet.
    let body = json!({"prompt": "a", "max_tokens": 2});
    wait_until("its place is free", || test_server.post(COMPLETIONS, &body).status == 200);
    let events = read_reply(&mut slow).events();
    let ids = events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array());
    assert_eq!(ids.map(Vec::len).sum::<usize>(), tokens);
    let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    let text: String = texts.collect();
    assert!(text.starts_with("slowslow") && text.len() == tokens - tokens / 5, "{}", text.len());
    assert!(events.len() < tokens, "several tokens came together");
}
