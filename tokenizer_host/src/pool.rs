//! Pool of text processes, at most as many as there are concurrent requests. A reply does not
//! depend on earlier requests, so a request whose process is killed is sent to another one.
//!
//! A process takes a tenth of a second of processor time to start, in which it delays whatever else
//! runs. Therefore only one starts at a time, and a request that finds none idle takes the first
//! that is, whether it started or finished its request. Requests about answers, which the next
//! token of a stream waits for, come before those of clients.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine_api::codec::CodecError;

use super::message::{TextReply, TextRequest};
use super::process::{TextError, TextProcess};

/// Pause before each attempt of a request, in milliseconds.
const PAUSES_MS: [u64; 5] = [0, 0, 50, 100, 200];
/// Maximum number of attempts of a request whose processes exceed their own limits.
const MAX_SELF_INFLICTED_TRIES: usize = 2;
/// Minimum size of a request, in bytes, after which its process is ended, since the process keeps
/// the memory that it allocated.
const LARGE_BYTES: usize = 4 << 20;
/// Time for which a request about an answer waits for a process before it starts another one.
const ANSWER_PATIENCE: Duration = Duration::from_millis(20);

/// A process that answers requests.
pub trait TextService {
    /// Answers a request. After any error but [`TextError::Refused`] the process is unusable.
    ///
    /// # Errors
    /// See [`TextError`].
    fn ask(&mut self, request: &TextRequest) -> Result<TextReply, TextError>;
}

impl TextService for TextProcess {
    fn ask(&mut self, request: &TextRequest) -> Result<TextReply, TextError> {
        TextProcess::ask(self, request)
    }
}

/// Function that starts another process.
pub type StartProcess<P> = Box<dyn Fn() -> Result<P, TextError> + Send + Sync>;

/// Pool of interchangeable processes.
pub struct TextProcessPool<P> {
    start: StartProcess<P>,
    processes: Mutex<Processes<P>>,
    /// Signalled when a process becomes idle or a start has ended.
    changed: Condvar,
    /// Number of requests that may fail before the first answer; after that, no more are attempted.
    max_failures: u32,
    failures: Mutex<FailureRecord>,
}

/// Processes of a pool that have no request, and the requests that wait for one.
#[derive(Debug)]
struct Processes<P> {
    idle: Vec<P>,
    /// True while a process starts.
    is_starting: bool,
    /// Number of waiting requests about answers.
    waiting_answers: usize,
}

impl<P> Processes<P> {
    /// Takes an idle process, which a client's request leaves to waiting ones about answers.
    fn take(&mut self, is_from_client: bool) -> Option<P> {
        if is_from_client && self.waiting_answers > 0 { None } else { self.idle.pop() }
    }
}

/// Record of requests without an answer.
#[derive(Debug, Default)]
struct FailureRecord {
    /// A client's text was answered, so the tokenizer works.
    has_answered: bool,
    consecutive: u32,
    /// Error of all further requests, once the pool has given up.
    given_up: Option<CodecError>,
}

impl<P> std::fmt::Debug for TextProcessPool<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextProcessPool").field("failures", &self.failures).finish_non_exhaustive()
    }
}

impl<P: TextService> TextProcessPool<P> {
    /// Creates a pool of one process.
    pub fn new(first: P, max_failures: u32, start: StartProcess<P>) -> TextProcessPool<P> {
        TextProcessPool {
            start,
            processes: Mutex::new(Processes {
                idle: vec![first],
                is_starting: false,
                waiting_answers: 0,
            }),
            changed: Condvar::new(),
            max_failures,
            failures: Mutex::default(),
        }
    }

    /// Ends all processes but one, after a phase of many concurrent requests.
    pub fn shrink_to_one(&self) {
        lock(&self.processes).idle.truncate(1);
    }

    /// Answers a request, with another process if one is killed meanwhile.
    ///
    /// # Errors
    /// Returns an error if the tokenizer refuses the request, a client's text exceeds the limits of
    /// a process, or processes keep ending.
    pub fn ask(&self, request: &TextRequest) -> Result<TextReply, CodecError> {
        if let Some(reason) = &lock(&self.failures).given_up {
            return Err(reason.clone());
        }
        let (mut tries, mut max_tries) = (0, PAUSES_MS.len());
        let error = loop {
            std::thread::sleep(Duration::from_millis(PAUSES_MS[tries]));
            tries += 1;
            match self.ask_once(request) {
                Ok(reply) => {
                    self.record_answer(request);
                    return Ok(reply);
                }
                Err(TextError::Refused(reason)) => return Err(CodecError::Refused(reason)),
                Err(error) if error.is_self_inflicted() && request.is_from_client() => {
                    break CodecError::Refused(error.to_string());
                }
                Err(error) => {
                    if error.is_self_inflicted() {
                        max_tries = MAX_SELF_INFLICTED_TRIES;
                    }
                    if tries >= max_tries {
                        let sentence = format!("{error} ({tries} attempts)");
                        break CodecError::Unavailable(sentence);
                    }
                }
            }
        };
        self.record_failure(&error);
        Err(error)
    }

