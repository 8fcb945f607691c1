//! Structured output: a grammar matcher for each slot and a token mask for each row.

use std::sync::Arc;

use grammar::{CompiledGrammarCache, GrammarError, GrammarMatcher};
use program::plan::Plan;
use protocol::grammar_source::{GrammarSource, ReadyGrammars};

/// Grammar matchers of all slots. They allocate while they run, which the allocation counter
/// includes.
#[derive(Debug)]
pub(super) struct GrammarMatchers {
    source: MatcherSource,
    /// `[batch][slot]`; `None` until an answer in the slot follows a grammar.
    matchers: Vec<Option<SlotMatcher>>,
    /// State before the drafts of the sequence whose masks are being computed.
    before_drafts: Option<SlotMatcher>,
    batch_size: usize,
    mask_words: usize,
    /// `[row][word]`, with one bit per token.
    masks: Vec<u32>,
}

/// Source of the compiled grammars.
#[derive(Debug)]
enum MatcherSource {
    Preloaded(Box<CompiledGrammarCache>),
    Dynamic(Arc<ReadyGrammars>),
}

/// Matcher state of the answer with this arrival number.
#[derive(Debug, Clone)]
struct SlotMatcher {
    arrival: u32,
    matcher: GrammarMatcher,
}

impl GrammarMatchers {
    /// Allocates for instructions of up to `rows` rows.
    ///
    /// # Errors
    /// Returns an error if no parser can be created for the vocabulary.
    pub(super) fn new(
        source: &GrammarSource,
        plan: &Plan,
        rows: usize,
    ) -> Result<GrammarMatchers, GrammarError> {
        let from = match source {
            GrammarSource::Preloaded(grammars) => {
                MatcherSource::Preloaded(Box::new(CompiledGrammarCache::new(Arc::clone(grammars))?))
            }
            GrammarSource::Dynamic(ready) => MatcherSource::Dynamic(Arc::clone(ready)),
        };
        let batch_size = usize::from(plan.shape.batch_size);
        let slots = usize::from(plan.shape.batches) * batch_size;
        let mask_words = plan.config.vocab_size.div_ceil(32);
        let masks = vec![0; rows * mask_words];
        Ok(GrammarMatchers {
            source: from,
            matchers: vec![None; slots],
            before_drafts: None,
            batch_size,
            mask_words,
            masks,
        })
    }

    /// Returns the masks of the rows.
    pub(super) fn masks(&self) -> &[u32] {
        &self.masks
    }

    /// Compiles the grammars of answers that are about to begin, on `threads` threads.
    pub(super) fn prepare(&mut self, grammars: impl Iterator<Item = usize>, threads: usize) {
        if let MatcherSource::Preloaded(compiled) = &mut self.source {
            compiled.prepare(grammars, threads);
        }
    }

    /// Creates a matcher for the answer in a slot and returns true, unless it has one already.
    /// `is_first` means that the answer has no tokens yet.
    ///
    /// # Panics
    /// Panics if the grammar is not compiled yet, for which the coordinator has to wait.
    pub(super) fn ensure_matcher(
        &mut self,
        row: usize,
        batch: usize,
        slot: usize,
        arrival: u32,
        grammar: usize,
        is_first: bool,
    ) -> bool {
        debug_assert!((row + 1) * self.mask_words <= self.masks.len(), "row {row}");
        let place = batch * self.batch_size + slot;
        let has_matcher = self.matchers[place].as_ref().is_some_and(|on| on.arrival == arrival);
        if has_matcher && !is_first {
            return false;
        }
        let matcher = match &mut self.source {
            MatcherSource::Preloaded(compiled) => compiled.start_matcher(grammar),
            MatcherSource::Dynamic(ready) => {
                ready.begin(grammar as u32 + 1).expect("a form that is ready")
            }
        };
        self.matchers[place] = Some(SlotMatcher { arrival, matcher });
        true
    }

    /// Computes the mask of a row whose answer follows a grammar. Returns false, without a mask, if
    /// every token can follow.
    pub(super) fn compute_mask(&mut self, row: usize, batch: usize, slot: usize) -> bool {
        let words = self.mask_words;
        let slot_matcher = self.matchers[batch * self.batch_size + slot].as_mut();
        slot_matcher.filter(|on| !on.matcher.is_unconstrained()).is_some_and(|on| {
            on.matcher.fill_mask(&mut self.masks[row * words..][..words]);
            true
        })
    }

    /// Keeps the state of a slot's answer, which drafts are about to advance.
    pub(super) fn save(&mut self, batch: usize, slot: usize) {
        self.before_drafts.clone_from(&self.matchers[batch * self.batch_size + slot]);
    }

    /// Returns a slot's answer to the state that was saved.
    pub(super) fn restore(&mut self, batch: usize, slot: usize) {
        self.matchers[batch * self.batch_size + slot] = self.before_drafts.take();
    }

    /// Advances a slot's answer by a token.
    pub(super) fn accept_token(&mut self, batch: usize, slot: usize, token: u32) {
        if let Some(on) = &mut self.matchers[batch * self.batch_size + slot] {
            on.matcher.accept_token(token);
        }
    }
}
