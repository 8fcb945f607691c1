//! Long work of a command, reported on stderr while it lasts, so that no command is silent for
//! longer than a user waits: a bar on a terminal, elsewhere a line every ten seconds. Short work
//! leaves no trace.

use std::convert::Infallible;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::request::Verbosity;
use crate::job::progress::duration;

/// Time until the first line without a terminal, and between two.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Time between two drawings of a bar.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// Positions of a bar.
const BAR_LENGTH: u64 = 1000;

/// Long work that is reported until it is dropped.
#[derive(Debug)]
pub(crate) struct ProgressReporter {
    verbosity: Verbosity,
    bar: ProgressBar,
    current: Arc<Mutex<Current>>,
    lines: Option<Lines>,
}

/// What is known of the work at the moment.
#[derive(Debug, Clone, Default, PartialEq)]
struct Current {
    /// Part of the work that is being done; empty if it has no parts.
    part: String,
    /// From 0 to 1; `None` if the end is not known.
    share: Option<f64>,
}

impl ProgressReporter {
    /// Begins to report work called `what`, as in `planning`.
    pub(crate) fn begin(what: &str, verbosity: Verbosity) -> ProgressReporter {
        let current = Arc::default();
        if verbosity == Verbosity::Quiet {
            return ProgressReporter {
                verbosity,
                bar: ProgressBar::hidden(),
                current,
                lines: None,
            };
        }
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(BAR_LENGTH).with_prefix(what.to_owned());
            bar.set_style(style("{spinner} {prefix} {msg}, {elapsed}"));
            bar.enable_steady_tick(DRAW_EVERY);
            return ProgressReporter { verbosity, bar, current, lines: None };
        }
        let lines = Lines::start(what, &current, LINE_EVERY, std::io::stderr());
        ProgressReporter { verbosity, bar: ProgressBar::hidden(), current, lines }
    }

    /// Work that is not reported, or not yet.
    pub(crate) fn silent() -> ProgressReporter {
        ProgressReporter::begin("", Verbosity::Quiet)
    }

    /// How much the command says.
    pub(crate) fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// Reports which part of the work is being done and, where that is known, the share of the
    /// whole that is done, from 0 to 1.
    pub(crate) fn update(&self, part: &str, share: Option<f64>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.share.is_some() != share.is_some() {
            self.bar.set_style(match share {
                Some(_) => style("{prefix} {msg} {wide_bar} {elapsed}"),
                None => style("{spinner} {prefix} {msg}, {elapsed}"),
            });
        }
        if let Some(share) = share {
            self.bar.set_position((share.clamp(0.0, 1.0) * BAR_LENGTH as f64) as u64);
        }
        if current.part != part {
            self.bar.set_message(part.to_owned());
            part.clone_into(&mut current.part);
        }
        current.share = share;
    }

    /// Prints a line above the bar, unless the command is quiet.
    pub(crate) fn say(&self, line: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.bar.suspend(|| eprintln!("{line}"));
        }
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if let Some(Lines { stop, thread }) = self.lines.take() {
            drop(stop);
            // It has nothing to say that is not on stderr.
            let _ = thread.join();
        }
    }
}

/// A template is a constant of ours; with a wrong one the default style still informs.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Thread that writes lines until `stop` is dropped.
#[derive(Debug)]
struct Lines {
    stop: Sender<Infallible>,
    thread: JoinHandle<()>,
}

impl Lines {
    /// `None` if the system starts no more threads.
    fn start(
        what: &str,
        current: &Arc<Mutex<Current>>,
        every: Duration,
        mut out: impl Write + Send + 'static,
    ) -> Option<Lines> {
        let (stop, stopped) = channel();
        let (what, current) = (what.to_owned(), Arc::clone(current));
        let write = move || write_lines(&what, &current, every, &stopped, &mut out);
        let thread = Builder::new().name("progress".to_owned()).spawn(write).ok()?;
        Some(Lines { stop, thread })
    }
}

fn write_lines(
    what: &str,
    current: &Mutex<Current>,
    every: Duration,
    stopped: &Receiver<Infallible>,
    out: &mut impl Write,
) {
    let began = Instant::now();
    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let current = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Progress is not worth failing for: a closed stderr is ignored.
        let _ = writeln!(out, "{}", in_words(what, &current, began.elapsed()));
    }
}

/// `planning: profiling linears, 37%, 1 min 10 s so far`.
fn in_words(what: &str, Current { part, share }: &Current, elapsed: Duration) -> String {
    let mut words = Vec::new();
    if !part.is_empty() {
        words.push(part.clone());
    }
    if let Some(share) = share {
        words.push(format!("{:.0}%", 100.0 * share));
    }
    words.push(format!("{} so far", duration(elapsed.as_secs_f64())));
    format!("{what}: {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that a thread writes, for a test to wait for.
    struct Written(Sender<String>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_say_what_is_done_and_how_far_it_is() {
        let (sender, written) = channel();
        let current = Arc::new(Mutex::new(Current::default()));
        let every = Duration::from_millis(1);
        let lines = Lines::start("planning", &current, every, Written(sender)).expect("a thread");
        let wait_for = |words: &str| {
            let mut text = String::new();
            while !text.contains(words) {
                text += &written.recv_timeout(Duration::from_secs(60)).expect("it goes on");
            }
        };
        wait_for(" s so far\n");
        *current.lock().unwrap() = Current { part: "profiling".to_owned(), share: Some(0.374) };
        wait_for("planning: profiling, 37%, ");
        drop(lines.stop);
        lines.thread.join().expect("it ends when nothing is reported any more");
    }

    #[test]
    fn a_quiet_command_reports_nothing() {
        let reporter = ProgressReporter::begin("planning", Verbosity::Quiet);
        reporter.update("profiling", Some(0.5));
        assert!(reporter.lines.is_none() && reporter.bar.is_hidden());
        let current = reporter.current.lock().unwrap().clone();
        assert_eq!(current.share, Some(0.5), "what is known is kept for a bar");
    }
}