    fn ask_once(&self, request: &TextRequest) -> Result<TextReply, TextError> {
        let mut process = self.acquire(request.is_from_client())?;
        let reply = process.ask(request);
        let is_alive = matches!(reply, Ok(_) | Err(TextError::Refused(_)));
        if is_alive && request.size_bytes() < LARGE_BYTES {
            self.release(process);
        }
        reply
    }

    /// Returns an idle process, or the next that finishes its request or starts.
    fn acquire(&self, is_from_client: bool) -> Result<P, TextError> {
        let mut processes = lock(&self.processes);
        if let Some(process) = processes.take(is_from_client) {
            return Ok(process);
        }
        if !is_from_client {
            processes.waiting_answers += 1;
            let patience =
                self.changed.wait_timeout_while(processes, ANSWER_PATIENCE, |processes| {
                    processes.idle.is_empty()
                });
            processes = patience.unwrap_or_else(PoisonError::into_inner).0;
        }
        let acquired = loop {
            if let Some(process) = processes.take(is_from_client) {
                break Ok(process);
            }
            // An idle process is left to a request about an answer that is waking up.
            if processes.is_starting || !processes.idle.is_empty() {
                processes = self.changed.wait(processes).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            processes.is_starting = true;
            drop(processes);
            let started = (self.start)();
            processes = lock(&self.processes);
            processes.is_starting = false;
            self.changed.notify_all();
            match started {
                Ok(process) => processes.idle.push(process),
                Err(error) => break Err(TextError::Restart(Box::new(error))),
            }
        };
        if !is_from_client {
            processes.waiting_answers -= 1;
            self.changed.notify_all();
        }
        acquired
    }

    fn release(&self, process: P) {
        lock(&self.processes).idle.push(process);
        self.changed.notify_all();
    }

    fn record_answer(&self, request: &TextRequest) {
        if request.is_from_client() {
            lock(&self.failures).has_answered = true;
        }
    }

    /// Records a failure. The pool gives up a tokenizer that has never worked, rather than trying
    /// it for every line of a long input.
    fn record_failure(&self, error: &CodecError) {
        let mut failures = lock(&self.failures);
        failures.consecutive = failures.consecutive.saturating_add(1);
        if !failures.has_answered && failures.consecutive >= self.max_failures {
            let requests = format!(" ({} requests failed in a row)", self.max_failures);
            failures.given_up = Some(match error {
                CodecError::Unavailable(reason) => {
                    CodecError::Unavailable(reason.clone() + &requests)
                }
                other => CodecError::Refused(other.to_string() + &requests),
            });
        }
    }
}

/// Locks a mutex, whose value is consistent even if a thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::sync::Arc;

    use shm::sync::{AtomicUsize, Ordering};

    use super::super::process::ProcessExit;
    use super::*;

    /// Signals that end the next processes, the last one first; when there are none, a process
    /// answers.
    type Ends = Arc<Mutex<Vec<i32>>>;

    struct Fake {
        ends: Ends,
    }

    impl TextService for Fake {
        fn ask(&mut self, request: &TextRequest) -> Result<TextReply, TextError> {
            if let Some(signal) = lock(&self.ends).pop() {
                let status = Some(ExitStatus::from_raw(signal));
                return Err(TextError::Exited(ProcessExit::new(status, 1 << 20)));
            }
            match request {
                TextRequest::Encode { text, .. } if text == "refused" => {
                    Err(TextError::Refused("no such character".to_owned()))
                }
                _ => Ok(TextReply::Tokens(vec![7])),
            }
        }
    }

    struct Bench {
        pool: TextProcessPool<Fake>,
        ends: Ends,
        started: Arc<AtomicUsize>,
    }

    impl Bench {
        fn new(max_failures: u32) -> Bench {
            let ends = Ends::default();
            let started = Arc::new(AtomicUsize::new(0));
            let (of_start, counted) = (Arc::clone(&ends), Arc::clone(&started));
            let start = move || {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(Fake { ends: Arc::clone(&of_start) })
            };
            let first = Fake { ends: Arc::clone(&ends) };
            Bench {
                pool: TextProcessPool::new(first, max_failures, Box::new(start)),
                ends,
                started,
            }
        }

        fn ask(&self, ends: &[i32], request: &TextRequest) -> Result<TextReply, CodecError> {
            *lock(&self.ends) = ends.to_vec();
            self.pool.ask(request)
        }
    }

