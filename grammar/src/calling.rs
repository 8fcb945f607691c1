//! Matcher of an answer with optional calls: text is unconstrained until a call begins.

use std::sync::Arc;

use llguidance::Matcher;

use crate::calls::{CallSyntax, Trigger, Word};
use crate::error::GrammarError;
use crate::json::Json;
use crate::marker::Marker;
use crate::mask::clear;
use crate::parser::{Parser, begun_with};
use crate::vocabulary::Vocabulary;
use crate::waiting::Waiting;
use crate::watch::Watch;

/// State of an answer that may begin with text and continue with calls.
#[derive(Clone)]
pub(crate) struct Calling {
    parser: Arc<Parser>,
    marked: Arc<[u32]>,
    runs_out: bool,
    state: State,
    /// State of the search for the marker of the alternative grammar. If set, the answer must
    /// contain calls or the marker.
    waiting: Option<Box<Waiting>>,
}

#[derive(Clone)]
enum State {
    /// Within text; with `is_elsewhere`, outside of the headers, where no trigger counts.
    Text {
        watch: Watch,
        is_elsewhere: bool,
    },
    Calls(Box<Json>),
}

impl Calling {
    pub(crate) fn new(parser: Arc<Parser>, marked: Arc<[u32]>, runs_out: bool) -> Calling {
        let state = State::Text { watch: Watch::default(), is_elsewhere: false };
        Calling { parser, marked, runs_out, state, waiting: None }
    }

    /// Requires the text to continue with calls, or with a marker and the grammar after it.
    #[must_use]
    pub(crate) fn or_marker(self) -> Calling {
        let waiting = Waiting::new(Arc::clone(&self.parser), Arc::clone(&self.marked));
        Calling { waiting: Some(Box::new(waiting)), ..self }
    }

    /// Returns true if every token is allowed.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.state, State::Text { .. }) && self.waiting.is_none()
    }

    /// Sets the bits of the allowed tokens; returns the error if the parser fails.
    pub(crate) fn allow(
        &mut self,
        vocabulary: &Vocabulary,
        mask: &mut [u32],
    ) -> Option<GrammarError> {
        match &mut self.state {
            State::Calls(json) => json.allow(vocabulary, mask),
            State::Text { .. } if self.waiting.is_some() => {
                Waiting::allow(vocabulary, mask);
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
    /// [`Calling::or_marker`] begins after the `marker`.
    pub(crate) fn take(
        &mut self,
        vocabulary: &Vocabulary,
        syntax: &CallSyntax,
        marker: Option<&Marker>,
        token: u32,
    ) -> Option<GrammarError> {
        if let (State::Text { .. }, Some(waiting), Some(marker)) =
            (&self.state, &mut self.waiting, marker)
            && let Some(said) = waiting.take(vocabulary, marker, token)
        {
            let begun = begun_with(&self.parser, &said);
            let begins = begun.is_some();
            let matcher = begun.unwrap_or_else(|| Matcher::new(Ok(self.parser.begin())));
            let mut json = self.json(matcher, syntax);
            json.said(&said);
            self.state = State::Calls(Box::new(json));
            return (!begins)
                .then(|| GrammarError("the format does not allow this beginning".to_owned()));
        }
        let (watch, is_elsewhere) = match &mut self.state {
            State::Calls(json) => return json.take(vocabulary, token),
            State::Text { watch, is_elsewhere } => (watch, is_elsewhere),
        };
        let triggers = &syntax.triggers;
        if let Some(headers) = &syntax.headers {
            let (opens, closes) = (headers.opens.contains(&token), headers.closes.contains(&token));
            if opens || closes {
                *is_elsewhere = closes;
                *watch = Watch::default();
            }
            if *is_elsewhere {
                return None;
            }
        }
        let is_it = |trigger: &Trigger| trigger.word == Word::Token(token);
        if triggers.iter().any(|trigger| is_it(trigger) && watch.is_at(trigger)) {
            let matcher = Matcher::new(Ok(self.parser.begin()));
            let mut json = self.json(matcher, syntax);
            let error = json.take(vocabulary, token);
            self.state = State::Calls(Box::new(json));
            return error;
        }
        let word = vocabulary.word(token).unwrap_or_default();
        let begun = watch.take(triggers, word);
        let matcher = begun.as_ref().and_then(|bytes| begun_with(&self.parser, bytes));
        if let (Some(bytes), Some(matcher)) = (begun, matcher) {
            let mut json = self.json(matcher, syntax);
            json.said(&bytes);
            self.state = State::Calls(Box::new(json));
        }
        None
    }

    /// Returns true if the answer may end here.
    pub(crate) fn is_complete(&mut self) -> bool {
        match &mut self.state {
            State::Calls(json) => json.is_complete(),
            State::Text { .. } => self.waiting.is_none(),
        }
    }

    fn json(&self, matcher: Matcher, syntax: &CallSyntax) -> Json {
        let json = Json::new(matcher, Arc::clone(&self.marked), self.runs_out);
        // Arguments that are written one by one are not JSON as a whole.
        if syntax.parameters.is_none() { json } else { json.without_keys() }
    }
}
