//! Constrained decoding: determines the tokens that may follow, such that the text so far can be
//! completed to one that matches a grammar.
//!
//! [`Grammar`] is the grammar of a request, [`Grammars`] the set with which a sampler is
//! set up, and [`Walk`] the state of one answer. Parsing is done by `llguidance`.

mod bounds;
mod cache;
mod calling;
mod calls;
mod checker;
mod choosing;
mod closed;
mod compiled;
mod compiler;
mod control;
mod disjoint;
mod effort;
mod endless;
mod error;
mod form;
mod grammars;
mod graph;
mod integers;
mod json;
mod keys;
mod lower;
mod marker;
mod mask;
mod names;
mod parameters;
mod parser;
mod patterns;
mod regex;
mod room;
mod rules;
mod schema;
mod spell;
mod subschemas;
mod validator;
mod vocabulary;
mod waiting;
mod walk;
mod watch;
mod whitespace;

pub use calls::{CallSyntax, Calls, Function, Headers, Part, Trigger, Word};
pub use checker::Checker;
pub use closed::closed;
pub use compiled::Compiled;
pub use compiler::{Compiler, Ready};
pub use error::GrammarError;
pub use form::{Behind, CallsOr, Grammar};
pub use grammars::{Form, Grammars};
pub use marker::Marker;
pub use names::is_function_name;
pub use parameters::ParameterTags;
pub use vocabulary::Vocabulary;
pub use walk::Walk;
pub use whitespace::Whitespace;
