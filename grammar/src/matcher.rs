//! Matching of answers with grammars.

use std::sync::Arc;

use llguidance::Matcher;

use crate::call_matcher::CallMatcher;
use crate::calls::CallSyntax;
use crate::choice_matcher::ChoiceMatcher;
use crate::definition::Grammar;
use crate::error::GrammarError;
use crate::grammar_set::{EncodedGrammar, GrammarSet};
use crate::json_matcher::JsonMatcher;
use crate::marker::Marker;
use crate::marker_scanner::MarkerScanner;
use crate::mask::{is_set, set};
use crate::parser::{Parser, consume_token, fill_mask, matcher_after};

/// State of an answer within a grammar.
#[derive(Clone)]
pub struct GrammarMatcher {
    grammars: Arc<GrammarSet>,
    state: MatcherState,
    /// Parser of the answer, which is counted as used while it is held.
    _parser: Option<Arc<Parser>>,
    /// Reason for which the answer cannot continue.
    failure: Option<String>,
}

#[derive(Clone)]
enum MatcherState {
    Parsed(Box<Matcher>),
    Json(Box<JsonMatcher>),
    /// Within text before the calls of the grammar with this index, or within the calls.
    Calls(Box<CallMatcher>, usize),
    /// Within one of the texts of the grammar with this index.
    Choice(ChoiceMatcher, usize),
    /// Before the marker of the grammar with this index.
    BeforeMarker(Box<MarkerScanner>, usize),
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher").finish_non_exhaustive()
    }
}

impl GrammarMatcher {
    /// Creates a walk at the beginning of a parser, or a failed one; `key_tokens` are the tokens
    /// that can complete a key, follow one or escape one of its characters.
    pub(crate) fn with_parser(
        grammars: &Arc<GrammarSet>,
        grammar_index: usize,
        parser: Result<Arc<Parser>, GrammarError>,
        key_tokens: &Arc<[u32]>,
    ) -> GrammarMatcher {
        let failure = parser.as_ref().err().map(ToString::to_string);
        let EncodedGrammar::Parsed(grammar) = &grammars.grammars[grammar_index] else {
            return GrammarMatcher::with_choices(grammars, grammar_index);
        };
        let state = match (grammar, &parser) {
            (_, Err(error)) => {
                MatcherState::Parsed(Box::new(Matcher::new(Err(error.clone().into()))))
            }
            (Grammar::Behind(behind), Ok(parser)) if calls_have_headers(&behind.grammar) => {
                let runs_out = behind.grammar.keys_are_finite();
                let calling =
                    CallMatcher::new(Arc::clone(parser), Arc::clone(key_tokens), runs_out);
                MatcherState::Calls(Box::new(calling.with_marker_alternative()), grammar_index)
            }
            (Grammar::Behind(_), Ok(parser)) => {
                let waiting = MarkerScanner::new(Arc::clone(parser), Arc::clone(key_tokens));
                MatcherState::BeforeMarker(Box::new(waiting), grammar_index)
            }
            (grammar, Ok(parser)) => initial_state(grammar, parser, &[], key_tokens, grammar_index),
        };
        GrammarMatcher { grammars: Arc::clone(grammars), state, _parser: parser.ok(), failure }
    }

    /// Creates a walk at the beginning of all texts of a grammar.
    pub(crate) fn with_choices(grammars: &Arc<GrammarSet>, grammar_index: usize) -> GrammarMatcher {
        let state = MatcherState::Choice(
            ChoiceMatcher::new(texts(grammars, grammar_index).len()),
            grammar_index,
        );
        GrammarMatcher { grammars: Arc::clone(grammars), state, _parser: None, failure: None }
    }

    /// Returns true if every token is allowed, so that no mask is needed.
    pub fn is_unconstrained(&self) -> bool {
        matches!(&self.state, MatcherState::Calls(calling, _) if calling.is_unconstrained())
    }

    /// Sets the bits of the allowed tokens, of which there is always at least one: at the end of
    /// the grammar, and if no token is allowed, those that end the answer.
    pub fn fill_mask(&mut self, mask: &mut [u32]) {
        mask.fill(0);
        let error = match &mut self.state {
            MatcherState::Parsed(matcher) => fill_mask(matcher, mask),
            MatcherState::Json(json) => json.fill_mask(&self.grammars.vocabulary, mask),
            MatcherState::Calls(calling, _) => calling.fill_mask(&self.grammars.vocabulary, mask),
            MatcherState::BeforeMarker(..) => {
                MarkerScanner::fill_mask(&self.grammars.vocabulary, mask);
                None
            }
            MatcherState::Choice(choosing, grammar_index) => {
                let texts = texts(&self.grammars, *grammar_index);
                choosing.allowed_tokens(texts).for_each(|token| set(mask, token));
                if choosing.is_complete(texts) {
                    self.grammars.vocabulary.ends.iter().for_each(|end| set(mask, *end));
                }
                None
            }
        };
        self.record_error(error);
        let ends = &self.grammars.vocabulary.ends;
        let is_over = mask.iter().all(|word| *word == 0);
        if is_over || ends.iter().any(|end| is_set(mask, *end)) {
            ends.iter().for_each(|end| set(mask, *end));
        }
    }

