//! Answers that follow forms: a walk for each slot, a mask for each row.

use std::sync::Arc;

use grammar::{Compiled, GrammarError, Walk};
use program::plan::Plan;

use crate::shared::forms::{Forms, ReadyForms};

/// The walks of all slots. They allocate as they go: what counts allocations counts these.
#[derive(Debug)]
pub(super) struct Walks {
    from: From,
    /// `[batch][slot]`; `None` until an answer there follows a form.
    walks: Vec<Option<On>>,
    batch_size: usize,
    mask_words: usize,
    /// `[row][word]`, a bit for each token.
    masks: Vec<u32>,
}

/// What walks begin with.
#[derive(Debug)]
enum From {
    Given(Box<Compiled>),
    Coming(Arc<ReadyForms>),
}

/// A walk, of the answer that came in this place.
#[derive(Debug, Clone)]
struct On {
    arrival: u32,
    walk: Walk,
}

impl Walks {
    /// For instructions of up to `rows` rows.
    ///
    /// # Errors
    /// A vocabulary that no parser can be made for.
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

    /// The masks of the rows.
    pub(super) fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Compiles what answers are about to begin with, on so many threads.
    pub(super) fn prepare(&mut self, grammars: impl Iterator<Item = usize>, threads: usize) {
        if let From::Given(compiled) = &mut self.from {
            compiled.prepare(grammars, threads);
        }
    }

    /// Whether the answer in a slot has no walk yet, and then begins one. `is_first` says that
    /// nothing of it was said.
    ///
    /// # Panics
    /// A form that the coordinator did not wait for.
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

    /// Sets the mask of a row, whose slot's answer follows a form; whether it has one, which it has
    /// not where every token can follow.
    pub(super) fn allow(&mut self, row: usize, (batch, slot): (usize, usize)) -> bool {
        let words = self.mask_words;
        let on = self.walks[batch * self.batch_size + slot].as_mut();
        on.filter(|on| !on.walk.is_free()).is_some_and(|on| {
            on.walk.allow(&mut self.masks[row * words..][..words]);
            true
        })
    }

    /// The token that a slot's answer goes on with.
    pub(super) fn take(&mut self, (batch, slot): (usize, usize), token: u32) {
        if let Some(on) = &mut self.walks[batch * self.batch_size + slot] {
            on.walk.take(token);
        }
    }
}
