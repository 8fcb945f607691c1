//! How far the reading of the input is: a bar on a terminal, a line now and then otherwise, on
//! stderr.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Without a terminal a line is written so often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Told how many lines are read.
#[derive(Debug)]
pub enum Reading {
    Silent,
    Bar(ProgressBar),
    /// When the last line was written.
    Lines(Instant),
}

impl Reading {
    /// For stderr as it is.
    pub fn for_stderr(quiet: bool) -> Reading {
        if quiet {
            return Reading::Silent;
        }
        if !std::io::stderr().is_terminal() {
            return Reading::Lines(Instant::now());
        }
        let bar = ProgressBar::new(0);
        let style = "{elapsed_precise} {wide_bar} {pos}/{len} lines read, ETA {eta}";
        // The template is a constant of ours; with a wrong one the default style still informs.
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Reading::Bar(bar)
    }

    /// So many lines are read.
    pub(super) fn update(&mut self, lines: usize, total: usize) {
        match self {
            Reading::Silent => {}
            Reading::Bar(bar) => {
                if bar.length() != Some(total as u64) {
                    bar.set_length(total as u64);
                }
                bar.set_position(lines as u64);
            }
            Reading::Lines(last) if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                // Verbosity is not worth failing for.
                let _ = writeln!(std::io::stderr(), "{lines} of {total} lines read");
            }
            Reading::Lines(_) => {}
        }
    }

    /// All are.
    pub(super) fn end(&mut self) {
        if let Reading::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
