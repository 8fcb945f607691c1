//! How far a job is: a bar on a terminal, plain lines otherwise, nothing under `--quiet`. Always on
//! stderr, so that results on stdout stay clean.

use std::fmt::Debug;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Without a terminal a line is written at most so often, and at the end.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Sizes of the work, and how much of it is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    pub sequences: usize,
    /// New tokens. In a total: the most there can be, lowered when sequences end early.
    pub tokens: u64,
}

/// Told how a job gets on.
pub trait Progress: Debug {
    /// So many lines of the input are read.
    fn reading(&mut self, lines: usize, total: usize);
    /// The work there is.
    fn begin(&mut self, total: Amount);
    /// A token was generated, or a sequence ended.
    fn update(&mut self, done: Amount, total: Amount);
    /// No more is coming, whatever the reason.
    fn end(&mut self);
}

/// The progress for stderr as it is.
pub fn for_stderr(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else if std::io::stderr().is_terminal() {
        Box::new(Bar { bar: ProgressBar::hidden(), sequences: 0 })
    } else {
        Box::new(Lines::new(std::io::stderr()))
    }
}

/// Tells nothing.
#[derive(Debug)]
pub struct Silent;

impl Progress for Silent {
    fn reading(&mut self, _lines: usize, _total: usize) {}
    fn begin(&mut self, _total: Amount) {}
    fn update(&mut self, _done: Amount, _total: Amount) {}
    fn end(&mut self) {}
}

#[derive(Debug)]
struct Bar {
    bar: ProgressBar,
    /// Sequences that its message says are done.
    sequences: usize,
}

impl Progress for Bar {
    fn reading(&mut self, lines: usize, total: usize) {
        if self.bar.length() != Some(total as u64) {
            self.bar = ProgressBar::new(total as u64);
            let style = "{elapsed_precise} {wide_bar} {pos}/{len} lines read, ETA {eta}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                self.bar.set_style(style);
            }
        }
        self.bar.set_position(lines as u64);
    }

    fn begin(&mut self, total: Amount) {
        let style = "{elapsed_precise} {wide_bar} {pos}/{len} tokens, {msg}, {rate}, ETA {eta}";
        self.bar = ProgressBar::new(total.tokens);
        // The template is a constant of ours; with a wrong one the default style still informs.
        if let Ok(style) = ProgressStyle::with_template(style) {
            let rate = |state: &ProgressState, to: &mut dyn std::fmt::Write| {
                // A bar that cannot be drawn is not worth failing for.
                let _ = write!(to, "{:.0}/s", state.per_sec());
            };
            self.bar.set_style(style.with_key("rate", rate));
        }
        self.bar.set_message(answers(Amount::default(), total));
        self.bar.enable_steady_tick(Duration::from_millis(500));
    }

    fn update(&mut self, done: Amount, total: Amount) {
        self.bar.set_position(done.tokens);
        self.bar.set_length(total.tokens);
        if self.sequences != done.sequences {
            self.sequences = done.sequences;
            self.bar.set_message(answers(done, total));
        }
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Plain lines.
#[derive(Debug)]
pub struct Lines<W> {
    out: W,
    begun: Instant,
    last: Instant,
}

impl<W: Write> Lines<W> {
    /// Lines into `out`.
    pub fn new(out: W) -> Lines<W> {
        Lines { out, begun: Instant::now(), last: Instant::now() }
    }

    /// What was written into.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write + Debug> Progress for Lines<W> {
    fn reading(&mut self, lines: usize, total: usize) {
        if self.last.elapsed() >= LINE_EVERY {
            self.last = Instant::now();
            let _ = writeln!(self.out, "{lines} of {total} lines read");
        }
    }

    fn begin(&mut self, total: Amount) {
        self.begun = Instant::now();
        self.last = self.begun;
        // Telling is not worth failing for: a closed stderr is ignored here and below.
        let _ = writeln!(
            self.out,
            "{} answer{}, at most {} new tokens",
            total.sequences,
            plural(total.sequences),
            total.tokens
        );
    }

    fn update(&mut self, done: Amount, total: Amount) {
        let ended = done.sequences == total.sequences;
        if !ended && self.last.elapsed() < LINE_EVERY {
            return;
        }
        self.last = Instant::now();
        let elapsed_s = self.begun.elapsed().as_secs_f64().max(1e-9);
        let per_s = done.tokens as f64 / elapsed_s;
        let left = total.tokens.saturating_sub(done.tokens);
        let eta = match left {
            0 => String::new(),
            // The first tokens come after a prefill that says nothing of the speed to come.
            _ if done.tokens * 20 < total.tokens => String::new(),
            _ => format!(", about {} left", duration(left as f64 / per_s)),
        };
        let _ = writeln!(
            self.out,
            "{}: {} of {} tokens, {per_s:.1} tokens/s{eta}",
            answers(done, total),
            done.tokens,
            total.tokens
        );
    }

    fn end(&mut self) {}
}

fn answers(done: Amount, total: Amount) -> String {
    format!("{} of {} answers", done.sequences, total.sequences)
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn duration(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_answers_tokens_and_totals() {
        let mut lines = Lines::new(Vec::new());
        let total = Amount { sequences: 8, tokens: 100 };
        lines.begin(total);
        lines.update(Amount { sequences: 0, tokens: 3 }, total);
        lines.last = Instant::now().checked_sub(LINE_EVERY).expect("the machine has run that long");
        lines.update(Amount { sequences: 4, tokens: 50 }, total);
        lines.update(Amount { sequences: 8, tokens: 100 }, total);
        let text = String::from_utf8(lines.into_inner()).unwrap();
        let told: Vec<&str> = text.lines().collect();
        assert_eq!(told.len(), 3, "{text}");
        assert_eq!(told[0], "8 answers, at most 100 new tokens");
        assert!(told[1].starts_with("4 of 8 answers: 50 of 100 tokens, "), "{text}");
        assert!(told[1].contains(", about ") && told[1].ends_with(" left"), "{text}");
        assert!(told[2].starts_with("8 of 8 answers: 100 of 100 tokens, "), "{text}");
        assert!(told[2].ends_with(" tokens/s"), "{text}");
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(0.2), "1 s");
        assert_eq!(duration(61.0), "1 min 1 s");
        assert_eq!(duration(7260.0), "2 h 1 min");
    }
}
