//! Progress of a command's long work on stderr, so that no command is silent for longer than a user
//! waits: a bar on a terminal, otherwise a line every ten seconds. Short work leaves no trace.

use std::convert::Infallible;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use batch::progress::format_duration;
use indicatif::{ProgressBar, ProgressStyle};

use crate::request::Verbosity;

/// Without a terminal: time until the first line, and interval between lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between redraws of a bar.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Number of steps of a bar.
const BAR_LENGTH: u64 = 1000;

/// Reports work until it is dropped.
#[derive(Debug)]
pub struct ProgressReporter {
    verbosity: Verbosity,
    bar: ProgressBar,
    current: Arc<Mutex<ReportedProgress>>,
    lines: Option<LineThread>,
}

/// Current state of the work.
#[derive(Debug, Clone, Default, PartialEq)]
struct ReportedProgress {
    /// Part of the work in progress; empty if the work has no parts.
    part: String,
    /// Completed share of the work, from 0 to 1; `None` if the end is not known.
    share: Option<f64>,
}

impl ProgressReporter {
    /// Starts to report work called `what`, as in `planning`.
    pub fn start(what: &str, verbosity: Verbosity) -> ProgressReporter {
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
            bar.enable_steady_tick(DRAW_INTERVAL);
            return ProgressReporter { verbosity, bar, current, lines: None };
        }
        let lines = LineThread::start(what, &current, LINE_INTERVAL, std::io::stderr());
        ProgressReporter { verbosity, bar: ProgressBar::hidden(), current, lines }
    }

    /// Returns a reporter for work that is not reported, or not yet.
    pub(crate) fn silent() -> ProgressReporter {
        ProgressReporter::start("", Verbosity::Quiet)
    }

    /// Returns the amount of output that the reporter was started with.
    pub fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// Reports the part of the work in progress and, if it is known, the completed share of all
    /// work, from 0 to 1.
    pub fn update(&self, part: &str, share: Option<f64>) {
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
    pub(crate) fn print_line(&self, line: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.bar.suspend(|| eprintln!("{line}"));
        }
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if let Some(LineThread { stop, thread }) = self.lines.take() {
            drop(stop);
            // Everything that the thread has to report is on stderr already.
            let _ = thread.join();
        }
    }
}

/// Returns the style of a template. All templates are constants of this module; for an invalid one,
/// the default style is informative enough.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Thread that writes lines until `stop` is dropped.
#[derive(Debug)]
struct LineThread {
    stop: Sender<Infallible>,
    thread: JoinHandle<()>,
}

impl LineThread {
    /// Starts the thread; returns `None` if the system refuses more threads.
    fn start(
        what: &str,
        current: &Arc<Mutex<ReportedProgress>>,
        interval: Duration,
        mut out: impl Write + Send + 'static,
    ) -> Option<LineThread> {
        let (stop, stopped) = channel();
        let (what, current) = (what.to_owned(), Arc::clone(current));
        let write = move || write_lines(&what, &current, interval, &stopped, &mut out);
        let thread = Builder::new().name("progress".to_owned()).spawn(write).ok()?;
        Some(LineThread { stop, thread })
    }
}

fn write_lines(
    what: &str,
    current: &Mutex<ReportedProgress>,
    interval: Duration,
    stopped: &Receiver<Infallible>,
    out: &mut impl Write,
) {
    let started = Instant::now();
    while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let current = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Progress is not worth a failure, so a closed stderr is ignored.
        let _ = writeln!(out, "{}", format_progress(what, &current, started.elapsed()));
    }
}

/// Formats progress: `planning: profiling linears, 37%, 1 min 10 s so far`.
fn format_progress(
    what: &str,
    ReportedProgress { part, share }: &ReportedProgress,
    elapsed: Duration,
) -> String {
    let mut words = Vec::new();
    if !part.is_empty() {
        words.push(part.clone());
    }
    if let Some(share) = share {
        words.push(format!("{:.0}%", 100.0 * share));
    }
    words.push(format!("{} so far", format_duration(elapsed.as_secs_f64())));
    format!("{what}: {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Channel that receives the lines that a thread writes.
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
        let current = Arc::new(Mutex::new(ReportedProgress::default()));
        let every = Duration::from_millis(1);
        let lines =
            LineThread::start("planning", &current, every, Written(sender)).expect("a thread");
        let wait_for = |words: &str| {
            let mut text = String::new();
            while !text.contains(words) {
                text += &written.recv_timeout(Duration::from_secs(60)).expect("it goes on");
            }
        };
        wait_for(" s so far\n");
        *current.lock().unwrap() =
            ReportedProgress { part: "profiling".to_owned(), share: Some(0.374) };
        wait_for("planning: profiling, 37%, ");
        drop(lines.stop);
        lines.thread.join().expect("it ends when nothing is reported any more");
    }

    #[test]
    fn a_quiet_command_reports_nothing() {
        let reporter = ProgressReporter::start("planning", Verbosity::Quiet);
        reporter.update("profiling", Some(0.5));
        assert!(reporter.lines.is_none() && reporter.bar.is_hidden());
        let current = reporter.current.lock().unwrap().clone();
        assert_eq!(current.share, Some(0.5), "what is known is kept for a bar");
    }
}
