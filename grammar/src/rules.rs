//! A grammar in the parser's format.

use std::collections::BTreeSet;

use llguidance::api::TopLevelGrammar;

/// A grammar in the parser's format.
pub(crate) struct ParserRules {
    pub(crate) grammar: TopLevelGrammar,
    /// Keywords of schemas that the parser does not enforce.
    pub(crate) unenforced: BTreeSet<String>,
}

impl From<TopLevelGrammar> for ParserRules {
    fn from(grammar: TopLevelGrammar) -> ParserRules {
        ParserRules { grammar, unenforced: BTreeSet::new() }
    }
}
