//! Tests that no client can disturb others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::fake_engine::FakeEngineOptions;
use super::http::{WATCHDOG, connect, exchange, parse, read_reply, request};
use super::test_server::{COMPLETIONS, TestServer, wait_until};
use crate::config::{ServerOptions, SocketLimits};

/// Raises the limit on descriptors to the maximum and returns it. Tests need one for each end of
/// every connection.
fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: now.maximum, maximum: now.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn healthy(test_server: &TestServer) {
    let began = Instant::now();
    assert_eq!(test_server.get("/health").status, 200);
    assert!(began.elapsed() < WATCHDOG);
    let body = json!({"prompt": "a", "max_tokens": 2});
    assert_eq!(test_server.post(COMPLETIONS, &body).status, 200);
}

#[test]
fn two_thousand_connections_meet_thirty_two_slots() {
    let connections = (raise_descriptors().saturating_sub(200) / 2).min(2000) as usize;
    assert!(connections >= 300, "only {connections} connections: see ulimit -n");
    let manner = FakeEngineOptions {
        slots: 32,
        step: Duration::from_millis(1),
        ..FakeEngineOptions::default()
    };
    let options = ServerOptions { max_queue: 200, ..ServerOptions::default() };
    let test_server = TestServer::with_options(manner, options);
    test_server.engine.hold(true);
    let before = resident_bytes();
    let body = json!({"prompt": "abcd".repeat(8), "max_tokens": 40, "stream": true}).to_string();
    let bytes = request("POST", COMPLETIONS, "", body.as_bytes());
    let mut streams: Vec<TcpStream> = (0..connections)
        .map(|_| {
            let mut stream = connect(test_server.address);
            stream.write_all(&bytes).expect("sent");
            stream
        })
        .collect();
    wait_until("as many are taken as there is room for", || test_server.engine.open() == 232);
    assert_eq!(test_server.get("/health").status, 200);
    test_server.engine.hold(false);
    let replies: Vec<_> = streams.iter_mut().map(read_reply).collect();
    let answered = replies.iter().filter(|reply| reply.status == 200);
    let answered: Vec<usize> = answered.map(|reply| reply.events().len()).collect();
    let refused = replies.iter().filter(|reply| reply.status == 429).count();
    assert_eq!(answered.len() + refused, connections);
    assert!(answered.len() >= 232, "{} were answered", answered.len());
    assert!(answered.iter().all(|events| *events == 40), "every one that was taken, to its end");
    // The kernel's socket buffers do not count as memory of the process.
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 256 << 20, "{} MiB more", grown >> 20);
    drop(streams);
    healthy(&test_server);
}

#[test]
fn clients_that_leave_give_their_places_back() {
    let manner = FakeEngineOptions {
        step: Duration::from_millis(1),
        context: 4096,
        ..FakeEngineOptions::default()
    };
    let test_server = TestServer::with_options(manner, ServerOptions::default());
    let neighbour = json!({"prompt": "neighbour", "max_tokens": 300}).to_string();
    let mut neighbour_stream = connect(test_server.address);
    neighbour_stream
        .write_all(&request("POST", COMPLETIONS, "", neighbour.as_bytes()))
        .expect("sent");
    wait_until("begun", || test_server.engine.open() == 1);
    for index in 0..60 {
        let streams = index % 2 == 0;
        let body = json!({"prompt": "leaves", "max_tokens": 4000, "stream": streams, "n": 2});
        let mut stream = connect(test_server.address);
        let bytes = request("POST", COMPLETIONS, "", body.to_string().as_bytes());
        stream.write_all(&bytes).expect("sent");
        match index % 3 {
            // The client disconnects before its request is read, while it waits, or while it is
            // answered.
            0 => {}
            1 => wait_until("taken", || test_server.engine.submissions().len() > 2 * index / 3),
            _ if streams => {
                let mut some = [0; 256];
                let _ = stream.read(&mut some).expect("an answer");
            }
            _ => std::thread::sleep(Duration::from_millis(3)),
        }
    }
    wait_until("all places are back", || test_server.engine.open() <= 1);
    let reply = read_reply(&mut neighbour_stream);
    let answer = reply.json();
    let ids = answer["choices"][0]["token_ids"].as_array().expect("ids");
    assert_eq!(ids.len(), 300);
    let prompt: Vec<u64> = [256].into_iter().chain("neighbour".bytes().map(u64::from)).collect();
    let expected = prompt.iter().cycle();
    assert!(ids.iter().zip(expected).all(|(id, expected)| id.as_u64() == Some(*expected)));
    wait_until("nothing is held", || {
        let text = test_server.get("/metrics").text();
        text.contains("tandem_num_requests_open 0.0")
            && text.contains("tandem_queue_prompt_tokens 0.0")
    });
    assert!(test_server.engine.cancelled() > 0);
    healthy(&test_server);
}

