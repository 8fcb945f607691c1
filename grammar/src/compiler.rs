//! Compiler for grammars that arrive while answers are sampled, which runs on another thread than
//! the sampler.

use std::sync::Arc;

use llguidance::ParserFactory;

use crate::cache::CacheValue;
use crate::compiled_cache::key_tokens;
use crate::definition::parser_factory;
use crate::error::GrammarError;
use crate::grammar_set::{EncodedGrammar, GrammarSet};
use crate::matcher::GrammarMatcher;
use crate::parser::Parser;

/// Compiles one grammar at a time.
pub struct GrammarCompiler {
    grammars: GrammarSet,
    key_tokens: Arc<[u32]>,
    factory: ParserFactory,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// A compiled grammar, from which answers begin.
#[derive(Clone)]
pub struct CompiledGrammar {
    /// Set of grammars that contains this one alone.
    grammars: Arc<GrammarSet>,
    key_tokens: Arc<[u32]>,
    /// `None` if the grammar needs no parser.
    parser: Option<Arc<Parser>>,
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar")
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Creates a compiler for grammars over the vocabulary of `grammars`.
    ///
    /// # Errors
    /// Returns an error if no parser can be made for the vocabulary.
    pub fn new(grammars: &GrammarSet) -> Result<GrammarCompiler, GrammarError> {
        let grammars = GrammarSet { grammars: Vec::new(), ..grammars.clone() };
        let factory = parser_factory(&grammars.vocabulary.to_env())?;
        let marked = key_tokens(&grammars.vocabulary);
        Ok(GrammarCompiler { grammars, key_tokens: marked, factory })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// Returns an error if the grammar is invalid or exceeds its bounds.
    pub fn compile(&self, grammar: EncodedGrammar) -> Result<CompiledGrammar, GrammarError> {
        let parser = match &grammar {
            EncodedGrammar::Parsed(grammar) => Some(Arc::new(Parser::new(grammar, &self.factory)?)),
            EncodedGrammar::Choice(_) => None,
        };
        let grammars = Arc::new(GrammarSet { grammars: vec![grammar], ..self.grammars.clone() });
        Ok(CompiledGrammar { grammars, key_tokens: Arc::clone(&self.key_tokens), parser })
    }
}

impl CompiledGrammar {
    /// Returns a walk at the beginning of the grammar.
    pub fn start_matcher(&self) -> GrammarMatcher {
        match &self.parser {
            Some(parser) => GrammarMatcher::with_parser(
                &self.grammars,
                0,
                Ok(Arc::clone(parser)),
                &self.key_tokens,
            ),
            None => GrammarMatcher::with_choices(&self.grammars, 0),
        }
    }

    /// Returns the size of its parser, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.parser.as_ref().map_or(0, |parser| parser.size_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Grammar;
    use crate::vocabulary::Vocabulary;

    fn spoken(walk: &mut GrammarMatcher, text: &str) -> Vec<bool> {
        let mut mask = vec![0; 9];
        let allowed = text.bytes().map(|byte| {
            walk.fill_mask(&mut mask);
            walk.accept_token(u32::from(byte));
            mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1
        });
        allowed.collect()
    }

    #[test]
    fn forms_that_come_later_let_the_same_follow() {
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        words.push(Vec::new());
        let vocabulary = Vocabulary { words, ends: vec![256] };
        let encode = |text: &str| Some(text.bytes().map(u32::from).collect());
        let none = GrammarSet::new(vocabulary, Vec::new(), encode);
        let compiler = GrammarCompiler::new(&none).expect("a vocabulary");
        let begin = |grammar| {
            compiler.compile(none.encode(grammar, encode)).map(|form| form.start_matcher())
        };
        let mut json = begin(Grammar::json_schema(r#"{"type": "object"}"#)).expect("compiles");
        assert_eq!(spoken(&mut json, "{\"a\""), [true; 4]);
        assert_eq!(spoken(&mut json, "}"), [false]);
        let mut regex = begin(Grammar::Regex("[0-9]+x".to_owned())).expect("compiles");
        assert_eq!(spoken(&mut regex, "12xx"), [true, true, true, false]);
        let texts = ["yes", "no"].map(str::to_owned).to_vec();
        let mut choice = begin(Grammar::Choice(texts)).expect("compiles");
        assert_eq!(spoken(&mut choice, "nes"), [true, false, false]);
        assert!(begin(Grammar::Regex("(".to_owned())).is_err());
    }
}
