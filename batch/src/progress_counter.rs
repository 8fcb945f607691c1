//! Progress of a count on stderr: a bar on a terminal, otherwise a line at intervals.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::eta::PlannedSequence;
use super::progress::JobProgress;

/// Interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of a count of items with a known total.
#[derive(Debug)]
pub struct ProgressCounter {
    /// Description of the items, as in `lines read`.
    label: &'static str,
    output: CounterOutput,
}

#[derive(Debug)]
enum CounterOutput {
    Silent,
    Bar(ProgressBar),
    /// Time of the last line.
    Lines(Instant),
}

impl ProgressCounter {
    /// Returns a progress that reports nothing.
    pub const fn silent() -> ProgressCounter {
        ProgressCounter { label: "", output: CounterOutput::Silent }
    }

    /// Returns the progress that suits stderr; `done` describes the items, as in `lines read`.
    pub fn for_stderr(quiet: bool, label: &'static str) -> ProgressCounter {
        if quiet {
            return ProgressCounter::silent();
        }
        if !std::io::stderr().is_terminal() {
            return ProgressCounter { label, output: CounterOutput::Lines(Instant::now()) };
        }
        let bar = ProgressBar::new(0);
        let style =
            format!("{{elapsed_precise}} {{wide_bar}} {{pos}}/{{len}} {label}, ETA {{eta}}");
        // The template is constant; if it were invalid, the default style would still inform.
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style);
        }
        ProgressCounter { label, output: CounterOutput::Bar(bar) }
    }

    /// Reports that `count` of `total` items are done.
    pub fn update(&mut self, count: usize, total: usize) {
        match &mut self.output {
            CounterOutput::Silent => {}
            CounterOutput::Bar(bar) => {
                if bar.length() != Some(total as u64) {
                    bar.set_length(total as u64);
                }
                bar.set_position(count as u64);
            }
            CounterOutput::Lines(last) if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                // A failure to report progress must not fail the job.
                let _ = writeln!(std::io::stderr(), "{count} of {total} {}", self.label);
            }
            CounterOutput::Lines(_) => {}
        }
    }

    /// Ends the report: all items are done, or no more will be.
    pub fn end(&mut self) {
        if let CounterOutput::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }
}

/// Progress of a job as the number of finished sequences.
#[derive(Debug)]
pub struct SequenceCounter {
    counter: ProgressCounter,
    finished: usize,
    total: usize,
}

impl SequenceCounter {
    /// Creates a report to `counter`.
    pub const fn new(counter: ProgressCounter) -> SequenceCounter {
        SequenceCounter { counter, finished: 0, total: 0 }
    }
}

impl JobProgress for SequenceCounter {
    fn begin(&mut self, planned: Vec<PlannedSequence>) {
        self.total = planned.len();
    }

    fn prefilled(&mut self, _computed: u64, _tokens: u64) {
        self.counter.update(self.finished, self.total);
    }

    fn token(&mut self, _sequence: usize) {}

    fn finished(&mut self, _sequence: usize, _generated: u32) {
        self.finished += 1;
        self.counter.update(self.finished, self.total);
    }

    fn end(&mut self) {
        self.counter.end();
    }
}
