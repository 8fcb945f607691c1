//! Matcher of an answer with optional calls: text is unconstrained until a call begins.

use std::sync::Arc;

use llguidance::Matcher;

use crate::calls::{CallSyntax, Trigger};
use crate::error::GrammarError;
use crate::json_matcher::JsonMatcher;
use crate::marker::Marker;
use crate::marker_scanner::MarkerScanner;
use crate::mask::clear;
use crate::parser::{Parser, matcher_after};
use crate::syntax::SyntaxElement;
use crate::trigger_scanner::TriggerScanner;
use crate::vocabulary::Vocabulary;

/// State of an answer that may begin with text and continue with calls.
#[derive(Clone)]
pub(crate) struct CallMatcher {
    parser: Arc<Parser>,
    key_tokens: Arc<[u32]>,
    keys_are_finite: bool,
    state: State,
    /// State of the search for the marker of the alternative grammar. If set, the answer must
    /// contain calls or the marker.
    marker_scanner: Option<Box<MarkerScanner>>,
}

#[derive(Clone)]
enum State {
    /// Within text; with `is_elsewhere`, outside of the headers, where no trigger counts.
    Text {
        watch: TriggerScanner,
        is_elsewhere: bool,
    },
    Calls(Box<JsonMatcher>),
}

impl CallMatcher {
    pub(crate) fn new(
        parser: Arc<Parser>,
        key_tokens: Arc<[u32]>,
        keys_are_finite: bool,
    ) -> CallMatcher {
        let state = State::Text { watch: TriggerScanner::default(), is_elsewhere: false };
        CallMatcher { parser, key_tokens, keys_are_finite, state, marker_scanner: None }
    }

    /// Requires the text to continue with calls, or with a marker and the grammar after it.
    #[must_use]
    pub(crate) fn with_marker_alternative(self) -> CallMatcher {
        let marker_scanner =
            MarkerScanner::new(Arc::clone(&self.parser), Arc::clone(&self.key_tokens));
        CallMatcher { marker_scanner: Some(Box::new(marker_scanner)), ..self }
    }

    /// Returns true if every token is allowed.
    pub(crate) fn is_unconstrained(&self) -> bool {
        matches!(self.state, State::Text { .. }) && self.marker_scanner.is_none()
    }

    /// Sets the bits of the allowed tokens; returns the error if the parser fails.
    pub(crate) fn fill_mask(
        &mut self,
        vocabulary: &Vocabulary,
        mask: &mut [u32],
    ) -> Option<GrammarError> {
        match &mut self.state {
            State::Calls(json) => json.fill_mask(vocabulary, mask),
            State::Text { .. } if self.marker_scanner.is_some() => {
                MarkerScanner::fill_mask(vocabulary, mask);
                None
            }
            State::Text { .. } => {
                mask.fill(u32::MAX);
                let beyond = vocabulary.words.len()..mask.len() * 32;
                beyond.for_each(|token| clear(mask, token as u32));
                None
            }
        }
    }

    /// Advances by a token; returns the error if it is not allowed. Calls begin with a trigger,
    /// unless the rest of its last token cannot continue a call; the grammar of
    /// [`CallMatcher::with_marker_alternative`] begins after the `marker`.
    pub(crate) fn accept_token(
        &mut self,
        vocabulary: &Vocabulary,
        syntax: &CallSyntax,
        marker: Option<&Marker>,
        token: u32,
    ) -> Option<GrammarError> {
        if let (State::Text { .. }, Some(waiting), Some(marker)) =
            (&self.state, &mut self.marker_scanner, marker)
            && let Some(said) = waiting.accept_token(vocabulary, marker, token)
        {
            let begun = matcher_after(&self.parser, &said);
            let begins = begun.is_some();
            let matcher = begun.unwrap_or_else(|| Matcher::new(Ok(self.parser.initial_state())));
            let mut json = self.json(matcher, syntax);
            json.advance_bytes(&said);
            self.state = State::Calls(Box::new(json));
            return (!begins)
                .then(|| GrammarError("the format does not allow this beginning".to_owned()));
        }
        let (watch, is_elsewhere) = match &mut self.state {
            State::Calls(json) => return json.accept_token(vocabulary, token),
            State::Text { watch, is_elsewhere } => (watch, is_elsewhere),
        };
        let triggers = &syntax.triggers;
        if let Some(headers) = &syntax.headers {
            let (opens, closes) = (headers.opens.contains(&token), headers.closes.contains(&token));
            if opens || closes {
                *is_elsewhere = closes;
                *watch = TriggerScanner::default();
            }
            if *is_elsewhere {
                return None;
            }
        }
        let is_it = |trigger: &Trigger| trigger.word == SyntaxElement::Token(token);
        if triggers.iter().any(|trigger| is_it(trigger) && watch.can_start(trigger)) {
            let matcher = Matcher::new(Ok(self.parser.initial_state()));
            let mut json = self.json(matcher, syntax);
            let error = json.accept_token(vocabulary, token);
            self.state = State::Calls(Box::new(json));
            return error;
        }
        let word = vocabulary.word(token).unwrap_or_default();
        let begun = watch.advance(triggers, word);
        let matcher = begun.as_ref().and_then(|bytes| matcher_after(&self.parser, bytes));
        if let (Some(bytes), Some(matcher)) = (begun, matcher) {
            let mut json = self.json(matcher, syntax);
            json.advance_bytes(&bytes);
            self.state = State::Calls(Box::new(json));
        }
        None
    }

    /// Returns true if the answer may end here.
    pub(crate) fn is_complete(&mut self) -> bool {
        match &mut self.state {
            State::Calls(json) => json.is_complete(),
            State::Text { .. } => self.marker_scanner.is_none(),
        }
    }

    fn json(&self, matcher: Matcher, syntax: &CallSyntax) -> JsonMatcher {
        let json = JsonMatcher::new(matcher, Arc::clone(&self.key_tokens), self.keys_are_finite);
        // Arguments that are written one by one are not JSON as a whole.
        if syntax.parameters.is_none() { json } else { json.without_keys() }
    }
}
