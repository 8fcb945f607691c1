//! How far a count of many things is, on stderr: a bar on a terminal, else a line now and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Without a terminal a line is written so often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Told how many things are done, and of how many.
#[derive(Debug)]
pub struct Reading {
    /// As in `lines read`.
    done: &'static str,
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    Nothing,
    Bar(ProgressBar),
    /// When the last line was written.
    Lines(Instant),
}

impl Reading {
    /// Tells nothing.
    pub const fn silent() -> Reading {
        Reading { done: "", shown: Shown::Nothing }
    }

    /// For stderr as it is; `done` says what is counted, as in `lines read`.
    pub fn for_stderr(quiet: bool, done: &'static str) -> Reading {
        if quiet {
            return Reading::silent();
        }
        if !std::io::stderr().is_terminal() {
            return Reading { done, shown: Shown::Lines(Instant::now()) };
        }
        let bar = ProgressBar::new(0);
        let style = format!("{{elapsed_precise}} {{wide_bar}} {{pos}}/{{len}} {done}, ETA {{eta}}");
        // The template is a constant of ours; with a wrong one the default style still informs.
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style);
        }
        Reading { done, shown: Shown::Bar(bar) }
    }

    /// So many of so many are done.
    pub fn update(&mut self, count: usize, total: usize) {
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                if bar.length() != Some(total as u64) {
                    bar.set_length(total as u64);
                }
                bar.set_position(count as u64);
            }
            Shown::Lines(last) if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                // Verbosity is not worth failing for.
                let _ = writeln!(std::io::stderr(), "{count} of {total} {}", self.done);
            }
            Shown::Lines(_) => {}
        }
    }

    /// All are, or no more will be.
    pub fn end(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
