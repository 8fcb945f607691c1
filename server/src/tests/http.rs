//! A client that sends exactly the bytes that a test provides.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Time limit, which exceeds the duration of any request here.
pub(super) const WATCHDOG: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(super) fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut values = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        values.next().map(|(_, value)| value.to_owned())
    }

    /// Returns the events of a stream without the final `[DONE]`, which must be present.
    pub(super) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let kind = self.header("content-type").expect("a type");
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        let text = self.text();
        let lines = text.split("\n\n").filter(|event| !event.is_empty());
        let lines = lines.filter(|event| !event.starts_with(':'));
        let mut data: Vec<&str> =
            lines.map(|event| event.strip_prefix("data: ").expect("data")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{text}");
        data.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }
}

impl Reply {
    /// Returns the events of a stream whose events have names, with their names. The name of each
    /// is its `type`.
    pub(super) fn named_events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        let text = self.text();
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        let events = events.filter(|event| !event.starts_with(':'));
        let parse = |event: &str| {
            let (name, data) = event.split_once("\ndata: ").expect("a name and data");
            let value: Value = serde_json::from_str(data).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), value["type"].as_str(), "{event}");
            value
        };
        events.map(parse).collect()
    }
}

pub(super) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a server");
    stream.set_read_timeout(Some(WATCHDOG)).expect("a socket");
    stream.set_write_timeout(Some(WATCHDOG)).expect("a socket");
    stream
}

/// Returns the bytes of a request.
pub(super) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{headers}Content-Length: \
         {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Reads a response until the connection closes.
pub(super) fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an answer");
    parse(&bytes).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&bytes)))
}

/// Parses a response; `None` if the bytes are not one.
pub(super) fn parse(bytes: &[u8]) -> Option<Reply> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    if status == 100 {
        // An interim response is followed by another response.
        return parse(&bytes[end + 4..]);
    }
    let mut reply = Reply { status, head, body: bytes[end + 4..].to_vec() };
    if reply.header("transfer-encoding").as_deref() == Some("chunked") {
        reply.body = unchunked(&reply.body);
    }
    Some(reply)
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            break;
        }
        let chunk = &bytes[end + 2..];
        // A stream that was cut off ends within a chunk.
        body.extend_from_slice(&chunk[..size.min(chunk.len())]);
        bytes = chunk.get(size + 2..).unwrap_or_default();
    }
    body
}

pub(super) fn exchange(address: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = connect(address);
    stream.write_all(bytes).expect("sent");
    read_reply(&mut stream)
}

pub(super) fn get(address: SocketAddr, path: &str) -> Reply {
    exchange(address, &request("GET", path, "", b""))
}

pub(super) fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    exchange(address, &request("POST", path, "", body.to_string().as_bytes()))
}
