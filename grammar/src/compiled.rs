//! Grammars as a sampler uses them.

use std::sync::Arc;

use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};

use crate::asked::{Grammar, factory};
use crate::cache::{Bounds, Cache};
use crate::error::GrammarError;
use crate::keys::Keys;
use crate::parser::Parser;
use crate::vocabulary::Vocabulary;

/// Parsers kept for answers to come. Those of answers on their way are beside them, one a slot at most.
const KEPT: Bounds = Bounds { count: 256, size_bytes: 64 << 20 };

/// All that the answers of a run may have to follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grammars {
    pub vocabulary: Vocabulary,
    pub grammars: Vec<Grammar>,
}

impl Grammars {
    /// The bytes that a token adds to a text.
    fn word(&self, token: u32) -> Option<&[u8]> {
        self.vocabulary.words.get(token as usize).map(Vec::as_slice)
    }

    /// Bytes that a sampler of answers that follow grammars has at most, beside the grammars' texts and what the
    /// parsers of running answers hold by themselves.
    pub fn sampler_bytes(vocab_size: usize) -> u64 {
        (KEPT.size_bytes + vocab_size * TOKEN_BYTES) as u64
    }
}

/// Of a thread that compiles: what reads a form recurses, within the bounds on forms.
const STACK_BYTES: usize = 2 << 20;
/// Of a token in a parser's tables of the vocabulary: measured 590 with 50,000 tokens of 2 to 14 bytes.
const TOKEN_BYTES: usize = 1024;

/// Grammars over a vocabulary, each compiled when an answer begins that follows it. That takes about a millisecond
/// for a schema of a few fields, 40 for one of 200.
pub struct Compiled {
    forms: Arc<Grammars>,
    /// Tokens that can complete a key.
    quoting: Arc<[u32]>,
    factory: ParserFactory,
    /// By the grammar's number.
    kept: Cache<usize, Parser>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled")
            .field("forms", &self.forms.grammars.len())
            .finish_non_exhaustive()
    }
}

impl Compiled {
    /// Nothing is compiled yet.
    ///
    /// # Errors
    /// A vocabulary that no parser can be made for.
    pub fn new(forms: Arc<Grammars>) -> Result<Compiled, GrammarError> {
        let factory = factory(&forms.vocabulary.to_env())?;
        let words = forms.vocabulary.words.iter().zip(0..);
        let quoting = words.filter_map(|(word, token)| word.contains(&b'"').then_some(token));
        let quoting = quoting.collect();
        Ok(Compiled { forms, quoting, factory, kept: Cache::new(KEPT) })
    }

    /// Compiles what answers are about to begin with, on so many threads; [`Compiled::begin`] finds it.
    pub fn prepare(&mut self, grammars: impl IntoIterator<Item = usize>, threads: usize) {
        let Compiled { forms, factory, kept, .. } = self;
        let mut missing: Vec<usize> = grammars.into_iter().collect();
        missing.sort_unstable();
        missing.dedup();
        missing.retain(|grammar| kept.peek(grammar).is_none());
        // A single one is compiled where it is asked for.
        if missing.len() < 2 || threads < 2 {
            return;
        }
        let make = |part: &[usize]| -> Vec<(usize, Result<Parser, GrammarError>)> {
            let made = |grammar: &usize| Parser::new(&forms.grammars[*grammar], factory);
            part.iter().map(|grammar| (*grammar, made(grammar))).collect()
        };
        let parts = missing.chunks(missing.len().div_ceil(threads));
        let made = std::thread::scope(|scope| {
            let begun: Vec<_> = parts
                .filter_map(|part| {
                    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                    thread.spawn_scoped(scope, move || make(part)).ok()
                })
                .collect();
            begun.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect::<Vec<_>>()
        });
        for (grammar, parser) in made {
            // What cannot be compiled says so where it is asked for.
            let _ = kept.get(&grammar, || parser);
        }
    }

    /// A walk from the beginning of a grammar; one that cannot be compiled has failed.
    ///
    /// # Panics
    /// There is no such grammar.
    pub fn begin(&mut self, grammar: usize) -> Walk {
        let Compiled { forms, quoting, factory, kept } = self;
        let make = || Parser::new(&forms.grammars[grammar], factory);
        if kept.peek(&grammar).is_some_and(Parser::is_worn) {
            kept.forget(&grammar);
        }
        let parser = kept.get(&grammar, make).map(Parser::begin);
        let failure = parser.as_ref().err().map(ToString::to_string);
        let matcher = Matcher::new(parser.map_err(Into::into));
        let has_keys = matches!(forms.grammars[grammar], Grammar::JsonSchema(..));
        let keys = has_keys.then(Keys::default);
        Walk { forms: Arc::clone(forms), quoting: Arc::clone(quoting), matcher, keys, failure }
    }

    /// Words of a mask: a bit for each token, the lowest first.
    pub fn mask_words(&self) -> usize {
        self.forms.vocabulary.mask_words()
    }
}

/// An answer on its way through a grammar.
#[derive(Clone)]
pub struct Walk {
    forms: Arc<Grammars>,
    quoting: Arc<[u32]>,
    matcher: Matcher,
    /// Of a JSON text.
    keys: Option<Keys>,
    /// Why the parser gave up, or was never made.
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
            self.leave_out_repeated(mask);
            ends = self.ends().iter().any(|end| is_set(mask, *end))
                || mask.iter().all(|word| *word == 0);
        }
        if ends {
            self.ends().iter().for_each(|end| set(mask, *end));
        }
    }

    /// The token that followed.
    pub fn take(&mut self, token: u32) {
        if self.ends().contains(&token) {
            return;
        }
        // Of a token that was not allowed nothing more is expected than the end.
        let taken = self.matcher.consume_token(token);
        self.note(taken.err().map(|error| GrammarError::new(&error)));
        if let (Some(keys), Some(word)) = (&mut self.keys, self.forms.word(token)) {
            let repeated = keys.take(word).err();
            self.note(repeated.map(|key| GrammarError(format!("the key `{key}` comes twice"))));
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

    /// Clears the bits of the tokens that would complete a key that the object has already.
    fn leave_out_repeated(&self, mask: &mut [u32]) {
        let Some(keys) = &self.keys else { return };
        for token in self.quoting.iter().copied() {
            if is_set(mask, token) && self.forms.word(token).is_some_and(|word| keys.repeats(word))
            {
                clear(mask, token);
            }
        }
    }

    fn ends(&self) -> &[u32] {
        &self.forms.vocabulary.ends
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

fn clear(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word &= !(1 << (token % 32));
    }
}

fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}
