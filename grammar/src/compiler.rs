//! Compiler for grammars that arrive while answers are sampled, which runs on another thread than
//! the sampler.

use std::sync::Arc;

use llguidance::ParserFactory;

use crate::cache::Measured;
use crate::compiled::marked;
use crate::error::GrammarError;
use crate::form::factory;
use crate::grammars::{Form, Grammars};
use crate::parser::Parser;
use crate::walk::Walk;

/// Compiles one grammar at a time.
pub struct Compiler {
    grammars: Grammars,
    marked: Arc<[u32]>,
    factory: ParserFactory,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

/// A compiled grammar, from which answers begin.
#[derive(Clone)]
pub struct Ready {
    /// Set of grammars that contains this one alone.
    forms: Arc<Grammars>,
    marked: Arc<[u32]>,
    /// `None` if the grammar needs no parser.
    parser: Option<Arc<Parser>>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").field("size_bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}

impl Compiler {
    /// Creates a compiler for grammars over the vocabulary of `grammars`.
    ///
    /// # Errors
    /// Returns an error if no parser can be made for the vocabulary.
    pub fn new(grammars: &Grammars) -> Result<Compiler, GrammarError> {
        let grammars = Grammars { forms: Vec::new(), ..grammars.clone() };
        let factory = factory(&grammars.vocabulary.to_env())?;
        let marked = marked(&grammars.vocabulary);
        Ok(Compiler { grammars, marked, factory })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// Returns an error if the grammar is invalid or exceeds its bounds.
    pub fn compile(&self, form: Form) -> Result<Ready, GrammarError> {
        let parser = match &form {
            Form::Parsed(grammar) => Some(Arc::new(Parser::new(grammar, &self.factory)?)),
            Form::Spelled(_) => None,
        };
        let forms = Arc::new(Grammars { forms: vec![form], ..self.grammars.clone() });
        Ok(Ready { forms, marked: Arc::clone(&self.marked), parser })
    }
}

impl Ready {
    /// Returns a walk at the beginning of the grammar.
    pub fn begin(&self) -> Walk {
        match &self.parser {
            Some(parser) => Walk::parsed(&self.forms, 0, Ok(Arc::clone(parser)), &self.marked),
            None => Walk::choosing(&self.forms, 0),
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
    use crate::form::Grammar;
    use crate::vocabulary::Vocabulary;

    fn spoken(walk: &mut Walk, text: &str) -> Vec<bool> {
        let mut mask = vec![0; 9];
        let allowed = text.bytes().map(|byte| {
            walk.allow(&mut mask);
            walk.take(u32::from(byte));
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
        let none = Grammars::new(vocabulary, Vec::new(), encode);
        let compiler = Compiler::new(&none).expect("a vocabulary");
        let begin = |grammar| compiler.compile(none.form(grammar, encode)).map(|form| form.begin());
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
