//! Tests of hostile clients of a server: randomly changed bodies, bytes that are not HTTP, clients
//! that send and read slowly, and grammars that take long to compile. Every complete request gets a
//! documented status, and the server continues to answer others as before.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::from_environment;
use super::mutate::{self, Random};
use crate::command::WATCHDOG;
use crate::serve::Served;

/// Default number of mutations.
const CASES: u64 = 300;

/// Statuses that any request may get while the server is healthy.
const STATUSES: [u16; 11] = [200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431];

fn cases() -> u64 {
    from_environment("TANDEM_FUZZ_CASES").unwrap_or(CASES)
}

fn seed() -> u64 {
    from_environment("TANDEM_FUZZ_SEED").unwrap_or(1)
}

fn seeds() -> Vec<(&'static str, Value)> {
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
    });
    let named = json!({"name": "n", "schema": schema});
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]);
    vec![
        ("/v1/completions", json!({"prompt": "a b", "max_tokens": 2, "stop": ["x", "yz"], "n": 2})),
        (
            "/v1/completions",
            json!({"prompt": [5, 6], "max_tokens": 2, "logprobs": 2, "echo": true}),
        ),
        ("/completions", json!({"prompt": ["a", "b"], "max_tokens": 2, "stream": true})),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 2,
                   "structured_outputs": {"choice": ["yes", "no"]}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 2, "stream": true,
                   "response_format": {"type": "json_schema", "json_schema": named}}),
        ),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2, "logprobs": true})),
        ("/tokenize", json!({"prompt": "a b c", "return_token_strs": true})),
        ("/detokenize", json!({"tokens": [5, 6, 7]})),
    ]
}

/// Sends bytes and reads to the end; returns the reply, even if the connection fails.
fn exchange(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(served.address()).expect("a server");
    stream.set_read_timeout(Some(WATCHDOG)).expect("a socket");
    stream.set_write_timeout(Some(WATCHDOG)).expect("a socket");
    // The server may reply before everything is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    let mut some = [0; 4096];
    while let Ok(read) = stream.read(&mut some)
        && read > 0
    {
        reply.extend_from_slice(&some[..read]);
    }
    reply
}

/// Returns the status of a reply, skipping interim ones.
fn status(reply: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(reply);
    let lines = text.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 "));
    let statuses = lines.filter_map(|line| line.get(..3)?.parse().ok());
    statuses.into_iter().find(|status| *status != 100)
}

fn whole(path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: \
         {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns an answer to compare before and after the hostile requests.
fn answer(served: &Served) -> Value {
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 6, "seed": 3, "logprobs": 1});
    let (status, reply) = served.post("/v1/completions", &body);
    assert_eq!(status, 200, "{reply}");
    let answer: Value = serde_json::from_str(&reply).expect("JSON");
    answer["choices"].clone()
}

fn start() -> Served {
    Served::start(&["--slots", "4", "--context", "128", "--timeout", "60"])
}

#[test]
fn bodies_of_requests() {
    let served = start();
    let before = answer(&served);
    let mut random = Random(seed());
    let seeds = seeds();
    for _ in 0..cases() {
        let state = random.0;
        let (path, value) = random.pick(&seeds);
        let mut value = value.clone();
        let body = if random.below(4) == 0 {
            let mut bytes = value.to_string().into_bytes();
            mutate::bytes(&mut bytes, &mut random);
            bytes
        } else {
            for _ in 0..=random.below(2) {
                mutate::json(&mut value, &mut random);
            }
            value.to_string().into_bytes()
        };
        let reply = exchange(&served, &whole(path, &body));
        let status = status(&reply);
        let shown = String::from_utf8_lossy(&reply[..reply.len().min(600)]).into_owned();
        assert!(status.is_some_and(|one| STATUSES.contains(&one)), "seed {state}: {shown}");
        if status != Some(200) {
            assert!(shown.contains("\"error\""), "seed {state}: {shown}");
        }
    }
    assert_eq!(answer(&served), before);
    assert_eq!(served.end(), "");
}

