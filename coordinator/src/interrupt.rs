//! SIGINT, SIGTERM and SIGHUP: the first asks, the second insists.

use std::io::{self, Read};
use std::sync::Arc;
use std::thread;

use shm::sync::{AtomicBool, Ordering};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit::Exit;

/// Whether the run was asked to end. Cheap to clone and to ask.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// An interrupt that only [`Interrupt::ask`] sets.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Listens to SIGINT, SIGTERM and, unless it is ignored as under nohup, SIGHUP. The first of
    /// them sets the flag; the next ends the process at once with code 130 (the workers die with
    /// their parent). A file that reaches the limit on file sizes becomes an error of its write.
    ///
    /// # Errors
    /// What the system says to installing a handler.
    pub fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::new();
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            // Registered first, so that it runs first and sees the flag of an earlier signal only.
            let code = i32::from(Exit::Interrupted.code());
            flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupt.requested))?;
            flag::register(signal, Arc::clone(&interrupt.requested))?;
        }
        file_limits_are_errors()?;
        Ok(interrupt)
    }

    /// Whether the run was asked to end.
    pub fn is_requested(&self) -> bool {
        // Relaxed: the flag orders nothing, it is looked at again soon.
        self.requested.load(Ordering::Relaxed)
    }

    /// Asks the run to end once `input` ends, which a pipe does when whoever holds its other end
    /// has ended, however that came about. What comes through it is left out.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub fn ask_at_end_of(&self, mut input: impl Read + Send + 'static) -> io::Result<()> {
        let interrupt = self.clone();
        let wait = move || {
            // What cannot be read has no more to say either.
            let _ = io::copy(&mut input, &mut io::sink());
            interrupt.ask();
        };
        thread::Builder::new().name("stdin".to_owned()).spawn(wait).map(drop)
    }

    /// Asks the run to end, as a first signal would.
    pub fn ask(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }
}

/// A file that reaches the limit on file sizes becomes an error of its write: the signal's default
/// is to end the process.
///
/// # Errors
/// What the system says to installing a handler.
pub fn file_limits_are_errors() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(|_| ())
}

/// Whether whoever started this process had it ignore the signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_input_asks_and_what_comes_before_it_does_not() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let interrupt = Interrupt::new();
        interrupt.ask_at_end_of(reader).expect("a thread");
        io::Write::write_all(&mut writer, b"hello\n").expect("somebody reads");
        assert!(!interrupt.is_requested());
        drop(writer);
        while !interrupt.is_requested() {
            thread::yield_now();
        }
    }
}
