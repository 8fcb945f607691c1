//! Grammars as a sampler uses them.

use std::sync::{Arc, Weak};

use llguidance::ParserFactory;

use crate::cache::{Bounds, Cache, Measured};
use crate::error::GrammarError;
use crate::form::{Grammar, factory};
use crate::grammars::{Form, Grammars};
use crate::parser::Parser;
use crate::vocabulary::Vocabulary;
use crate::walk::Walk;

/// Parsers kept for answers to come, at most; their size is bounded by the memory for forms.
const KEPT: usize = 256;

/// Of a thread that compiles: what reads a form recurses, within the bounds on forms.
const STACK_BYTES: usize = 2 << 20;
/// Grammars over a vocabulary. Those that need a parser get one when an answer begins that follows
/// them, which takes about a millisecond for a schema of a few fields and 40 for one of 200.
pub struct Compiled {
    forms: Arc<Grammars>,
    /// Tokens that can complete a key, be followed by one or escape one of its characters.
    marked: Arc<[u32]>,
    /// `None` where no grammar needs a parser.
    factory: Option<ParserFactory>,
    /// By the grammar's number.
    kept: Cache<usize, Arc<Parser>>,
    /// Parsers that answers were begun with.
    lent: Vec<Weak<Parser>>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("forms", &self.forms.forms.len()).finish_non_exhaustive()
    }
}

/// Tokens that can complete a key, be followed by one or escape one of its characters.
pub(crate) fn marked(vocabulary: &Vocabulary) -> Arc<[u32]> {
    let words = vocabulary.words.iter().zip(0..);
    let is_marked = |word: &[u8]| word.iter().any(|byte| matches!(byte, b'"' | b',' | b'\\'));
    words.filter_map(|(word, token)| is_marked(word).then_some(token)).collect()
}

impl Compiled {
    /// Nothing is compiled yet.
    ///
    /// # Errors
    /// A vocabulary that no parser can be made for.
    pub fn new(forms: Arc<Grammars>) -> Result<Compiled, GrammarError> {
        let is_parsed = forms.forms.iter().any(|form| matches!(form, Form::Parsed(_)));
        let factory = is_parsed.then(|| factory(&forms.vocabulary.to_env())).transpose()?;
        let marked = marked(&forms.vocabulary);
        let bounds = Bounds { count: KEPT, size_bytes: forms.parsers_bytes() };
        Ok(Compiled { forms, marked, factory, kept: Cache::new(bounds), lent: Vec::new() })
    }

    /// Compiles what answers are about to begin with, on so many threads; [`Compiled::begin`] finds
    /// it.
    pub fn prepare(&mut self, grammars: impl IntoIterator<Item = usize>, threads: usize) {
        let Compiled { forms, factory: Some(factory), kept, .. } = self else { return };
        let parsed = |number: usize| match &forms.forms[number] {
            Form::Parsed(grammar) => Some((number, grammar)),
            Form::Spelled(_) => None,
        };
        let mut missing: Vec<(usize, &Grammar)> = grammars.into_iter().filter_map(parsed).collect();
        missing.sort_unstable_by_key(|(number, _)| *number);
        missing.dedup_by_key(|(number, _)| *number);
        missing.retain(|(number, _)| kept.peek(number).is_none());
        // A single one is compiled where it is asked for.
        if missing.len() < 2 || threads < 2 {
            return;
        }
        let factory = &*factory;
        let make = |part: &[(usize, &Grammar)]| -> Vec<(usize, Result<Parser, GrammarError>)> {
            part.iter().map(|(number, grammar)| (*number, Parser::new(grammar, factory))).collect()
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
        for (number, parser) in made {
            // What cannot be compiled says so where it is asked for.
            let _ = kept.get(&number, || parser.map(Arc::new));
        }
    }

    /// A walk from the beginning of a grammar; one that cannot be compiled has failed.
    ///
    /// # Panics
    /// There is no such grammar.
    pub fn begin(&mut self, grammar: usize) -> Walk {
        self.count_lent();
        let Compiled { forms, marked, factory, kept, lent } = self;
        let (asked, factory) = match (&forms.forms[grammar], factory) {
            (Form::Parsed(asked), Some(factory)) => (asked, &*factory),
            _ => return Walk::choosing(forms, grammar),
        };
        let parser = kept.get(&grammar, || Parser::new(asked, factory).map(Arc::new)).cloned();
        if let Ok(parser) = &parser {
            let parser = Arc::downgrade(parser);
            if !lent.iter().any(|known| known.ptr_eq(&parser)) {
                lent.push(parser);
            }
        }
        Walk::parsed(forms, grammar, parser, marked)
    }

    /// Parsers of running answers that are no longer kept take room from those that are.
    fn count_lent(&mut self) {
        let Compiled { forms, kept, lent, .. } = self;
        lent.retain(|parser| parser.strong_count() > 0);
        let alone = lent.iter().filter_map(Weak::upgrade).filter(|parser| !kept.holds(parser));
        let lent_bytes: usize = alone.map(|parser| parser.size_bytes()).sum();
        kept.bound_size(forms.parsers_bytes().saturating_sub(lent_bytes));
    }

    /// Words of a mask: a bit for each token, the lowest first.
    pub fn mask_words(&self) -> usize {
        self.forms.vocabulary.mask_words()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers under way hold their parsers: with them beside what is kept, memory stays within
    /// its bound.
    #[test]
    fn parsers_of_running_answers_take_room_from_others() {
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        words.push(Vec::new());
        let vocabulary = Vocabulary { words, ends: vec![256] };
        let regex = |index| Grammar::Regex(format!("[a-f]{{1,9}}{index}"));
        let memory_bytes = Grammars::share_bytes(0, 257);
        let grammars = Grammars::new(vocabulary, (0..200).map(regex).collect(), |_| None);
        let mut compiled = Compiled::new(Arc::new(grammars.within(memory_bytes))).unwrap();
        drop(compiled.begin(0));
        let one = compiled.kept.size_bytes();
        let room = 40 * one;
        compiled.forms = Arc::new(Grammars {
            memory_bytes: (257 * 1024 + room) as u64,
            ..(*compiled.forms).clone()
        });
        let mut mask = vec![0; compiled.mask_words()];
        let mut walks = Vec::new();
        for form in 0..30 {
            let mut walk = compiled.begin(form);
            walk.allow(&mut mask);
            walk.take(u32::from(b'a'));
            walks.push(walk);
        }
        for form in 30..200 {
            compiled.begin(form);
        }
        let (kept, lent) = (compiled.kept.size_bytes(), compiled.lent.len());
        assert!(lent > 30 && compiled.kept.len() < 20, "{lent} lent, {} kept", compiled.kept.len());
        assert!(kept + 30 * one <= room + 2 * one, "{kept} bytes kept, {one} each, of {room}");
        drop(walks);
        for form in 0..200 {
            compiled.begin(form);
        }
        assert!(compiled.kept.len() > 30, "{} kept", compiled.kept.len());
    }
}
