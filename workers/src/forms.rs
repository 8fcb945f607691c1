//! Forms of answers that come while a run serves.

use std::sync::Arc;

use grammar::{Compiler, Form, GrammarError, Grammars};

use crate::shared::forms::ReadyForms;
use crate::shared::protocol::FromWorker;

/// Compiles forms for the sampler of this worker.
pub(crate) struct FormCompiler {
    grammars: Arc<Grammars>,
    ready: Arc<ReadyForms>,
    /// The tables of the vocabulary, made when the first form comes.
    compiler: Option<Result<Compiler, GrammarError>>,
}

impl std::fmt::Debug for FormCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FormCompiler").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl FormCompiler {
    /// In the vocabulary of `grammars`, to where the sampler finds them.
    pub(crate) fn new(grammars: Arc<Grammars>, ready: Arc<ReadyForms>) -> FormCompiler {
        FormCompiler { grammars, ready, compiler: None }
    }

    /// Makes a form ready, and says whether it could.
    pub(crate) fn compile(&mut self, number: u32, form: Form) -> FromWorker {
        let compiler = self.compiler.get_or_insert_with(|| Compiler::new(&self.grammars));
        let compiled = match compiler {
            Ok(compiler) => compiler.compile(form).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let failure = compiled.map(|form| self.ready.keep(number, form)).err();
        FromWorker::FormReady { number, failure }
    }

    /// No answer will begin with it any more.
    pub(crate) fn forget(&self, number: u32) {
        self.ready.forget(number);
    }
}
