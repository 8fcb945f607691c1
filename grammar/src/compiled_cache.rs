//! Grammars compiled for a sampler.

use std::sync::{Arc, Weak};

use llguidance::ParserFactory;

use crate::cache::{BoundedCache, CacheLimits, CacheValue};
use crate::definition::{Grammar, parser_factory};
use crate::error::GrammarError;
use crate::grammar_set::{EncodedGrammar, GrammarSet};
use crate::matcher::GrammarMatcher;
use crate::parser::Parser;
use crate::vocabulary::Vocabulary;

/// Maximum number of cached parsers; their size is bounded by the memory for grammars.
const MAX_CACHED_PARSERS: usize = 256;

/// Stack size of a thread that compiles, in bytes: parsing recurses, within the bounds on grammars.
const STACK_BYTES: usize = 2 << 20;
/// Grammars over a vocabulary. A grammar that needs a parser is compiled when the first answer that
/// follows it begins, which takes about a millisecond for a schema of a few fields and 40 ms for
/// one of 200.
pub struct CompiledGrammarCache {
    grammars: Arc<GrammarSet>,
    /// Tokens that can complete a key, follow one or escape one of its characters.
    key_tokens: Arc<[u32]>,
    /// `None` if no grammar needs a parser.
    factory: Option<ParserFactory>,
    /// Parsers by the grammar's index.
    parsers: BoundedCache<usize, Arc<Parser>>,
    /// Parsers used by answers that may still be running.
    parsers_in_use: Vec<Weak<Parser>>,
}

impl std::fmt::Debug for CompiledGrammarCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammarCache")
            .field("forms", &self.grammars.grammars.len())
            .finish_non_exhaustive()
    }
}

/// Returns the tokens that can complete a key, follow one or escape one of its characters.
pub(crate) fn key_tokens(vocabulary: &Vocabulary) -> Arc<[u32]> {
    let words = vocabulary.words.iter().zip(0..);
    let is_marked = |word: &[u8]| word.iter().any(|byte| matches!(byte, b'"' | b',' | b'\\'));
    words.filter_map(|(word, token)| is_marked(word).then_some(token)).collect()
}

impl CompiledGrammarCache {
    /// Creates the grammars without compiling any.
    ///
    /// # Errors
    /// Returns an error if no parser can be made for the vocabulary.
    pub fn new(grammars: Arc<GrammarSet>) -> Result<CompiledGrammarCache, GrammarError> {
        let is_parsed =
            grammars.grammars.iter().any(|form| matches!(form, EncodedGrammar::Parsed(_)));
        let factory =
            is_parsed.then(|| parser_factory(&grammars.vocabulary.to_env())).transpose()?;
        let key_tokens = key_tokens(&grammars.vocabulary);
        let bounds =
            CacheLimits { count: MAX_CACHED_PARSERS, size_bytes: grammars.parsers_bytes() };
        Ok(CompiledGrammarCache {
            grammars,
            key_tokens,
            factory,
            parsers: BoundedCache::new(bounds),
            parsers_in_use: Vec::new(),
        })
    }

    /// Compiles the grammars of answers that are about to begin, on up to `threads` threads, and
    /// caches them for [`CompiledGrammarCache::start_matcher`].
    pub fn prepare(&mut self, grammars: impl IntoIterator<Item = usize>, threads: usize) {
        let CompiledGrammarCache { grammars: forms, factory: Some(factory), parsers, .. } = self
        else {
            return;
        };
        let parsed = |number: usize| match &forms.grammars[number] {
            EncodedGrammar::Parsed(grammar) => Some((number, grammar)),
            EncodedGrammar::Choice(_) => None,
        };
        let mut missing: Vec<(usize, &Grammar)> = grammars.into_iter().filter_map(parsed).collect();
        missing.sort_unstable_by_key(|(number, _)| *number);
        missing.dedup_by_key(|(number, _)| *number);
        missing.retain(|(number, _)| parsers.peek(number).is_none());
        // A single grammar is compiled by `begin`.
        if missing.len() < 2 || threads < 2 {
            return;
        }
        let factory = &*factory;
        let make = |part: &[(usize, &Grammar)]| -> Vec<(usize, Result<Parser, GrammarError>)> {
            part.iter().map(|(number, grammar)| (*number, Parser::new(grammar, factory))).collect()
        };
        let parts = missing.chunks(missing.len().div_ceil(threads));
        let made = std::thread::scope(|scope| {
            let spawned: Vec<_> = parts
                .filter_map(|part| {
                    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                    thread.spawn_scoped(scope, move || make(part)).ok()
                })
                .collect();
            spawned
                .into_iter()
                .filter_map(|thread| thread.join().ok())
                .flatten()
                .collect::<Vec<_>>()
        });
        for (number, parser) in made {
            // `begin` reports the error of a grammar that cannot be compiled.
            let _ = parsers.get_or_insert_with(&number, || parser.map(Arc::new));
        }
    }