    fn text(text: &str) -> TextRequest {
        TextRequest::Encode { text: text.to_owned(), max_tokens: usize::MAX }
    }

    fn answer() -> TextRequest {
        TextRequest::NextPiece { tokens: vec![1], emitted: 0, is_last: true }
    }

    fn is_answered(reply: &Result<TextReply, CodecError>) -> bool {
        *reply == Ok(TextReply::Tokens(vec![7]))
    }

    #[test]
    fn a_request_whose_process_is_killed_is_asked_again() {
        let bench = Bench::new(8);
        for request in [text("a"), answer()] {
            for kills in 1..PAUSES_MS.len() {
                let ends = vec![libc::SIGKILL; kills];
                assert!(is_answered(&bench.ask(&ends, &request)), "{kills} kills");
            }
        }
        assert_eq!(bench.started.load(Ordering::Relaxed), 2 * (1 + 2 + 3 + 4));
        let kept = lock(&bench.pool.processes).idle.len();
        assert_eq!(kept, 1, "the process that answers is kept");
    }

    /// Many requests at a time share the processes that there are while another one starts.
    #[test]
    fn processes_start_one_at_a_time() {
        let starts = Arc::new(AtomicUsize::new(0));
        let concurrent = Arc::new(AtomicUsize::new(0));
        let (counted, starting) = (Arc::clone(&starts), Arc::clone(&concurrent));
        let start = move || {
            assert_eq!(
                starting.fetch_add(1, Ordering::Relaxed),
                0,
                "two processes start at a time"
            );
            std::thread::sleep(Duration::from_millis(50));
            starting.fetch_sub(1, Ordering::Relaxed);
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Fake { ends: Ends::default() })
        };
        let pool = TextProcessPool::new(Fake { ends: Ends::default() }, 8, Box::new(start));
        let taken = pool.acquire(true).expect("it is idle");
        let pool = &pool;
        std::thread::scope(|scope| {
            let asked: Vec<_> = [text("a"), answer(), text("b"), text("c")]
                .into_iter()
                .map(|request| scope.spawn(move || is_answered(&pool.ask(&request))))
                .collect();
            assert!(asked.into_iter().all(|asked| asked.join().expect("no panic")));
        });
        drop(taken);
        assert!(starts.load(Ordering::Relaxed) <= 2, "the others take what is idle again");
        assert_eq!(lock(&pool.processes).waiting_answers, 0);
    }

    #[test]
    fn processes_that_keep_ending_are_no_fault_of_the_request() {
        let bench = Bench::new(8);
        let lost = bench.ask(&[libc::SIGKILL; 5], &text("a"));
        assert!(matches!(lost, Err(CodecError::Unavailable(_))), "{lost:?}");
        assert!(is_answered(&bench.ask(&[], &text("a"))), "the next one is answered");
    }

    #[test]
    fn a_text_that_exceeds_a_limit_is_refused_at_once() {
        let bench = Bench::new(8);
        let refused = bench.ask(&[libc::SIGABRT], &text("a"));
        let Err(CodecError::Refused(reason)) = &refused else { panic!("{refused:?}") };
        assert!(reason.contains("1 MiB"), "{reason}");
        assert_eq!(bench.started.load(Ordering::Relaxed), 0);
        // The tokens of an answer are not a client's text, so the error is not that of an invalid
        // request.
        assert!(is_answered(&bench.ask(&[libc::SIGABRT], &answer())));
        let lost = bench.ask(&[libc::SIGSEGV; 2], &answer());
        assert!(matches!(lost, Err(CodecError::Unavailable(_))), "{lost:?}");
    }

    #[test]
    fn hostile_texts_do_not_end_a_tokenizer_that_works() {
        let bench = Bench::new(3);
        assert!(is_answered(&bench.ask(&[], &text("a"))));
        for _ in 0..20 {
            assert!(bench.ask(&[libc::SIGABRT], &text("hostile")).is_err());
        }
        assert!(is_answered(&bench.ask(&[], &text("a"))));
    }

    #[test]
    fn a_tokenizer_that_never_works_is_not_tried_for_ever() {
        let bench = Bench::new(3);
        for _ in 0..3 {
            assert!(bench.ask(&[libc::SIGABRT], &text("a")).is_err());
        }
        let refused = bench.ask(&[], &text("a"));
        assert!(
            matches!(&refused, Err(CodecError::Refused(reason)) if reason.contains("3 requests"))
        );
        // A refusal by a process that keeps running is not a failure.
        let bench = Bench::new(1);
        let refused = bench.ask(&[], &text("refused"));
        assert_eq!(refused, Err(CodecError::Refused("no such character".to_owned())));
        assert!(is_answered(&bench.ask(&[], &text("a"))));
    }
}
