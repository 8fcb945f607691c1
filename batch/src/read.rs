//! Parallel reader of a whole input: lines are parsed and tokenized by one thread per core, then
//! joined in order to resolve dependencies between them: unique IDs and shared grammars.

use std::collections::HashMap;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use openai::fingerprint::content_id;
use openai::grammar_cache::GrammarCache;
use openai::input_line::{ErrorCode, InputLine, LineError, Rejection};
use shm::sync::{AtomicBool, AtomicUsize, Ordering};

use super::error::JobError;
use super::input::{InputOptions, ParsedLine, parse_line};
use super::kind::JobRequest;
use super::progress_counter::ProgressCounter;

/// UTF-8 byte order mark, with which some editors begin a file.
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";

/// Lines that a thread takes at a time.
const CHUNK_LINES: usize = 32;
/// Input bytes that justify another thread with its own tokenizer.
const BYTES_PER_THREAD: usize = 256 << 10;
/// Interval between calls of the watch function.
const TICK: Duration = Duration::from_millis(100);

/// Function called several times a second with the number of lines read and their total; it decides
/// whether to continue.
pub type ReadMonitor<'w> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'w;

/// Parses a whole input of completion requests: one item for each line that is not blank, in order.
/// Returns `None` if `on_progress` broke off.
pub fn parse_input(
    bytes: &[u8],
    options: &InputOptions<'_>,
    on_progress: &mut ReadMonitor<'_>,
) -> Option<Vec<InputLine>> {
    let grammars = GrammarCache::default();
    let parse = |raw: &[u8], line| parse_line(raw, line, options);
    let max_threads = options.bounds.map_or(usize::MAX, |bounds| bounds.max_threads);
    let resolve = |request| grammars.check_request(request);
    parse_items(bytes, max_threads, &parse, &resolve, on_progress)
}

/// Parses a whole input: each line on its own with `parse`, on at most `max_threads` threads, then
/// all in order with `resolve`. Returns `None` if `on_progress` broke off.
pub(super) fn parse_items<R: JobRequest + Send>(
    bytes: &[u8],
    max_threads: usize,
    parse: &(dyn Fn(&[u8], usize) -> ParsedLine<R> + Sync),
    resolve: &dyn Fn(R) -> Result<R, Rejection>,
    on_progress: &mut ReadMonitor<'_>,
) -> Option<Vec<InputLine<R>>> {
    let lines = split_lines(bytes);
    let parsed = parse_lines(&lines, max_threads, parse, on_progress)?;
    resolve_lines(&lines, parsed, resolve, on_progress)
}

