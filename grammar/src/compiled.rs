//! Grammars as a sampler uses them.

use llguidance::Matcher;
use serde::{Deserialize, Serialize};

use crate::asked::{Grammar, GrammarError, factory};
use crate::vocabulary::Vocabulary;

/// All that the answers of a run may have to follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammars {
    pub vocabulary: Vocabulary,
    pub grammars: Vec<Grammar>,
}

/// Compiled for a vocabulary.
pub struct Compiled {
    /// At their beginnings.
    walks: Vec<Walk>,
    mask_words: usize,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("grammars", &self.walks.len()).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Compiles all of them.
    ///
    /// # Errors
    /// As [`crate::Checker::check`].
    pub fn new(grammars: &Grammars) -> Result<Compiled, GrammarError> {
        let Grammars { vocabulary, grammars } = grammars;
        let factory = factory(&vocabulary.to_env())?;
        let walk = |grammar: &Grammar| {
            let matcher = Matcher::new(Ok(grammar.parser(&factory)?));
            Ok(Walk { matcher, ends: vocabulary.ends.clone() })
        };
        let walks = grammars.iter().map(walk).collect::<Result<_, _>>()?;
        Ok(Compiled { walks, mask_words: vocabulary.mask_words() })
    }

    /// A walk from the beginning of a grammar.
    ///
    /// # Panics
    /// There is no such grammar.
    pub fn begin(&self, grammar: usize) -> Walk {
        self.walks[grammar].clone()
    }

    /// Words of a mask: a bit for each token, the lowest first.
    pub fn mask_words(&self) -> usize {
        self.mask_words
    }
}

/// An answer on its way through a grammar.
#[derive(Clone)]
pub struct Walk {
    matcher: Matcher,
    ends: Vec<u32>,
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}

impl Walk {
    /// Sets the bits of the tokens that can follow, of which there is always one: at the end of the grammar, and where
    /// the parser gives up, those that end the answer.
    pub fn allow(&mut self, mask: &mut [u32]) {
        mask.fill(0);
        let mut ends = true;
        if let Ok(allowed) = self.matcher.compute_mask_or_eos() {
            let words = allowed.as_slice();
            let count = words.len().min(mask.len());
            mask[..count].copy_from_slice(&words[..count]);
            ends = self.ends.iter().any(|end| is_set(mask, *end))
                || mask.iter().all(|word| *word == 0);
        }
        if ends {
            self.ends.iter().for_each(|end| set(mask, *end));
        }
    }

    /// The token that followed.
    pub fn take(&mut self, token: u32) {
        if !self.ends.contains(&token) {
            // Of a token that was not allowed nothing more is expected than the end.
            let _ = self.matcher.consume_token(token);
        }
    }
}

fn is_set(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}
