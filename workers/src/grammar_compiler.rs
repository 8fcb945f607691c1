//! Compilation of grammars that arrive while a run serves.

use std::sync::Arc;

use grammar::{EncodedGrammar, GrammarCompiler, GrammarError, GrammarSet};
use protocol::grammar_source::ReadyGrammars;
use protocol::messages::FromWorker;

/// Compiles grammars for the sampler of this worker.
pub(crate) struct WorkerGrammarCompiler {
    grammars: Arc<GrammarSet>,
    ready: Arc<ReadyGrammars>,
    /// Tables of the vocabulary, built when the first grammar arrives.
    compiler: Option<Result<GrammarCompiler, GrammarError>>,
}

impl std::fmt::Debug for WorkerGrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerGrammarCompiler").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl WorkerGrammarCompiler {
    /// Returns a compiler for the vocabulary of `grammars`, which stores its results in `ready`,
    /// where the sampler finds them.
    pub(crate) fn new(
        grammars: Arc<GrammarSet>,
        ready: Arc<ReadyGrammars>,
    ) -> WorkerGrammarCompiler {
        WorkerGrammarCompiler { grammars, ready, compiler: None }
    }

    /// Compiles a grammar and returns a message with the result.
    pub(crate) fn compile(&mut self, number: u32, form: EncodedGrammar) -> FromWorker {
        let compiler = self.compiler.get_or_insert_with(|| GrammarCompiler::new(&self.grammars));
        let compiled = match compiler {
            Ok(compiler) => compiler.compile(form).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let failure = compiled.map(|form| self.ready.insert(number, form)).err();
        FromWorker::GrammarReady { number, failure }
    }

    /// Drops a grammar that no further answer will use.
    pub(crate) fn forget(&self, number: u32) {
        self.ready.remove(number);
    }
}
