//! The request log: one line of JSON per request, written by a separate thread, so that a full pipe
//! does not block requests.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;

use super::config::LogTarget;

/// Maximum number of lines that wait to be written; further lines are dropped and counted.
const QUEUED_LINES_MAX: usize = 1024;

/// Log entry of a request, written when it has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogLine {
    /// Time of the request's arrival, in seconds since 1970.
    pub time_s: f64,
    pub id: String,
    /// Id of the request, as in the response's header `x-request-id`.
    pub request_id: String,
    pub endpoint: &'static str,
    /// HTTP status of the response.
    pub status: u16,
    /// Finish reasons of the answers, separated by commas, or what cut them off: the code of an
    /// error or `client_left`.
    pub outcome: String,
    pub stream: bool,
    pub answers: usize,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub first_token_ms: Option<f64>,
    pub total_ms: f64,
}

/// The request log.
#[derive(Debug)]
pub struct RequestLog {
    lines: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
}

impl RequestLog {
    /// Opens the log, to which lines are appended.
    ///
    /// # Errors
    /// The file cannot be written, or the system cannot start a thread.
    pub fn open(place: Option<&LogTarget>) -> io::Result<RequestLog> {
        let to: Box<dyn Write + Send> = match place {
            None => return Ok(RequestLog { lines: None, writer: None }),
            Some(LogTarget::StandardError) => Box::new(io::stderr()),
            Some(LogTarget::File(path)) => {
                Box::new(OpenOptions::new().create(true).append(true).open(path)?)
            }
        };
        let (lines, receiver) = sync_channel(QUEUED_LINES_MAX);
        let name = "log".to_owned();
        let writer = std::thread::Builder::new().name(name).spawn(move || write(to, &receiver))?;
        Ok(RequestLog { lines: Some(lines), writer: Some(writer) })
    }

    /// Returns true if lines are written anywhere.
    pub fn is_open(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds a line; returns false if it is dropped.
    pub fn add(&self, line: &LogLine) -> bool {
        let Some(lines) = &self.lines else { return true };
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        lines.try_send(bytes).is_ok()
    }
}

impl Drop for RequestLog {
    /// Waits until the queued lines are written.
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write(mut to: Box<dyn Write + Send>, lines: &Receiver<Vec<u8>>) {
    while let Ok(line) = lines.recv() {
        // A log that can no longer be written is no reason to stop answering requests.
        let _ = to.write_all(&line);
    }
}
