//! Progress of long work that is measured in bytes: a bar on a terminal, otherwise a line every few
//! seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval between lines without a terminal. Work that takes less writes none.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Progress bar of work that is measured in bytes.
#[derive(Debug)]
pub struct ByteProgressBar {
    label: &'static str,
    bar: ProgressBar,
    /// Time at which the next line is due; `None` if a bar or nothing is shown.
    next_line: Option<Instant>,
}

impl ByteProgressBar {
    /// Creates a bar for work called `label`, as in `loading`.
    pub fn new(label: &'static str, quiet: bool) -> ByteProgressBar {
        let terminal = std::io::stderr().is_terminal();
        let shown = terminal && !quiet;
        let bar = if shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = format!(
            "{label} {{wide_bar}} {{bytes}}/{{total_bytes}}, {{bytes_per_sec}}, ETA {{eta}}"
        );
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style);
        }
        let next_line = (!terminal && !quiet).then(|| Instant::now() + LINE_INTERVAL);
        ByteProgressBar { label, bar, next_line }
    }

    /// Shows the progress, as a line only if one is due.
    pub fn update(&mut self, done_bytes: u64, total_bytes: u64) {
        self.bar.set_length(total_bytes);
        self.bar.set_position(done_bytes);
        if self.next_line.is_some_and(|next| Instant::now() >= next) {
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            eprintln!("{}: {:.2} of {:.2} GiB", self.label, gib(done_bytes), gib(total_bytes));
            self.next_line = Some(Instant::now() + LINE_INTERVAL);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
