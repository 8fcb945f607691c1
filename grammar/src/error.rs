//! Errors of grammars.

/// Reason for which a grammar is not possible or a text does not match; the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(pub(crate) String);

impl GrammarError {
    /// Takes one line of a message of the parser: the one marked as the error, or the first. The
    /// other lines show the whole grammar.
    pub(crate) fn new(error: &impl ToString) -> GrammarError {
        let told = error.to_string();
        let named = told.lines().find_map(|line| line.strip_prefix("error: "));
        let line = named.or_else(|| told.lines().next()).unwrap_or_default();
        GrammarError(line.trim_end_matches('.').to_owned())
    }
}
