//! A grammar in the parser's format.

use std::collections::BTreeSet;

use llguidance::api::TopLevelGrammar;

/// A grammar in the parser's format.
pub(crate) struct Rules {
    pub(crate) grammar: TopLevelGrammar,
    /// Keywords of schemas that the parser does not enforce.
    pub(crate) unheld: BTreeSet<String>,
}

impl From<TopLevelGrammar> for Rules {
    fn from(grammar: TopLevelGrammar) -> Rules {
        Rules { grammar, unheld: BTreeSet::new() }
    }
}
