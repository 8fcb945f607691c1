//! A grammar in the words of its parser.

use std::collections::BTreeSet;

use llguidance::api::TopLevelGrammar;

/// A form in the parser's own terms.
pub(crate) struct Rules {
    pub(crate) grammar: TopLevelGrammar,
    /// Keywords of schemas that it does not hold.
    pub(crate) unheld: BTreeSet<String>,
}

impl From<TopLevelGrammar> for Rules {
    fn from(grammar: TopLevelGrammar) -> Rules {
        Rules { grammar, unheld: BTreeSet::new() }
    }
}
