//! Progress report of a job: a bar on a terminal, plain lines otherwise, nothing with `--quiet`. It
//! is always on stderr, so that results on stdout stay clean.

use std::fmt::Debug;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use super::eta::{CostPrior, Eta, EtaEstimator, PlannedSequence};

/// Minimum interval between lines without a terminal; one more is written at the end.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Interval between updates of a bar.
const BAR_EVERY: Duration = Duration::from_millis(500);
/// Length of a bar, in steps.
const BAR_LENGTH: u64 = 1000;

/// Receiver of a job's progress.
pub trait JobProgress: Debug {
    /// Announces all sequences, in the order in which they begin.
    fn begin(&mut self, planned: Vec<PlannedSequence>);
    /// Reports that `computed` of the `tokens` prompt tokens of the starting batch are computed.
    fn prefilled(&mut self, computed: u64, tokens: u64);
    /// Reports a token of `sequence`.
    fn token(&mut self, sequence: usize);
    /// Reports that `sequence` has ended after `generated` tokens, including one that ended it.
    fn finished(&mut self, sequence: usize, generated: u32);
    /// Reports the lines of the output, whenever some were written.
    fn lines_written(&mut self, _counts: LineCounts) {}
    /// Ends the report, whatever the reason.
    fn end(&mut self);
}

/// Numbers of lines of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCounts {
    /// Lines of the input that are not blank.
    pub total: usize,
    /// Requests with a line in the output.
    pub answered: usize,
    /// Error lines in the output.
    pub failed: usize,
}

/// Expectations of a run before it begins.
#[derive(Debug, Clone, Copy)]
pub struct EtaConfig {
    /// Number of sequences that run concurrently.
    pub slots: usize,
    /// Predicted costs; `None` if the machine was not measured.
    pub prior: Option<CostPrior>,
}

/// Returns the progress report that suits stderr.
pub fn for_stderr(quiet: bool, eta_config: EtaConfig) -> Box<dyn JobProgress> {
    if quiet {
        Box::new(SilentProgress)
    } else if std::io::stderr().is_terminal() {
        Box::new(BarProgress::new(eta_config))
    } else {
        Box::new(LineProgress::new(std::io::stderr(), eta_config))
    }
}

/// Reports nothing.
#[derive(Debug)]
pub struct SilentProgress;

impl JobProgress for SilentProgress {
    fn begin(&mut self, _planned: Vec<PlannedSequence>) {}
    fn prefilled(&mut self, _computed: u64, _tokens: u64) {}
    fn token(&mut self, _sequence: usize) {}
    fn finished(&mut self, _sequence: usize, _made: u32) {}
    fn end(&mut self) {}
}

/// Counts of finished and planned work.
#[derive(Debug)]
struct ProgressTally {
    started: Instant,
    estimator: EtaEstimator,
    max_new: Vec<u32>,
    /// Tokens reported one by one, for each sequence.
    reported: Vec<u32>,
    answers: usize,
    tokens: u64,
    /// Prefill in progress.
    prefill: Option<PrefillProgress>,
    /// Upper bound of all tokens, lowered when sequences end early.
    tokens_max: u64,
    prompt_tokens: u64,
}

impl ProgressTally {
    fn new(planned: Vec<PlannedSequence>, eta_config: EtaConfig) -> ProgressTally {
        let sum = |field: &dyn Fn(&PlannedSequence) -> u32| {
            planned.iter().map(|sequence| u64::from(field(sequence))).sum()
        };
        ProgressTally {
            started: Instant::now(),
            max_new: planned.iter().map(|sequence| sequence.max_new).collect(),
            reported: vec![0; planned.len()],
            answers: 0,
            tokens: 0,
            prefill: None,
            tokens_max: sum(&|sequence| sequence.max_new),
            prompt_tokens: sum(&|sequence| sequence.prompt_tokens),
            estimator: EtaEstimator::new(planned, eta_config.slots, eta_config.prior),
        }
    }

    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn prefilled(&mut self, computed: u64, tokens: u64) {
        let since = self.prefill.map_or_else(Instant::now, |prefill| prefill.since);
        self.prefill = Some(PrefillProgress { since, computed: computed.min(tokens), tokens });
    }

    fn token(&mut self, sequence: usize) {
        self.prefill = None;
        self.tokens += 1;
        self.reported[sequence] += 1;
        self.estimator.token(sequence, self.now_s());
    }

    fn finished(&mut self, sequence: usize, generated: u32) {
        self.answers += 1;
        // A token that ends an answer was not reported.
        self.tokens += u64::from(generated.saturating_sub(self.reported[sequence]));
        self.tokens_max -= u64::from(self.max_new[sequence].saturating_sub(generated));
        self.estimator.finished(sequence, generated, self.now_s());
    }

    fn is_done(&self) -> bool {
        self.answers == self.max_new.len()
    }

    fn eta(&self) -> Option<Eta> {
        self.estimator.estimate(self.now_s())
    }

