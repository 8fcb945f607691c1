//! Grammars as a sampler uses them.

use llguidance::Matcher;
use serde::{Deserialize, Serialize};

use crate::asked::{Grammar, factory};
use crate::error::GrammarError;
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
            Ok(Walk { matcher, ends: vocabulary.ends.clone(), failure: None })
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
    /// Why the parser gave up.
    failure: Option<String>,
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
        let allowed = self.matcher.compute_mask_or_eos();
        self.note(allowed.as_ref().err().map(GrammarError::new));
        if let Ok(allowed) = allowed {
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
            let taken = self.matcher.consume_token(token);
            self.note(taken.err().map(|error| GrammarError::new(&error)));
        }
    }

    /// Why the parser gave up, if it did: the answer then ends where it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether what was taken so far is a whole text of the form.
    pub fn is_complete(&mut self) -> bool {
        self.failure.is_none() && self.matcher.is_accepting().unwrap_or(false)
    }

    /// The first failure stays.
    fn note(&mut self, error: Option<GrammarError>) {
        if self.failure.is_none() {
            self.failure = error.map(|error| error.0);
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
