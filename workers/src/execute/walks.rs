//! Answers that follow grammars: a walk for each slot, a mask for each row.

use std::sync::Arc;

use grammar::{Compiled, GrammarError, Grammars, Walk};
use program::plan::Plan;

/// The walks of all slots. They allocate as they go: what counts allocations counts these.
#[derive(Debug)]
pub(super) struct Walks {
    compiled: Compiled,
    /// `[batch][slot]`; `None` until an answer there follows a grammar.
    walks: Vec<Option<Walk>>,
    batch_size: usize,
    /// `[row][word]`, a bit for each token.
    masks: Vec<u32>,
}

impl Walks {
    /// For instructions of up to `rows` rows.
    ///
    /// # Errors
    /// A vocabulary that no parser can be made for.
    pub(super) fn new(
        grammars: Arc<Grammars>,
        plan: &Plan,
        rows: usize,
    ) -> Result<Walks, GrammarError> {
        let compiled = Compiled::new(grammars)?;
        let batch_size = usize::from(plan.shape.batch_size);
        let slots = usize::from(plan.shape.batches) * batch_size;
        let masks = vec![0; rows * compiled.mask_words()];
        Ok(Walks { walks: vec![None; slots], batch_size, masks, compiled })
    }

    /// The masks of the rows.
    pub(super) fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Compiles what answers are about to begin with, on so many threads.
    pub(super) fn prepare(&mut self, grammars: impl Iterator<Item = usize>, threads: usize) {
        self.compiled.prepare(grammars, threads);
    }

    /// Sets the mask of a row, whose slot's answer follows a grammar; it begins where `is_first`
    /// says so.
    pub(super) fn allow(
        &mut self,
        row: usize,
        (batch, slot): (usize, usize),
        grammar: usize,
        is_first: bool,
    ) {
        let walk = match &mut self.walks[batch * self.batch_size + slot] {
            Some(walk) if !is_first => walk,
            slot => slot.insert(self.compiled.begin(grammar)),
        };
        let words = self.compiled.mask_words();
        walk.allow(&mut self.masks[row * words..][..words]);
    }

    /// The token that a slot's answer goes on with.
    pub(super) fn take(&mut self, (batch, slot): (usize, usize), token: u32) {
        if let Some(walk) = &mut self.walks[batch * self.batch_size + slot] {
            walk.take(token);
        }
    }
}
