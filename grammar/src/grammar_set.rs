//! The grammars with which a sampler is set up.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::choice_encoder::ChoiceEncoder;
use crate::definition::Grammar;
use crate::vocabulary::Vocabulary;

/// All grammars that the answers of a run may follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrammarSet {
    pub(crate) vocabulary: Arc<Vocabulary>,
    /// Grammars in the order in which they were given.
    pub(crate) grammars: Vec<EncodedGrammar>,
    /// Approximate memory for parsers and their tables, in bytes, in addition to the texts.
    pub(crate) memory_bytes: u64,
}

/// Divisor that gives the part of a run's memory that grammars may use.
const MEMORY_SHARE: u64 = 64;
/// Bounds of that part, in bytes: a parser for a schema of a few fields takes about 100 KiB.
const MEMORY_RANGE_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=512 << 20;
/// Bytes per token in a parser's tables of the vocabulary: measured 590 with 50,000 tokens of 2 to
/// 14 bytes.
const TABLE_BYTES_PER_TOKEN: u64 = 1024;

/// A grammar over a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EncodedGrammar {
    /// A grammar that needs a parser.
    Parsed(Grammar),
    /// The tokens of each text to choose from, in ascending order.
    Choice(Vec<Vec<u32>>),
}

impl GrammarSet {
    /// Creates the grammars over a vocabulary. `encode` returns the tokens that the model's
    /// tokenizer produces for a text, without special tokens at the beginning and the end; `None`
    /// if it cannot encode the text.
    ///
    /// Choices that no tokens spell are left out.
    pub fn new(
        vocabulary: Vocabulary,
        grammars: Vec<Grammar>,
        encode: impl Fn(&str) -> Option<Vec<u32>>,
    ) -> GrammarSet {
        let mut speller = ChoiceEncoder::new(&vocabulary, encode);
        let grammars =
            grammars.into_iter().map(|grammar| encode_grammar(grammar, &mut speller)).collect();
        let vocabulary = Arc::new(vocabulary);
        let memory_bytes = GrammarSet::share_bytes(4 << 30, vocabulary.words.len());
        GrammarSet { vocabulary, grammars, memory_bytes }
    }

    /// Converts a grammar to the same vocabulary; `encode` is as for [`GrammarSet::new`].
    pub fn encode(
        &self,
        grammar: Grammar,
        encode: impl Fn(&str) -> Option<Vec<u32>>,
    ) -> EncodedGrammar {
        encode_grammar(grammar, &mut ChoiceEncoder::new(&self.vocabulary, encode))
    }

    /// Sets the memory. The default is that of a run with 4 GiB.
    pub fn with_memory_bytes(mut self, memory_bytes: u64) -> GrammarSet {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Returns the memory for grammars of a run that may use `memory_bytes`.
    pub fn share_bytes(memory_bytes: u64, vocab_size: usize) -> u64 {
        let part = (memory_bytes / MEMORY_SHARE)
            .clamp(*MEMORY_RANGE_BYTES.start(), *MEMORY_RANGE_BYTES.end());
        part + TABLE_BYTES_PER_TOKEN * vocab_size as u64
    }

    /// Returns the memory for parsers, without the tables of the vocabulary.
    pub(crate) fn parsers_bytes(&self) -> usize {
        let tables = TABLE_BYTES_PER_TOKEN * self.vocabulary.words.len() as u64;
        usize::try_from(self.memory_bytes.saturating_sub(tables)).unwrap_or(usize::MAX)
    }
}

fn encode_grammar<E: Fn(&str) -> Option<Vec<u32>>>(
    grammar: Grammar,
    speller: &mut ChoiceEncoder<'_, E>,
) -> EncodedGrammar {
    match grammar {
        Grammar::Choice(texts) => {
            let spelled = texts.iter().filter_map(|text| speller.encode_choice(text));
            let mut spelled: Vec<Vec<u32>> = spelled.collect();
            spelled.sort_unstable();
            spelled.dedup();
            EncodedGrammar::Choice(spelled)
        }
        grammar => EncodedGrammar::Parsed(grammar),
    }
}