    /// Returns `4 of 8 answers: 50 of at most 100 new tokens, 3.2 tokens/s`, with the number of
    /// prompt tokens while some are not computed.
    fn text(&self) -> String {
        let (answers, tokens) = (self.max_new.len(), self.tokens);
        let most = match self.is_done() {
            true => String::new(),
            false => format!(" of at most {}", self.tokens_max),
        };
        let per_s = match tokens {
            0 => String::new(),
            _ => format!(", {:.1} tokens/s", tokens as f64 / self.now_s().max(1e-9)),
        };
        // Prompts of sequences that have a token, and the computed part of those that begin now.
        let started_tokens = self.estimator.prompt_tokens();
        let computed = started_tokens + self.prefill.map_or(0, |prefill| prefill.computed);
        let prompts = match (computed.min(self.prompt_tokens), self.prompt_tokens) {
            (_, all) if started_tokens >= all => String::new(),
            (done, all) => format!(", {done} of {all} prompt tokens"),
        };
        let prefill = self.prefill.and_then(PrefillProgress::eta_text).unwrap_or_default();
        let answered = self.answers;
        format!(
            "{answered} of {answers} answers: {tokens}{most} new tokens{per_s}{prompts}{prefill}"
        )
    }
}

/// Prompts that are computed together, and the number of their tokens that are computed.
#[derive(Debug, Clone, Copy)]
struct PrefillProgress {
    since: Instant,
    computed: u64,
    tokens: u64,
}

impl PrefillProgress {
    /// Returns `, prefill ends in about 2 min 3 s`; `None` until 1% is computed.
    fn eta_text(self) -> Option<String> {
        let share = self.computed as f64 / self.tokens.max(1) as f64;
        let left_s = self.since.elapsed().as_secs_f64() * (1.0 - share) / share;
        (share >= 0.01).then(|| format!(", prefill ends in about {}", format_duration(left_s)))
    }
}

/// Expected end of a bar, and the time of that estimate.
type SharedEta = Arc<Mutex<Option<(Instant, Eta)>>>;

#[derive(Debug)]
struct BarProgress {
    bar: ProgressBar,
    eta_config: EtaConfig,
    state: Option<ProgressTally>,
    shared_eta: SharedEta,
    last_update: Instant,
}

impl BarProgress {
    fn new(eta_config: EtaConfig) -> BarProgress {
        let (bar, shared_eta) = (ProgressBar::hidden(), SharedEta::default());
        BarProgress { bar, eta_config, state: None, shared_eta, last_update: Instant::now() }
    }

    /// Updates the position, the expected end and the text.
    fn refresh(&mut self) {
        let Some(tally) = &self.state else { return };
        self.last_update = Instant::now();
        let eta = tally.eta();
        if let Some(eta) = eta.filter(|eta| !eta.is_upper_bound) {
            let done_s = tally.now_s();
            let share = done_s / (done_s + eta.seconds).max(f64::MIN_POSITIVE);
            self.bar.set_position((share * BAR_LENGTH as f64) as u64);
        }
        *self.shared_eta.lock().unwrap_or_else(PoisonError::into_inner) =
            eta.map(|eta| (self.last_update, eta));
        self.bar.set_message(tally.text());
    }
}

