//! What a sampler is set up with.

use serde::{Deserialize, Serialize};

use crate::asked::Grammar;
use crate::spell::Speller;
use crate::vocabulary::Vocabulary;

/// All that the answers of a run may have to follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammars {
    pub(crate) vocabulary: Vocabulary,
    /// In the order in which they were given.
    pub(crate) forms: Vec<Form>,
}

/// A grammar over a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Form {
    /// A parser follows it.
    Parsed(Grammar),
    /// The tokens of each text to choose from, in ascending order.
    Spelled(Vec<Vec<u32>>),
}

impl Grammars {
    /// Grammars over a vocabulary. `encode` says what the model's tokenizer makes of a text,
    /// without tokens that begin or end one; `None` where it makes nothing of it.
    ///
    /// A choice that no tokens spell is left out.
    pub fn new(
        vocabulary: Vocabulary,
        grammars: Vec<Grammar>,
        encode: impl Fn(&str) -> Option<Vec<u32>>,
    ) -> Grammars {
        let mut speller = Speller::new(&vocabulary, encode);
        let forms = grammars.into_iter().map(|grammar| match grammar {
            Grammar::Choice(texts) => {
                let spelled = texts.iter().filter_map(|text| speller.spell(text));
                let mut spelled: Vec<Vec<u32>> = spelled.collect();
                spelled.sort_unstable();
                spelled.dedup();
                Form::Spelled(spelled)
            }
            grammar => Form::Parsed(grammar),
        });
        let forms = forms.collect();
        Grammars { vocabulary, forms }
    }
}
