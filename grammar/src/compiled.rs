//! Grammars as a sampler uses them.

use std::sync::Arc;

use llguidance::ParserFactory;

use crate::asked::{Grammar, factory};
use crate::cache::{Bounds, Cache};
use crate::error::GrammarError;
use crate::grammars::{Form, Grammars};
use crate::json::Json;
use crate::parser::Parser;
use crate::walk::Walk;

/// Parsers kept for answers to come. Those of answers on their way are beside them, one a slot at
/// most.
const KEPT: Bounds = Bounds { count: 256, size_bytes: 64 << 20 };

/// Of a thread that compiles: what reads a form recurses, within the bounds on forms.
const STACK_BYTES: usize = 2 << 20;
/// Of a token in a parser's tables of the vocabulary: measured 590 with 50,000 tokens of 2 to 14
/// bytes.
const TOKEN_BYTES: usize = 1024;

/// Grammars over a vocabulary. Those that need a parser get one when an answer begins that follows
/// them, which takes about a millisecond for a schema of a few fields and 40 for one of 200.
pub struct Compiled {
    forms: Arc<Grammars>,
    /// Tokens that can complete a key or be followed by one.
    marked: Arc<[u32]>,
    /// `None` where no grammar needs a parser.
    factory: Option<ParserFactory>,
    /// By the grammar's number.
    kept: Cache<usize, Parser>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("forms", &self.forms.forms.len()).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Nothing is compiled yet.
    ///
    /// # Errors
    /// A vocabulary that no parser can be made for.
    pub fn new(forms: Arc<Grammars>) -> Result<Compiled, GrammarError> {
        let is_parsed = forms.forms.iter().any(|form| matches!(form, Form::Parsed(_)));
        let factory = is_parsed.then(|| factory(&forms.vocabulary.to_env())).transpose()?;
        let words = forms.vocabulary.words.iter().zip(0..);
        let is_marked = |word: &[u8]| word.iter().any(|byte| matches!(byte, b'"' | b','));
        let marked = words.filter_map(|(word, token)| is_marked(word).then_some(token));
        let marked = marked.collect();
        Ok(Compiled { forms, marked, factory, kept: Cache::new(KEPT) })
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
            let _ = kept.get(&number, || parser);
        }
    }

    /// A walk from the beginning of a grammar; one that cannot be compiled has failed.
    ///
    /// # Panics
    /// There is no such grammar.
    pub fn begin(&mut self, grammar: usize) -> Walk {
        let Compiled { forms, marked, factory, kept } = self;
        let (asked, factory) = match (&forms.forms[grammar], factory) {
            (Form::Parsed(asked), Some(factory)) => (asked, &*factory),
            _ => return Walk::choosing(forms, grammar),
        };
        let parser = kept.get(&grammar, || Parser::new(asked, factory)).map(Parser::begin);
        let is_json = matches!(asked, Grammar::JsonSchema(..));
        let json = |matcher| Json::new(matcher, Arc::clone(marked), asked.keys_run_out());
        Walk::parsed(forms, parser, is_json.then_some(json))
    }

    /// Bytes that it has at most, beside the grammars' texts and what the parsers of running
    /// answers hold by themselves.
    pub fn most_bytes(vocab_size: usize) -> u64 {
        (KEPT.size_bytes + vocab_size * TOKEN_BYTES) as u64
    }

    /// Words of a mask: a bit for each token, the lowest first.
    pub fn mask_words(&self) -> usize {
        self.forms.vocabulary.mask_words()
    }
}