impl JobProgress for BarProgress {
    fn begin(&mut self, planned: Vec<PlannedSequence>) {
        self.state = Some(ProgressTally::new(planned, self.eta_config));
        self.bar = ProgressBar::new(BAR_LENGTH);
        // The template is constant; if it were invalid, the default style would still inform.
        if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {msg}{left}")
        {
            let ends = Arc::clone(&self.shared_eta);
            let write_eta = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
                let found = *ends.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((thought, Eta { seconds, is_upper_bound })) = found {
                    let seconds = (seconds - thought.elapsed().as_secs_f64()).max(0.0);
                    // A failure to draw the bar must not fail the job.
                    let _ = to.write_str(&format_eta(Eta { seconds, is_upper_bound }));
                }
            };
            self.bar.set_style(style.with_key("left", write_eta));
        }
        self.refresh();
        self.bar.enable_steady_tick(BAR_EVERY);
    }

    fn prefilled(&mut self, computed: u64, tokens: u64) {
        if let Some(tally) = &mut self.state {
            tally.prefilled(computed, tokens);
        }
        if self.last_update.elapsed() >= BAR_EVERY {
            self.refresh();
        }
    }

    fn token(&mut self, sequence: usize) {
        if let Some(tally) = &mut self.state {
            tally.token(sequence);
        }
        if self.last_update.elapsed() >= BAR_EVERY {
            self.refresh();
        }
    }

    fn finished(&mut self, sequence: usize, generated: u32) {
        if let Some(tally) = &mut self.state {
            tally.finished(sequence, generated);
        }
        if self.last_update.elapsed() >= BAR_EVERY {
            self.refresh();
        }
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress as plain lines.
#[derive(Debug)]
pub struct LineProgress<W> {
    out: W,
    eta_config: EtaConfig,
    state: Option<ProgressTally>,
    last_line: Instant,
}

impl<W: Write> LineProgress<W> {
    /// Creates a report that writes lines to `out`.
    pub fn new(out: W, eta_config: EtaConfig) -> LineProgress<W> {
        LineProgress { out, eta_config, state: None, last_line: Instant::now() }
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn print_if_due(&mut self) {
        let Some(tally) = &self.state else { return };
        if !tally.is_done() && self.last_line.elapsed() < LINE_EVERY {
            return;
        }
        self.last_line = Instant::now();
        let eta = tally.eta().filter(|_| !tally.is_done());
        let eta = eta.map(format_eta).unwrap_or_default();
        // A failure to report progress must not fail the job: a closed stderr is ignored here and
        // below.
        let _ = writeln!(self.out, "{}{eta}", tally.text());
    }
}

impl<W: Write + Debug> JobProgress for LineProgress<W> {
    fn begin(&mut self, planned: Vec<PlannedSequence>) {
        self.last_line = Instant::now();
        let tally = ProgressTally::new(planned, self.eta_config);
        let (answers, most) = (tally.max_new.len(), tally.tokens_max);
        let _ = writeln!(
            self.out,
            "{answers} answer{}, at most {most} new tokens",
            plural_suffix(answers)
        );
        self.state = Some(tally);
    }

    fn prefilled(&mut self, computed: u64, tokens: u64) {
        if let Some(tally) = &mut self.state {
            tally.prefilled(computed, tokens);
        }
        self.print_if_due();
    }

    fn token(&mut self, sequence: usize) {
        if let Some(tally) = &mut self.state {
            tally.token(sequence);
        }
        self.print_if_due();
    }

    fn finished(&mut self, sequence: usize, generated: u32) {
        if let Some(tally) = &mut self.state {
            tally.finished(sequence, generated);
        }
        self.print_if_due();
    }

    fn end(&mut self) {}
}

/// Returns `, about 2 min 3 s eta`, or `, at most ...` if no answer has ended yet.
fn format_eta(eta: Eta) -> String {
    let how = if eta.is_upper_bound { "at most" } else { "about" };
    format!(", {how} {} left", format_duration(eta.seconds))
}

fn plural_suffix(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Formats a duration, as in `2 h 1 min` or `1 min 1 s`.
pub fn format_duration(seconds: f64) -> String {
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
        let mut lines = LineProgress::new(Vec::new(), EtaConfig { slots: 2, prior: None });
        lines.begin(vec![PlannedSequence { prompt_tokens: 5, max_new: 10 }; 4]);
        let due = |lines: &mut LineProgress<Vec<u8>>| {
            lines.last_line =
                Instant::now().checked_sub(LINE_EVERY).expect("the machine has run so long");
        };
        lines.token(0);
        due(&mut lines);
        lines.finished(0, 1);
        (1..4).for_each(|sequence| lines.finished(sequence, 1));
        let text = String::from_utf8(lines.into_inner()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], "4 answers, at most 40 new tokens");
        assert!(lines[1].starts_with("1 of 4 answers: 1 of at most 31 new tokens, "), "{text}");
        assert!(lines[1].contains(", 5 of 20 prompt tokens"), "{text}");
        assert!(lines[2].starts_with("4 of 4 answers: 4 new tokens, "), "{text}");
        assert!(lines[2].ends_with(" tokens/s"), "{text}");
    }

    #[test]
    fn prefill_is_told_until_its_first_token() {
        let mut tally = ProgressTally::new(
            vec![PlannedSequence { prompt_tokens: 100, max_new: 3 }],
            EtaConfig { slots: 1, prior: None },
        );
        tally.prefilled(0, 100);
        assert!(tally.text().ends_with(", 0 of 100 prompt tokens"), "{}", tally.text());
        tally.prefilled(25, 100);
        let earlier = |prefill: PrefillProgress| PrefillProgress {
            since: prefill.since.checked_sub(Duration::from_secs(10)).expect("it has run so long"),
            ..prefill
        };
        tally.prefill = tally.prefill.map(earlier);
        let line = tally.text();
        let expected = ", 25 of 100 prompt tokens, prefill ends in about 31 s";
        assert!(line.ends_with(expected), "{line}");
        tally.token(0);
        let line = tally.text();
        assert!(!line.contains("prefill") && !line.contains("prompt"), "{line}");
    }

    /// The prompt tokens reported during a later group include those of the groups before it.
    #[test]
    fn prompt_tokens_count_what_is_computed_of_those_that_begin() {
        let planned = vec![PlannedSequence { prompt_tokens: 100, max_new: 3 }; 2];
        let mut tally = ProgressTally::new(planned, EtaConfig { slots: 1, prior: None });
        tally.prefilled(72, 100);
        assert!(tally.text().contains(", 72 of 200 prompt tokens"), "{}", tally.text());
        tally.token(0);
        assert!(tally.text().ends_with(", 100 of 200 prompt tokens"), "{}", tally.text());
        tally.prefilled(50, 100);
        assert!(tally.text().contains(", 150 of 200 prompt tokens"), "{}", tally.text());
    }

    #[test]
    fn durations_read_well() {
        assert_eq!(format_duration(0.2), "1 s");
        assert_eq!(format_duration(61.0), "1 min 1 s");
        assert_eq!(format_duration(7260.0), "2 h 1 min");
    }
}
