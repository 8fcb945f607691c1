//! Why answers cannot have a form.

/// Why there is no such form; the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(pub(crate) String);

impl GrammarError {
    /// One line of what the parser says, the one it calls the error or the first: others show the
    /// whole grammar.
    pub(crate) fn new(error: &impl ToString) -> GrammarError {
        let told = error.to_string();
        let named = told.lines().find_map(|line| line.strip_prefix("error: "));
        let line = named.or_else(|| told.lines().next()).unwrap_or_default();
        GrammarError(line.trim_end_matches('.').to_owned())
    }
}