/// Parses an input with `parse`, and reports the progress.
///
/// # Errors
/// Returns an error if reading is interrupted, or for a line that could not be tokenized because
/// the tokenizer keeps failing: the line may be valid.
pub(super) fn read_items<R>(
    reading: &mut ProgressCounter,
    interrupted: &dyn Fn() -> bool,
    parse: impl FnOnce(&mut ReadMonitor<'_>) -> Option<Vec<InputLine<R>>>,
) -> Result<Vec<InputLine<R>>, JobError> {
    let items = parse(&mut |done, total| {
        reading.update(done, total);
        if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    reading.end();
    let items = items.ok_or(JobError::Interrupted)?;
    let is_lost = |error: &&LineError| error.rejection.code == ErrorCode::InternalError;
    match items.iter().filter_map(InputLine::error).find(is_lost) {
        Some(LineError { line, rejection, .. }) => {
            Err(JobError::Tokenizer(format!("line {line}: {}", rejection.message)))
        }
        None => Ok(items),
    }
}

/// Returns the lines of a file that are not blank, with their numbers from 1.
fn split_lines(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    bytes
        .split(|byte| *byte == b'\n')
        .map(|raw| raw.strip_suffix(b"\r").unwrap_or(raw))
        .enumerate()
        .filter(|(_, raw)| !raw.iter().all(u8::is_ascii_whitespace))
        .map(|(index, raw)| (index + 1, raw))
        .collect()
}

/// Reads every line on its own, with one thread per core, but at most `max_threads`. Returns `None`
/// if `on_progress` broke off.
fn parse_lines<T: Send>(
    lines: &[(usize, &[u8])],
    max_threads: usize,
    read: &(dyn Fn(&[u8], usize) -> T + Sync),
    on_progress: &mut ReadMonitor<'_>,
) -> Option<Vec<T>> {
    let size_bytes: usize = lines.iter().map(|(_, raw)| raw.len()).sum();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(max_threads).min(size_bytes / BYTES_PER_THREAD + 1);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = channel();
    let run_worker = |sender: Sender<(usize, Vec<T>)>| {
        loop {
            let start = next.fetch_add(CHUNK_LINES, Ordering::Relaxed);
            let Some(rest) = lines.get(start..).filter(|rest| !rest.is_empty()) else { return };
            let chunk = rest
                .iter()
                .take(CHUNK_LINES)
                .map_while(|(line, raw)| (!stop.load(Ordering::Relaxed)).then(|| read(raw, *line)));
            // The receiver is gone if `watch` broke off.
            if sender.send((start, chunk.collect())).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let spawn_worker =
            |sender| thread::Builder::new().spawn_scoped(scope, || run_worker(sender));
        let spawned = (0..threads).filter_map(|_| spawn_worker(sender.clone()).ok()).count();
        if spawned == 0 {
            // The system starts no more threads.
            run_worker(sender);
        } else {
            drop(sender);
        }
        let mut chunks = Vec::new();
        let mut done = 0;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(chunk) => {
                    done += chunk.1.len();
                    chunks.push(chunk);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if on_progress(done, lines.len()).is_break() {
                stop.store(true, Ordering::Relaxed);
                return None;
            }
        }
        chunks.sort_unstable_by_key(|(start, _)| *start);
        Some(chunks.into_iter().flat_map(|(_, chunk)| chunk).collect())
    })
}

/// Gives every line its ID, and resolves what depends on other lines.
fn resolve_lines<R: JobRequest>(
    lines: &[(usize, &[u8])],
    parsed: Vec<ParsedLine<R>>,
    resolve: &dyn Fn(R) -> Result<R, Rejection>,
    on_progress: &mut ReadMonitor<'_>,
) -> Option<Vec<InputLine<R>>> {
    let mut ids = CustomIds::default();
    let mut items = Vec::with_capacity(parsed.len());
    for ((line, raw), ParsedLine { custom_id, is_request, result }) in lines.iter().zip(parsed) {
        if on_progress(lines.len(), lines.len()).is_break() {
            return None;
        }
        let line = *line;
        let custom_id = match ids.assign(custom_id, is_request, raw, line) {
            Ok(custom_id) => custom_id,
            Err(error) => {
                items.push(InputLine::Error(error));
                continue;
            }
        };
        items.push(match result.and_then(resolve) {
            Ok(mut request) => {
                request.set_custom_id(custom_id);
                InputLine::Request(request)
            }
            Err(rejection) => InputLine::Error(LineError { line, custom_id, rejection }),
        });
    }
    Some(items)
}

/// The IDs of all lines, unique among requests.
#[derive(Debug, Default)]
struct CustomIds {
    /// Line that first used each ID.
    first_line: HashMap<String, usize>,
    content: ContentIds,
}

impl CustomIds {
    /// Returns the ID of a line. A malformed line gets an ID, but does not reserve it.
    ///
    /// # Errors
    /// Returns the error of a line whose ID is already used.
    fn assign(
        &mut self,
        given: Option<String>,
        is_request: bool,
        raw: &[u8],
        line: usize,
    ) -> Result<String, LineError> {
        let custom_id = given.unwrap_or_else(|| self.content.next_id(raw));
        if !is_request {
            return Ok(custom_id);
        }
        if let Some(first) = self.first_line.get(&custom_id) {
            let rejection = Rejection::new(
                ErrorCode::DuplicateCustomId,
                format!(
                    "Invalid value for 'custom_id': \"{custom_id}\" was already used in line \
                     {first}. Use a different one for each request."
                ),
            );
            return Err(LineError { line, custom_id, rejection });
        }
        self.first_line.insert(custom_id.clone(), line);
        Ok(custom_id)
    }
}

/// IDs of lines without `custom_id`, derived from their content, so that an inserted line changes
/// no other ID.
#[derive(Debug, Default)]
struct ContentIds {
    /// Number of occurrences of each content.
    seen: HashMap<String, usize>,
}

impl ContentIds {
    fn next_id(&mut self, raw: &[u8]) -> String {
        let id = format!("line-{}", content_id(raw));
        let count = self.seen.entry(id.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { id } else { format!("{id}-{count}") }
    }
}
