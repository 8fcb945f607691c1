//! SIGINT, SIGTERM and SIGHUP: the first one requests the end of the run, the second one ends the
//! process.

use std::io::{self, Read};
use std::sync::Arc;
use std::thread;

use shm::sync::{AtomicBool, Ordering};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::exit::Exit;

/// Flag that requests the end of the run. Cloning and reading it is cheap.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    requested: Arc<AtomicBool>,
}

impl Interrupt {
    /// Returns an interrupt that only [`Interrupt::request`] sets.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// Installs handlers for SIGINT, SIGTERM and, unless it is ignored as under nohup, SIGHUP. The
    /// first signal sets the flag; the next one ends the process at once with code 130 (the workers
    /// die with their parent). Reaching the limit on file sizes becomes an error of the write.
    ///
    /// # Errors
    /// The system's error when a handler cannot be installed.
    pub fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::new();
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            // Registered first, so that it runs first and sees only the flag of an earlier signal.
            let code = i32::from(Exit::Interrupted.code());
            flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupt.requested))?;
            flag::register(signal, Arc::clone(&interrupt.requested))?;
        }
        ignore_file_size_signal()?;
        Ok(interrupt)
    }

    /// Returns true if the end of the run was requested.
    pub fn is_requested(&self) -> bool {
        // Relaxed: the flag orders no other accesses and is read again soon.
        self.requested.load(Ordering::Relaxed)
    }

    /// Requests the end of the run at the end of `input`. A pipe ends when the process that holds
    /// its other end has ended, for whatever reason. The bytes read are discarded.
    ///
    /// # Errors
    /// The system cannot create a thread.
    pub fn request_at_eof(&self, mut input: impl Read + Send + 'static) -> io::Result<()> {
        let interrupt = self.clone();
        let wait = move || {
            // A read error counts as the end of the input.
            let _ = io::copy(&mut input, &mut io::sink());
            interrupt.request();
        };
        thread::Builder::new().name("stdin".to_owned()).spawn(wait).map(drop)
    }

    /// Requests the end of the run, as a first signal does.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }
}

/// Turns reaching the limit on file sizes into an error of the write; by default the signal ends
/// the process.
///
/// # Errors
/// The system's error when a handler cannot be installed.
pub fn ignore_file_size_signal() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(|_| ())
}

/// Returns true if this process inherited the signal as ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    /// Environment variable that marks the child process of a test.
    const CHILD: &str = "COORDINATOR_TEST_INTERRUPTED";

    #[test]
    fn the_first_signal_asks_and_the_second_ends_with_130() {
        if std::env::var_os(CHILD).is_some() {
            let interrupt = Interrupt::install().unwrap();
            assert!(!interrupt.is_requested());
            kill_process(getpid(), Signal::TERM).unwrap();
            // Another thread may handle the signal, so the flag may be set a moment later.
            while !interrupt.is_requested() {
                std::thread::yield_now();
            }
            eprintln!("asked");
            kill_process(getpid(), Signal::INT).unwrap();
            loop {
                std::thread::park();
            }
        }
        let name = "interrupt::tests::the_first_signal_asks_and_the_second_ends_with_130";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").stdin(Stdio::null());
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(130));
        assert!(String::from_utf8_lossy(&done.stderr).contains("asked"));
    }

    #[test]
    fn the_end_of_an_input_asks_and_what_comes_before_it_does_not() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let interrupt = Interrupt::new();
        interrupt.request_at_eof(reader).expect("a thread");
        io::Write::write_all(&mut writer, b"hello\n").expect("somebody reads");
        assert!(!interrupt.is_requested());
        drop(writer);
        while !interrupt.is_requested() {
            thread::yield_now();
        }
    }
}
