//! Constrained decoding: determines the tokens that may follow, such that the text so far can be
//! completed to one that matches a grammar.
//!
//! [`Grammar`] is the grammar of a request, [`GrammarSet`] the set with which a sampler is
//! set up, and [`GrammarMatcher`] the state of one answer. Parsing is done by `llguidance`.

mod bounds;
mod cache;
mod call_matcher;
mod calls;
mod checker;
mod choice_encoder;
mod choice_matcher;
mod closed;
mod compiled_cache;
mod compiler;
mod control;
mod definition;
mod disjoint;
mod effort;
mod endless;
mod error;
mod grammar_set;
mod graph;
mod integers;
mod json_matcher;
mod key_tracker;
mod lower;
mod marker;
mod marker_scanner;
mod mask;
mod matcher;
mod min_properties;
mod names;
mod parameters;
mod parser;
mod patterns;
mod regex;
mod rules;
mod schema;
mod subschemas;
mod syntax;
mod trigger_scanner;
mod validator;
mod vocabulary;
mod whitespace;

pub use calls::{CallSyntax, Calls, Function, Headers, Trigger};
pub use checker::Checker;
pub use closed::close_objects;
pub use compiled_cache::CompiledGrammarCache;
pub use compiler::{CompiledGrammar, GrammarCompiler};
pub use definition::{Behind, CallsOr, Grammar};
pub use error::GrammarError;
pub use grammar_set::{EncodedGrammar, GrammarSet};
pub use marker::Marker;
pub use matcher::GrammarMatcher;
pub use names::is_function_name;
pub use parameters::ParameterTags;
pub use syntax::{MAX_DIGITS, SyntaxElement, SyntaxPart};
pub use vocabulary::Vocabulary;
pub use whitespace::Whitespace;
