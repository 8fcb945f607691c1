//! Reads by a few threads: with `pread` where io_uring is unavailable, or from any other source
//! that reads synchronously.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::request::{BufferRegistration, Io, ReadCompletion, ReadRequest};

/// Source from which threads read, each of them one request at a time.
pub trait ReadSource: Send + Sync + std::fmt::Debug {
    /// Prepares the calling thread, which calls this once before its first read.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot read; all requests that it takes then fail with this error.
    fn prepare_thread(&self) -> io::Result<()>;

    /// Reads until the end of the request or of the file, and returns the number of bytes read.
    ///
    /// # Safety
    ///
    /// The requirements of [`Io::submit`] apply until this returns.
    ///
    /// # Errors
    ///
    /// Fails if the read fails.
    unsafe fn read(&self, request: &ReadRequest) -> io::Result<u32>;
}

impl ReadSource for File {
    fn prepare_thread(&self) -> io::Result<()> {
        Ok(())
    }

    unsafe fn read(&self, request: &ReadRequest) -> io::Result<u32> {
        let to = request.to.as_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: needed to read into memory that is known by its address. The caller promises that
        // it is writable and not used by anything else until this returns.
        let to = unsafe { std::slice::from_raw_parts_mut(to, request.size_bytes as usize) };
        let (read, _) = rustix::io::pread(self, to, request.offset_bytes)?;
        Ok(read.len() as u32)
    }
}

#[derive(Debug)]
struct RequestQueues {
    requests: VecDeque<ReadRequest>,
    completions: VecDeque<ReadCompletion>,
    /// Tells the threads to end.
    is_closed: bool,
}

#[derive(Debug)]
struct SharedQueues {
    source: Box<dyn ReadSource>,
    queues: Mutex<RequestQueues>,
    submitted: Condvar,
    completed: Condvar,
}

impl SharedQueues {
    fn queues(&self) -> MutexGuard<'_, RequestQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_requests(&self) {
        let entered = self.source.prepare_thread();
        let mut queues = self.queues();
        loop {
            if let Some(request) = queues.requests.pop_front() {
                drop(queues);
                let result = match &entered {
                    // SAFETY: needed because the call is unsafe. The submitter of the request
                    // promised that its destination is left alone until it completes.
                    Ok(()) => unsafe { self.source.read(&request) },
                    Err(error) => Err(io::Error::other(error.to_string())),
                };
                queues = self.queues();
                queues.completions.push_back(ReadCompletion { tag: request.tag, result });
                self.completed.notify_one();
            } else if queues.is_closed {
                return;
            } else {
                queues = self.submitted.wait(queues).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Reads of one source by several threads.
#[derive(Debug)]
pub struct ThreadPoolIo {
    shared: Arc<SharedQueues>,
    threads: Vec<JoinHandle<()>>,
}

impl ThreadPoolIo {
    /// Starts `threads` threads, at least one, for at most `depth` requests. Requests wait if all
    /// threads are busy.
    ///
    /// # Errors
    ///
    /// Fails if a thread cannot be started.
    pub fn new(
        source: impl ReadSource + 'static,
        depth: u32,
        threads: u32,
    ) -> io::Result<ThreadPoolIo> {
        let queues = RequestQueues {
            requests: VecDeque::with_capacity(depth as usize),
            completions: VecDeque::with_capacity(depth as usize),
            is_closed: false,
        };
        let shared = Arc::new(SharedQueues {
            source: Box::new(source),
            queues: Mutex::new(queues),
            submitted: Condvar::new(),
            completed: Condvar::new(),
        });
        let mut started = ThreadPoolIo { shared, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&started.shared);
            let builder = std::thread::Builder::new().name("staging-read".to_owned());
            started.threads.push(builder.spawn(move || shared.serve_requests())?);
        }
        Ok(started)
    }
}

impl Io for ThreadPoolIo {
    unsafe fn register(&mut self, _: &[(NonNull<u8>, usize)]) -> BufferRegistration {
        BufferRegistration::Unavailable {
            reason: "threads do not support registered buffers".to_owned(),
        }
    }

    unsafe fn submit(&mut self, request: ReadRequest) -> io::Result<()> {
        self.shared.queues().requests.push_back(request);
        self.shared.submitted.notify_one();
        Ok(())
    }

    fn complete(&mut self) -> ReadCompletion {
        let mut queues = self.shared.queues();
        loop {
            if let Some(completion) = queues.completions.pop_front() {
                return completion;
            }
            queues = self.shared.completed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ThreadPoolIo {
    fn drop(&mut self) {
        self.shared.queues().is_closed = true;
        self.shared.submitted.notify_all();
        for thread in self.threads.drain(..) {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}
