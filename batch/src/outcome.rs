//! Outcome of a job, from which its exit code follows.

/// Outcome of a job that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOutcome {
    /// Every request has an answer.
    Complete,
    /// Some requests have an error line, or an answer that does not follow its grammar.
    Partial,
    /// The job was interrupted; finished answers are kept.
    Interrupted,
}
