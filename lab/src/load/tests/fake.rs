//! A server on plain sockets that answers as a test specifies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};

/// Behaviour of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Answers like `/v1/completions`, with one token per event.
    Openai,
    /// Answers like `/completion` of llama.cpp's server.
    Llama,
    /// Refuses every second request, beginning with the second one.
    HalfRefused,
    /// Ends the stream before its end marker.
    Cut,
    /// Sends an error instead of a token.
    ErrorWithin,
}

/// A received request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) body: Value,
}

/// Serves until the test ends. Requests are answered once `together` of them have arrived.
pub(super) fn serve(manner: Manner, together: usize) -> (SocketAddr, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (tell, asked) = channel();
    let all = Arc::new(Barrier::new(together));
    std::thread::spawn(move || {
        for (index, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let (tell, all) = (tell.clone(), Arc::clone(&all));
            std::thread::spawn(move || {
                let request = read(&mut stream);
                let tokens = tokens(&request.body);
                // The send fails if the test does not read requests and has dropped the receiver.
                let _ = tell.send(request);
                all.wait();
                // The write fails if the client has disconnected.
                let _ = answer(&mut stream, manner, index, tokens);
            });
        }
    });
    (address, asked)
}

fn tokens(body: &Value) -> u64 {
    let tokens = body.get("max_tokens").or_else(|| body.get("n_predict"));
    tokens.and_then(Value::as_u64).expect("a number of tokens")
}

fn read(stream: &mut TcpStream) -> Asked {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a request");
    let path = line.split(' ').nth(1).expect("a path").to_owned();
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().expect("a length"),
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    Asked { path, authorization, body: serde_json::from_slice(&body).expect("JSON") }
}

fn answer(
    stream: &mut TcpStream,
    manner: Manner,
    index: usize,
    tokens: u64,
) -> std::io::Result<()> {
    if manner == Manner::HalfRefused && index % 2 == 1 {
        let body = r#"{"error":{"message":"the queue is full","code":"queue_full"}}"#;
        let length = body.len();
        return write!(
            stream,
            "HTTP/1.1 429 Too Many Requests\r\nContent-Length: {length}\r\n\r\n{body}"
        );
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: ping\n\n")?;
    if manner == Manner::ErrorWithin {
        return write!(stream, "data: {{\"error\":{{\"message\":\"it broke\"}}}}\n\n");
    }
    for token in 0..tokens {
        let event = match manner {
            Manner::Llama => json!({"content": "a", "tokens": [token], "stop": false}),
            _ => json!({"choices": [{"text": "", "token_ids": [token]}]}),
        };
        write!(stream, "data: {event}\n\n")?;
        stream.flush()?;
    }
    match manner {
        Manner::Cut => Ok(()),
        Manner::Llama => {
            let last = json!({"content": "", "tokens": [], "stop": true,
                "tokens_predicted": tokens});
            write!(stream, "data: {last}\n\n")
        }
        _ => {
            let usage = json!({"choices": [], "usage": {"completion_tokens": tokens}});
            write!(stream, "data: {usage}\n\ndata: [DONE]\n\n")
        }
    }
}
