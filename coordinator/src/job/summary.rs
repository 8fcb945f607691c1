//! How a job ended, in a line and in an exit code.

use crate::exit::Exit;

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub answered: usize,
    /// Answers to these requests, of which one may have several.
    pub answers: usize,
    /// Lines of the input that got an error line, or an answer without the form that it must have.
    pub failed_lines: Vec<usize>,
    /// Lines whose answer, or one of them, was cut at its largest number of tokens.
    pub cut_lines: Vec<usize>,
    /// Requests that were not reached.
    pub not_run: usize,
    pub interrupted: bool,
    /// The answers are in a file, which another run can go on with.
    pub resumable: bool,
}

/// Lines named in the last line of a run; the output file has all of them.
const NAMED_LINES_MAX: usize = 20;

impl Summary {
    /// The exit code that says this.
    pub fn exit(&self) -> Exit {
        match () {
            () if self.interrupted => Exit::Interrupted,
            () if self.failed_lines.is_empty() => Exit::Done,
            () => Exit::SomeFailed,
        }
    }
}

impl std::fmt::Display for Summary {
    /// The last line of a run: `58 answered, 2 failed (lines 4, 17)`; `1 answered with 3 answers,
    /// 0 failed` where requests ask for several.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (failed, lines) = (self.failed_lines.len(), named(&self.failed_lines));
        write!(f, "{} answered", self.answered)?;
        if self.answers != self.answered {
            write!(f, " with {} answers", self.answers)?;
        }
        write!(f, ", {failed} failed{lines}")?;
        if self.not_run > 0 {
            write!(f, ", {} not run", self.not_run)?;
        }
        if self.interrupted {
            write!(f, "; interrupted")?;
            if self.resumable {
                write!(f, ", go on with --resume")?;
            }
        }
        if !self.cut_lines.is_empty() {
            let (cut, lines) = (self.cut_lines.len(), named(&self.cut_lines));
            write!(f, "; {cut} cut at max_tokens{lines}")?;
        }
        Ok(())
    }
}

/// ` (lines 4, 17)`; nothing for none.
fn named(lines: &[usize]) -> String {
    let first: Vec<String> = lines.iter().take(NAMED_LINES_MAX).map(usize::to_string).collect();
    match lines.len() {
        0 => String::new(),
        1 => format!(" (line {})", first[0]),
        count if count > first.len() => format!(" (lines {}, ...)", first.join(", ")),
        _ => format!(" (lines {})", first.join(", ")),
    }
}
