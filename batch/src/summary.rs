//! Outcome of a job, as its last line and as an exit code.

use crate::outcome::JobOutcome;

/// Outcome of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSummary {
    pub answered: usize,
    /// Answers to the answered requests, each of which may have several.
    pub answers: usize,
    /// Input lines that got an error line, or an answer that does not follow the required grammar.
    pub failed_lines: Vec<usize>,
    /// Input lines with an answer that was cut at its maximum number of tokens.
    pub truncated_lines: Vec<usize>,
    /// Requests without a complete answer, because the job was interrupted.
    pub not_run: Vec<UnansweredRequest>,
    pub interrupted: bool,
    /// True if the answers are in a file, which another run can continue.
    pub resumable: bool,
}

/// A request without a complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnansweredRequest {
    /// Line of the input, from 1.
    pub line: usize,
    pub custom_id: String,
}

/// Maximum number of lines named in the last line of a run; the output file has all of them.
const MAX_NAMED_LINES: usize = 20;

impl JobSummary {
    /// Returns the outcome of the job.
    pub fn outcome(&self) -> JobOutcome {
        match () {
            () if self.interrupted => JobOutcome::Interrupted,
            () if self.failed_lines.is_empty() => JobOutcome::Complete,
            () => JobOutcome::Partial,
        }
    }
}

impl std::fmt::Display for JobSummary {
    /// Writes the last line of a run: `58 answered, 2 failed (lines 4, 17)`, or `1 answered with 3
    /// answers, 0 failed` if requests have several answers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (failed, lines) = (self.failed_lines.len(), format_lines(&self.failed_lines));
        write!(f, "{} answered", self.answered)?;
        if self.answers != self.answered {
            write!(f, " with {} answers", self.answers)?;
        }
        write!(f, ", {failed} failed{lines}")?;
        if !self.not_run.is_empty() {
            write!(f, ", {} not run", self.not_run.len())?;
        }
        if self.interrupted {
            write!(f, "; interrupted")?;
            if self.resumable {
                write!(f, ", continue with --resume")?;
            }
        }
        if !self.truncated_lines.is_empty() {
            let (cut, lines) = (self.truncated_lines.len(), format_lines(&self.truncated_lines));
            write!(f, "; {cut} cut at max_tokens{lines}")?;
        }
        Ok(())
    }
}

/// Returns ` (lines 4, 17)`, or an empty string if there are none.
fn format_lines(lines: &[usize]) -> String {
    let first: Vec<String> = lines.iter().take(MAX_NAMED_LINES).map(usize::to_string).collect();
    match lines.len() {
        0 => String::new(),
        1 => format!(" (line {})", first[0]),
        count if count > first.len() => format!(" (lines {}, ...)", first.join(", ")),
        _ => format!(" (lines {})", first.join(", ")),
    }
}