#[test]
fn bytes_on_sockets() {
    let served = start();
    let before = answer(&served);
    let mut random = Random(seed());
    let body = br#"{"prompt":"a","max_tokens":2}"#;
    let chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: \
                    chunked\r\nConnection: close\r\n\r\n1d\r\n\
                    {\"prompt\":\"a\",\"max_tokens\":2}\r\n0\r\n\r\n";
    let seeds = [
        whole("/v1/completions", body),
        chunked.to_vec(),
        b"GET /v1/models/a%20b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.0\r\n\r\n".to_vec(),
        b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(5),
    ];
    for _ in 0..cases() {
        let state = random.0;
        let mut bytes = random.pick(&seeds).clone();
        for _ in 0..random.below(4) {
            mutate::bytes(&mut bytes, &mut random);
        }
        let reply = exchange(&served, &bytes);
        let shown = String::from_utf8_lossy(&reply[..reply.len().min(300)]).into_owned();
        // An incomplete request may get no reply.
        let is_right = status(&reply).is_none_or(|one| STATUSES.contains(&one) || one == 414);
        assert!(is_right, "seed {state}: {shown}");
    }
    assert_eq!(answer(&served), before);
    assert_eq!(served.end(), "");
}

#[test]
fn clients_that_are_slow() {
    let served = start();
    let before = answer(&served);
    let mut random = Random(seed());
    let count = (cases() / 4).clamp(20, 400) as usize;
    let long = json!({"prompt": "a", "max_tokens": 200, "ignore_eos": true, "stream": true,
                      "logprobs": 5});
    let mut held = Vec::new();
    for _ in 0..count {
        let bytes = match random.below(3) {
            0 => whole("/v1/completions", &vec![b' '; 1000]),
            1 => b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec(),
            _ => whole("/v1/completions", long.to_string().as_bytes()),
        };
        let mut stream = TcpStream::connect(served.address()).expect("a server");
        let sent = match random.below(4) {
            0 => bytes.len(),
            _ => 1 + random.below(bytes.len()),
        };
        stream.write_all(&bytes[..sent.min(bytes.len())]).expect("it is taken");
        held.push(stream);
    }
    // All of them hold their connections, but neither a slot of the queue nor the last connection.
    for _ in 0..5 {
        assert_eq!(served.get("/health").0, 200);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(answer(&served), before);
    drop(held);
    assert_eq!(answer(&served), before);
    assert_eq!(served.end(), "");
}

#[test]
fn grammars_that_take_long() {
    let served = start();
    let before = answer(&served);
    let mut random = Random(seed());
    let count = (cases() / 50).clamp(6, 60) as usize;
    let mut body = |index: usize| {
        let form = match random.below(3) {
            0 => json!({"choice": (0..1500).map(|i| format!("c {index} {i}")).collect::<Vec<_>>()}),
            1 => {
                let most = 300 + random.below(400);
                json!({"regex": format!("([a-z]{{1,{most}}}|[0-9]{{2,{most}}}){{1,4}}{index}")})
            }
            _ => {
                let properties = 200 + random.below(400);
                let named =
                    (0..properties).map(|i| (format!("p{index}_{i}"), json!({"type": "string"})));
                let named: serde_json::Map<String, Value> = named.collect();
                let required: Vec<&String> = named.keys().collect();
                json!({"json": {"type": "object", "required": required, "properties": named,
                                "additionalProperties": false}})
            }
        };
        json!({"prompt": "a", "max_tokens": 2, "n": 8, "structured_outputs": form})
    };
    let bodies: Vec<Value> = (0..count).map(&mut body).collect();
    std::thread::scope(|scope| {
        let asked: Vec<_> = bodies
            .iter()
            .map(|body| scope.spawn(|| served.post("/v1/completions", body)))
            .collect();
        while asked.iter().any(|thread| !thread.is_finished()) {
            assert_eq!(served.get("/health").0, 200);
            assert_eq!(answer(&served), before);
        }
        for thread in asked {
            let (status, reply) = thread.join().expect("a reply");
            assert!([200, 400, 429].contains(&status), "{status} {reply}");
        }
    });
    assert_eq!(answer(&served), before);
    assert_eq!(served.end(), "");
}