    /// Returns a walk at the beginning of a grammar. The walk of a grammar that cannot be compiled
    /// has failed.
    ///
    /// # Panics
    /// Panics if there is no such grammar.
    pub fn start_matcher(&mut self, grammar: usize) -> GrammarMatcher {
        self.reserve_parsers_in_use();
        let CompiledGrammarCache { grammars, key_tokens, factory, parsers, parsers_in_use } = self;
        let (asked, factory) = match (&grammars.grammars[grammar], factory) {
            (EncodedGrammar::Parsed(asked), Some(factory)) => (asked, &*factory),
            _ => return GrammarMatcher::with_choices(grammars, grammar),
        };
        let parser = parsers
            .get_or_insert_with(&grammar, || Parser::new(asked, factory).map(Arc::new))
            .cloned();
        if let Ok(parser) = &parser {
            let parser = Arc::downgrade(parser);
            if !parsers_in_use.iter().any(|known| known.ptr_eq(&parser)) {
                parsers_in_use.push(parser);
            }
        }
        GrammarMatcher::with_parser(grammars, grammar, parser, key_tokens)
    }

    /// Reduces the capacity of the cache by the size of the parsers of running answers that are no
    /// longer cached.
    fn reserve_parsers_in_use(&mut self) {
        let CompiledGrammarCache { grammars, parsers, parsers_in_use, .. } = self;
        parsers_in_use.retain(|parser| parser.strong_count() > 0);
        let alone = parsers_in_use
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|parser| !parsers.contains_value(parser));
        let lent_bytes: usize = alone.map(|parser| parser.size_bytes()).sum();
        parsers.set_max_bytes(grammars.parsers_bytes().saturating_sub(lent_bytes));
    }

    /// Returns the number of words of a mask: a bit for each token, the lowest first.
    pub fn mask_words(&self) -> usize {
        self.grammars.vocabulary.mask_words()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Running answers keep their parsers alive: together with the cached ones they stay within the
    /// bound on memory.
    #[test]
    fn parsers_of_running_answers_take_room_from_others() {
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        words.push(Vec::new());
        let vocabulary = Vocabulary { words, ends: vec![256] };
        let regex = |index| Grammar::Regex(format!("[a-f]{{1,9}}{index}"));
        let memory_bytes = GrammarSet::share_bytes(0, 257);
        let grammars = GrammarSet::new(vocabulary, (0..200).map(regex).collect(), |_| None);
        let mut compiled =
            CompiledGrammarCache::new(Arc::new(grammars.with_memory_bytes(memory_bytes))).unwrap();
        drop(compiled.start_matcher(0));
        let one = compiled.parsers.size_bytes();
        let room = 40 * one;
        compiled.grammars = Arc::new(GrammarSet {
            memory_bytes: (257 * 1024 + room) as u64,
            ..(*compiled.grammars).clone()
        });
        let mut mask = vec![0; compiled.mask_words()];
        let mut walks = Vec::new();
        for form in 0..30 {
            let mut walk = compiled.start_matcher(form);
            walk.fill_mask(&mut mask);
            walk.accept_token(u32::from(b'a'));
            walks.push(walk);
        }
        for form in 30..200 {
            compiled.start_matcher(form);
        }
        let (kept, lent) = (compiled.parsers.size_bytes(), compiled.parsers_in_use.len());
        assert!(
            lent > 30 && compiled.parsers.len() < 20,
            "{lent} lent, {} kept",
            compiled.parsers.len()
        );
        assert!(kept + 30 * one <= room + 2 * one, "{kept} bytes kept, {one} each, of {room}");
        drop(walks);
        for form in 0..200 {
            compiled.start_matcher(form);
        }
        assert!(compiled.parsers.len() > 30, "{} kept", compiled.parsers.len());
    }
}