#[test]
fn a_reader_that_does_not_read_is_left() {
    let limits =
        SocketLimits { write_timeout: Duration::from_millis(300), ..SocketLimits::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    // The engine is slow enough that tokens come in many events.
    let step = Duration::from_micros(200);
    let manner = FakeEngineOptions { context: 1 << 20, step, ..FakeEngineOptions::default() };
    let mut desk_model = super::clients::card("echo");
    desk_model.max_positions = 1 << 20;
    let test_server = TestServer::with_model(manner, options, desk_model);
    // 20 log-probabilities per token make the answer several times the 4 MiB that a socket holds.
    let body = json!({"prompt": "slow", "max_tokens": 60_000, "stream": true, "temperature": 0,
        "logprobs": 20})
    .to_string();
    let mut stream = connect(test_server.address);
    stream.write_all(&request("POST", COMPLETIONS, "", body.as_bytes())).expect("sent");
    wait_until("begun", || !test_server.engine.submissions().is_empty());
    healthy(&test_server);
    wait_until("left", || test_server.get("/metrics").text().contains("reason=\"client_left\"} 1"));
    wait_until("its place is back", || test_server.engine.open() == 0);
    drop(stream);
    healthy(&test_server);
}

#[test]
fn half_a_request_holds_nothing_for_long() {
    let limits = SocketLimits {
        header_timeout: Duration::from_millis(200),
        body_timeout: Duration::from_millis(200),
        ..SocketLimits::default()
    };
    let test_server = TestServer::with_options(
        FakeEngineOptions::default(),
        ServerOptions { limits, ..ServerOptions::default() },
    );
    let closed = |mut stream: TcpStream| {
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => rest,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                rest
            }
        }
    };
    let silent = connect(test_server.address);
    let mut half_head = connect(test_server.address);
    half_head.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: he").expect("sent");
    let mut half_body = connect(test_server.address);
    let whole = request("POST", COMPLETIONS, "", b"{\"prompt\": \"abcdefgh\"}");
    half_body.write_all(&whole[..whole.len() - 6]).expect("sent");
    let mut idle = connect(test_server.address);
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n").expect("sent");
    healthy(&test_server);
    let reply = parse(&closed(half_body)).expect("an answer");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (408, &json!("body_timeout")));
    closed(silent);
    closed(half_head);
    // A connection that becomes idle after a request is closed too.
    assert_eq!(parse(&closed(idle)).expect("an answer").status, 200);
    healthy(&test_server);
}

#[test]
fn bodies_are_bounded_each_and_together() {
    let test_server = TestServer::new();
    let large = vec![b' '; 50 << 20];
    let reply = exchange(test_server.address, &request("POST", COMPLETIONS, "", &large));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("body_too_large")));
    // The length of a chunked body is known only at its end.
    let mut stream = connect(test_server.address);
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nTransfer-Encoding: \
         chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let chunk = [b"100000\r\n".as_slice(), &large[..1 << 20], b"\r\n"].concat();
    for _ in 0..40 {
        stream.write_all(&chunk).expect("sent");
    }
    stream.write_all(b"0\r\n\r\n").expect("sent");
    assert_eq!(read_reply(&mut stream).status, 413);
    healthy(&test_server);

    let limits = SocketLimits { bodies_bytes: 4 << 20, ..SocketLimits::default() };
    let test_server = TestServer::with_options(
        FakeEngineOptions::default(),
        ServerOptions { limits, ..ServerOptions::default() },
    );
    // Three incomplete bodies use up the memory, so that another one is refused; if that one
    // arrives first, one of the three is refused instead.
    let held = || -> Vec<TcpStream> {
        let send = |_| {
            let mut stream = connect(test_server.address);
            let bytes = request("POST", COMPLETIONS, "", &large[..2 << 20]);
            stream.write_all(&bytes[..(1 << 20) + (1 << 18)]).expect("sent");
            stream
        };
        (0..3).map(send).collect()
    };
    wait_until("full", || {
        let held = held();
        std::thread::sleep(Duration::from_millis(50));
        let reply =
            exchange(test_server.address, &request("POST", COMPLETIONS, "", &large[..1 << 19]));
        drop(held);
        reply.status == 429 && reply.json()["error"]["code"] == "too_many_bytes"
    });
    wait_until("room again", || {
        let reply =
            exchange(test_server.address, &request("POST", COMPLETIONS, "", &large[..1 << 20]));
        reply.status == 400
    });
    healthy(&test_server);
}

#[test]
fn the_longest_idle_connection_makes_way_for_another() {
    let limits = SocketLimits { connections: 4, ..SocketLimits::default() };
    let test_server = TestServer::with_options(
        FakeEngineOptions::default(),
        ServerOptions { limits, ..ServerOptions::default() },
    );
    test_server.engine.hold(true);
    let body = json!({"prompt": "a", "max_tokens": 2}).to_string();
    let mut answered = connect(test_server.address);
    answered.write_all(&request("POST", COMPLETIONS, "", body.as_bytes())).expect("sent");
    wait_until("taken", || test_server.engine.open() == 1);
    let mut idle: Vec<TcpStream> = (0..3)
        .map(|_| {
            let stream = connect(test_server.address);
            std::thread::sleep(Duration::from_millis(20));
            stream
        })
        .collect();
    assert_eq!(test_server.get("/health").status, 200, "one is closed for it");
    assert_eq!(idle[0].read(&mut [0; 1]).expect("closed"), 0, "the oldest");
    // If all connections are being answered, a new one waits.
    let mut others: Vec<TcpStream> = (0..3).map(|_| connect(test_server.address)).collect();
    for (taken, stream) in others.iter_mut().enumerate() {
        stream.write_all(&request("POST", COMPLETIONS, "", body.as_bytes())).expect("sent");
        wait_until("taken", || test_server.engine.open() == 2 + taken);
    }
    let mut waits = connect(test_server.address);
    waits.write_all(&request("GET", "/health", "", b"")).expect("sent");
    waits.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    let waited = waits.read(&mut [0; 1]).expect_err("it is not answered yet");
    assert!(matches!(waited.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{waited}");
    waits.set_read_timeout(Some(WATCHDOG)).expect("a socket");
    test_server.engine.hold(false);
    assert_eq!(read_reply(&mut waits).status, 200);
    assert!(
        others.iter_mut().chain([&mut answered]).all(|stream| read_reply(stream).status == 200)
    );
}
