//! A line of JSON for each request, written by a thread of its own, so that a full pipe holds up
//! nobody.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::Serialize;

use super::facts::LogPlace;

/// Lines that may wait to be written; more are lost, and counted.
const WAITING_MAX: usize = 1024;

/// What is said of a request when it has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogLine {
    /// Of its arrival, seconds since 1970.
    pub time_s: f64,
    pub id: String,
    /// As in the response's header `x-request-id`.
    pub request_id: String,
    pub endpoint: &'static str,
    /// Of the response.
    pub status: u16,
    /// How its answers ended, or what kept them from ending.
    pub outcome: String,
    pub stream: bool,
    pub answers: usize,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    pub first_token_ms: Option<f64>,
    pub total_ms: f64,
}

/// Where lines go.
#[derive(Debug)]
pub struct Log {
    lines: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
}

impl Log {
    /// Opens the place, whose lines are added to.
    ///
    /// # Errors
    /// A file that cannot be written, or no more threads.
    pub fn open(place: Option<&LogPlace>) -> io::Result<Log> {
        let to: Box<dyn Write + Send> = match place {
            None => return Ok(Log { lines: None, writer: None }),
            Some(LogPlace::StandardError) => Box::new(io::stderr()),
            Some(LogPlace::File(path)) => {
                Box::new(OpenOptions::new().create(true).append(true).open(path)?)
            }
        };
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let name = "log".to_owned();
        let writer = std::thread::Builder::new().name(name).spawn(move || write(to, &waiting))?;
        Ok(Log { lines: Some(lines), writer: Some(writer) })
    }

    /// Whether lines go anywhere.
    pub fn is_open(&self) -> bool {
        self.lines.is_some()
    }

    /// Adds a line; `false` where it is lost.
    pub fn add(&self, line: &LogLine) -> bool {
        let Some(lines) = &self.lines else { return true };
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        lines.try_send(bytes).is_ok()
    }
}

impl Drop for Log {
    /// What waits is written.
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write(mut to: Box<dyn Write + Send>, waiting: &Receiver<Vec<u8>>) {
    while let Ok(line) = waiting.recv() {
        // A place that takes nothing any more is no reason to answer nobody.
        let _ = to.write_all(&line);
    }
}
