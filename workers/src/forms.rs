//! Compilation of grammars that arrive while a run serves.

use std::sync::Arc;

use grammar::{Compiler, Form, GrammarError, Grammars};

use crate::shared::forms::ReadyForms;
use crate::shared::protocol::FromWorker;

/// Compiles grammars for the sampler of this worker.
pub(crate) struct FormCompiler {
    grammars: Arc<Grammars>,
    ready: Arc<ReadyForms>,
    /// Tables of the vocabulary, built when the first grammar arrives.
    compiler: Option<Result<Compiler, GrammarError>>,
}

impl std::fmt::Debug for FormCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FormCompiler").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl FormCompiler {
    /// Returns a compiler for the vocabulary of `grammars`, which stores its results in `ready`,
    /// where the sampler finds them.
    pub(crate) fn new(grammars: Arc<Grammars>, ready: Arc<ReadyForms>) -> FormCompiler {
        FormCompiler { grammars, ready, compiler: None }
    }

    /// Compiles a grammar and returns a message with the result.
    pub(crate) fn compile(&mut self, number: u32, form: Form) -> FromWorker {
        let compiler = self.compiler.get_or_insert_with(|| Compiler::new(&self.grammars));
        let compiled = match compiler {
            Ok(compiler) => compiler.compile(form).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let failure = compiled.map(|form| self.ready.keep(number, form)).err();
        FromWorker::FormReady { number, failure }
    }

    /// Drops a grammar that no further answer will use.
    pub(crate) fn forget(&self, number: u32) {
        self.ready.forget(number);
    }
}
