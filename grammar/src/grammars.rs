//! What a sampler is set up with.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::form::Grammar;
use crate::spell::Speller;
use crate::vocabulary::Vocabulary;

/// All that the answers of a run may have to follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammars {
    pub(crate) vocabulary: Arc<Vocabulary>,
    /// In the order in which they were given.
    pub(crate) forms: Vec<Form>,
    /// What may be held for them beside their texts, about.
    pub(crate) memory_bytes: u64,
}

/// Of a run's memory, the part that may be held for the forms of its answers.
const SHARE: u64 = 64;
/// Of that part: a parser of a schema of a few fields has about 100 KiB.
const SHARE_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=512 << 20;
/// Of a token in a parser's tables of the vocabulary: measured 590 with 50,000 tokens of 2 to 14
/// bytes.
const TOKEN_BYTES: u64 = 1024;

/// A grammar over a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
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
        let forms = grammars.into_iter().map(|grammar| form(grammar, &mut speller)).collect();
        let vocabulary = Arc::new(vocabulary);
        let memory_bytes = Grammars::share_bytes(4 << 30, vocabulary.words.len());
        Grammars { vocabulary, forms, memory_bytes }
    }

    /// A form over the same vocabulary; `encode` as for [`Grammars::new`].
    pub fn form(&self, grammar: Grammar, encode: impl Fn(&str) -> Option<Vec<u32>>) -> Form {
        form(grammar, &mut Speller::new(&self.vocabulary, encode))
    }

    /// With so much memory; without it as much as of 4 GiB.
    pub fn within(mut self, memory_bytes: u64) -> Grammars {
        self.memory_bytes = memory_bytes;
        self
    }

    /// What a run that may use so much memory sets aside for forms.
    pub fn share_bytes(memory_bytes: u64, vocab_size: usize) -> u64 {
        let part = (memory_bytes / SHARE).clamp(*SHARE_BYTES.start(), *SHARE_BYTES.end());
        part + TOKEN_BYTES * vocab_size as u64
    }

    /// Of the memory, what parsers may have beside the tables of the vocabulary.
    pub(crate) fn parsers_bytes(&self) -> usize {
        let tables = TOKEN_BYTES * self.vocabulary.words.len() as u64;
        usize::try_from(self.memory_bytes.saturating_sub(tables)).unwrap_or(usize::MAX)
    }
}

fn form<E: Fn(&str) -> Option<Vec<u32>>>(grammar: Grammar, speller: &mut Speller<'_, E>) -> Form {
    match grammar {
        Grammar::Choice(texts) => {
            let spelled = texts.iter().filter_map(|text| speller.spell(text));
            let mut spelled: Vec<Vec<u32>> = spelled.collect();
            spelled.sort_unstable();
            spelled.dedup();
            Form::Spelled(spelled)
        }
        grammar => Form::Parsed(grammar),
    }
}
