//! The whole input: its lines are read and tokenised by as many threads as there are cores, then
//! put together in order, where they must know of each other: their ids and the forms they ask for.

use shm::sync::{AtomicBool, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::input::{InputOptions, ReadLine, read_line};
use crate::openai::fingerprint::content_id;
use crate::openai::forms::Forms;
use crate::openai::item::{ErrorCode, Item, LineError, Rejection};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Lines that a thread takes at once.
const CHUNK_LINES: usize = 32;
/// Another thread is worth its own tokenizer for so much of an input.
const BYTES_PER_THREAD: usize = 256 << 10;
/// Between two looks at whether to go on.
const TICK: Duration = Duration::from_millis(100);

/// Told how many lines of how many are read, several times a second; says whether to go on.
pub type Watch<'w> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'w;

/// Reads a whole input: one item for each line that is not blank, in order. `None` where `watch`
/// broke off.
pub fn read_items(
    bytes: &[u8],
    options: &InputOptions<'_>,
    watch: &mut Watch<'_>,
) -> Option<Vec<Item>> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let lines: Vec<(usize, &[u8])> = bytes
        .split(|byte| *byte == b'\n')
        .map(|raw| raw.strip_suffix(b"\r").unwrap_or(raw))
        .enumerate()
        .filter(|(_, raw)| !raw.iter().all(u8::is_ascii_whitespace))
        .map(|(index, raw)| (index + 1, raw))
        .collect();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(bytes.len() / BYTES_PER_THREAD + 1);
    let read = read_lines(&lines, options, threads, watch)?;
    join(&lines, read, watch)
}

/// Reads every line by itself.
fn read_lines(
    lines: &[(usize, &[u8])],
    options: &InputOptions<'_>,
    threads: usize,
    watch: &mut Watch<'_>,
) -> Option<Vec<ReadLine>> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, receiver) = channel();
    let work = |sender: Sender<(usize, Vec<ReadLine>)>| {
        loop {
            let start = next.fetch_add(CHUNK_LINES, Ordering::Relaxed);
            let Some(rest) = lines.get(start..).filter(|rest| !rest.is_empty()) else { return };
            let chunk = rest.iter().take(CHUNK_LINES).map_while(|(line, raw)| {
                (!stop.load(Ordering::Relaxed)).then(|| read_line(raw, *line, options))
            });
            // Nobody waits for the rest of what was broken off.
            if sender.send((start, chunk.collect())).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let begin = |sender| thread::Builder::new().spawn_scoped(scope, || work(sender));
        let begun = (0..threads).filter_map(|_| begin(sender.clone()).ok()).count();
        if begun == 0 {
            // The system starts no more threads.
            work(sender);
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
            if watch(done, lines.len()).is_break() {
                stop.store(true, Ordering::Relaxed);
                return None;
            }
        }
        chunks.sort_unstable_by_key(|(start, _)| *start);
        Some(chunks.into_iter().flat_map(|(_, chunk)| chunk).collect())
    })
}

/// Gives every line its id and looks at the forms.
fn join(lines: &[(usize, &[u8])], read: Vec<ReadLine>, watch: &mut Watch<'_>) -> Option<Vec<Item>> {
    let mut first_line: HashMap<String, usize> = HashMap::new();
    let mut forms = Forms::default();
    let mut ids = ContentIds::default();
    let mut items = Vec::with_capacity(read.len());
    for ((line, raw), ReadLine { custom_id, is_request, result }) in lines.iter().zip(read) {
        if watch(lines.len(), lines.len()).is_break() {
            return None;
        }
        let line = *line;
        let custom_id = custom_id.unwrap_or_else(|| ids.of(raw));
        if is_request && let Some(first) = first_line.get(&custom_id) {
            let rejection = Rejection::new(
                ErrorCode::DuplicateCustomId,
                format!(
                    "The custom_id \"{custom_id}\" was already used in line {first}; give each \
                     request its own."
                ),
            );
            items.push(Item::Error(LineError { line, custom_id, rejection }));
            continue;
        }
        if is_request {
            first_line.insert(custom_id.clone(), line);
        }
        items.push(match result.and_then(|request| forms.check_request(request)) {
            Ok(mut request) => {
                request.custom_id = custom_id;
                Item::Request(request)
            }
            Err(rejection) => Item::Error(LineError { line, custom_id, rejection }),
        });
    }
    Some(items)
}

/// Ids of lines that give none: they follow the content, so that a line that is inserted changes
/// the id of no other.
#[derive(Default)]
struct ContentIds {
    /// How often each content has come.
    seen: HashMap<String, usize>,
}

impl ContentIds {
    fn of(&mut self, raw: &[u8]) -> String {
        let id = format!("line-{}", content_id(raw));
        let count = self.seen.entry(id.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { id } else { format!("{id}-{count}") }
    }
}
