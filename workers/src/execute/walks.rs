//! Structured output: a grammar matcher for each slot and a token mask for each row.

use std::sync::Arc;

use grammar::{Compiled, GrammarError, Walk};
use program::plan::Plan;

use crate::shared::forms::{Forms, ReadyForms};

/// Grammar matchers of all slots. They allocate while they run, which the allocation counter
/// includes.
#[derive(Debug)]
pub(super) struct Walks {
    from: From,
    /// `[batch][slot]`; `None` until an answer in the slot follows a grammar.
    walks: Vec<Option<On>>,
    batch_size: usize,
    mask_words: usize,
    /// `[row][word]`, with one bit per token.
    masks: Vec<u32>,
}

/// Source of the compiled grammars.
#[derive(Debug)]
enum From {
    Given(Box<Compiled>),
    Coming(Arc<ReadyForms>),
}

/// Matcher state of the answer with this arrival number.
#[derive(Debug, Clone)]
struct On {
    arrival: u32,
    walk: Walk,
}

impl Walks {
    /// Allocates for instructions of up to `rows` rows.
    ///
    /// # Errors
    /// Returns an error if no parser can be created for the vocabulary.
    pub(super) fn new(forms: &Forms, plan: &Plan, rows: usize) -> Result<Walks, GrammarError> {
        let from = match forms {
            Forms::Given(grammars) => From::Given(Box::new(Compiled::new(Arc::clone(grammars))?)),
            Forms::Coming(ready) => From::Coming(Arc::clone(ready)),
        };
        let batch_size = usize::from(plan.shape.batch_size);
        let slots = usize::from(plan.shape.batches) * batch_size;
        let mask_words = plan.config.vocab_size.div_ceil(32);
        let masks = vec![0; rows * mask_words];
        Ok(Walks { from, walks: vec![None; slots], batch_size, mask_words, masks })
    }

    /// Returns the masks of the rows.
    pub(super) fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Compiles the grammars of answers that are about to begin, on `threads` threads.
    pub(super) fn prepare(&mut self, grammars: impl Iterator<Item = usize>, threads: usize) {
        if let From::Given(compiled) = &mut self.from {
            compiled.prepare(grammars, threads);
        }
    }

    /// Creates a matcher for the answer in a slot and returns true, unless it has one already.
    /// `is_first` means that the answer has no tokens yet.
    ///
    /// # Panics
    /// Panics if the grammar is not compiled yet, for which the coordinator has to wait.
    pub(super) fn begins(
        &mut self,
        row: usize,
        (batch, slot): (usize, usize),
        (arrival, form): (u32, usize),
        is_first: bool,
    ) -> bool {
        debug_assert!((row + 1) * self.mask_words <= self.masks.len(), "row {row}");
        let place = batch * self.batch_size + slot;
        let is_on = self.walks[place].as_ref().is_some_and(|on| on.arrival == arrival);
        if is_on && !is_first {
            return false;
        }
        let walk = match &mut self.from {
            From::Given(compiled) => compiled.begin(form),
            From::Coming(ready) => ready.begin(form as u32 + 1).expect("a form that is ready"),
        };
        self.walks[place] = Some(On { arrival, walk });
        true
    }

    /// Computes the mask of a row whose answer follows a grammar. Returns false, without a mask, if
    /// every token can follow.
    pub(super) fn allow(&mut self, row: usize, (batch, slot): (usize, usize)) -> bool {
        let words = self.mask_words;
        let on = self.walks[batch * self.batch_size + slot].as_mut();
        on.filter(|on| !on.walk.is_free()).is_some_and(|on| {
            on.walk.allow(&mut self.masks[row * words..][..words]);
            true
        })
    }

    /// Advances a slot's answer by a token.
    pub(super) fn take(&mut self, (batch, slot): (usize, usize), token: u32) {
        if let Some(on) = &mut self.walks[batch * self.batch_size + slot] {
            on.walk.take(token);
        }
    }
}