    /// Advances by a token. After a token that was not allowed, only the end is expected.
    pub fn accept_token(&mut self, token: u32) {
        if self.grammars.vocabulary.ends.contains(&token) {
            return;
        }
        let error = match &mut self.state {
            MatcherState::Parsed(matcher) => consume_token(matcher, token),
            MatcherState::Json(json) => json.accept_token(&self.grammars.vocabulary, token),
            MatcherState::Calls(calling, grammar_index) => {
                let Some(syntax) = syntax(&self.grammars, *grammar_index) else { return };
                let marker = marker(&self.grammars, *grammar_index);
                calling.accept_token(&self.grammars.vocabulary, syntax, marker, token)
            }
            MatcherState::BeforeMarker(waiting, grammar_index) => {
                let EncodedGrammar::Parsed(Grammar::Behind(behind)) =
                    &self.grammars.grammars[*grammar_index]
                else {
                    return;
                };
                let found = waiting.accept_token(&self.grammars.vocabulary, &behind.marker, token);
                let Some(prefix) = found else { return };
                let MarkerScanner { parser, key_tokens, .. } = &**waiting;
                let begins = prefix.is_empty() || matcher_after(parser, &prefix).is_some();
                self.state =
                    initial_state(&behind.grammar, parser, &prefix, key_tokens, *grammar_index);
                (!begins)
                    .then(|| GrammarError("the format does not allow this beginning".to_owned()))
            }
            MatcherState::Choice(choosing, grammar_index) => {
                let is_possible =
                    choosing.accept_token(texts(&self.grammars, *grammar_index), token);
                (!is_possible).then(|| GrammarError("no choice goes on like this".to_owned()))
            }
        };
        self.record_error(error);
    }

    /// Returns the reason for which the answer cannot continue; it then ends where it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns true if the text so far matches the grammar as a whole.
    pub fn is_complete(&mut self) -> bool {
        self.failure.is_none()
            && match &mut self.state {
                MatcherState::Parsed(matcher) => matcher.is_accepting().unwrap_or(false),
                MatcherState::Json(json) => json.is_complete(),
                MatcherState::Calls(calling, _) => calling.is_complete(),
                MatcherState::BeforeMarker(..) => false,
                MatcherState::Choice(choosing, grammar_index) => {
                    choosing.is_complete(texts(&self.grammars, *grammar_index))
                }
            }
    }

    /// Records an error; the first one is kept.
    fn record_error(&mut self, error: Option<GrammarError>) {
        if self.failure.is_none() {
            self.failure = error.map(|error| error.0);
        }
    }
}

/// Returns the state within a grammar after the bytes `prefix`; `grammar_index` is its index.
fn initial_state(
    grammar: &Grammar,
    parser: &Arc<Parser>,
    prefix: &[u8],
    key_tokens: &Arc<[u32]>,
    grammar_index: usize,
) -> MatcherState {
    let (marked, runs_out) = (Arc::clone(key_tokens), grammar.keys_are_finite());
    let matcher =
        matcher_after(parser, prefix).unwrap_or_else(|| Matcher::new(Ok(parser.initial_state())));
    match grammar {
        Grammar::Calls(calls) if !calls.is_required => MatcherState::Calls(
            Box::new(CallMatcher::new(Arc::clone(parser), marked, runs_out)),
            grammar_index,
        ),
        Grammar::Calls(calls) if calls.syntax.parameters.is_some() => {
            MatcherState::Parsed(Box::new(matcher))
        }
        Grammar::JsonSchema(..) | Grammar::Arguments(_) | Grammar::Calls(_) => {
            let mut json = JsonMatcher::new(matcher, marked, runs_out);
            json.advance_bytes(prefix);
            MatcherState::Json(Box::new(json))
        }
        Grammar::CallsOr(either) => {
            let json = JsonMatcher::new(matcher, marked, runs_out);
            let is_tagged = either.calls.syntax.parameters.is_some();
            let mut json = if is_tagged { json.without_keys_of_tags() } else { json };
            json.advance_bytes(prefix);
            MatcherState::Json(Box::new(json))
        }
        Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Behind(_) => {
            MatcherState::Parsed(Box::new(matcher))
        }
    }
}

/// Returns the syntax of a grammar's calls.
fn syntax(grammars: &GrammarSet, grammar_index: usize) -> Option<&CallSyntax> {
    match &grammars.grammars[grammar_index] {
        EncodedGrammar::Parsed(grammar) => grammar.calls().map(|calls| &calls.syntax),
        EncodedGrammar::Choice(_) => None,
    }
}

/// Returns the marker before a grammar.
fn marker(grammars: &GrammarSet, grammar_index: usize) -> Option<&Marker> {
    match &grammars.grammars[grammar_index] {
        EncodedGrammar::Parsed(Grammar::Behind(behind)) => Some(&behind.marker),
        _ => None,
    }
}

/// Returns true if a grammar allows calls with headers, which do not need the marker before them.
fn calls_have_headers(grammar: &Grammar) -> bool {
    matches!(grammar, Grammar::CallsOr(either) if either.calls.syntax.headers.is_some())
}

/// Returns the texts of a choice; none if the grammar needs a parser.
fn texts(grammars: &GrammarSet, grammar_index: usize) -> &[Vec<u32>] {
    match &grammars.grammars[grammar_index] {
        EncodedGrammar::Choice(texts) => texts,
        EncodedGrammar::Parsed(_) => &[],
    }
}
