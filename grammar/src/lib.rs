//! Answers of a given form: which tokens can follow, so that what is said so far can become a text
//! of the form.
//!
//! [`Grammar`] is what a request asks for, [`Grammars`] what a sampler is set up with, and a
//! [`Walk`] follows one answer. The parsing is `llguidance`'s.

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
