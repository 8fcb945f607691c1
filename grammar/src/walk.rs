//! Matching of answers with grammars.

use std::sync::Arc;

use llguidance::Matcher;

use crate::calling::Calling;
use crate::calls::CallSyntax;
use crate::choosing::Choosing;
use crate::error::GrammarError;
use crate::form::Grammar;
use crate::grammars::{Form, Grammars};
use crate::json::Json;
use crate::marker::Marker;
use crate::mask::{is_set, set};
use crate::parser::{Parser, allowed, begun_with, taken};
use crate::waiting::Waiting;

/// State of an answer within a grammar.
#[derive(Clone)]
pub struct Walk {
    forms: Arc<Grammars>,
    way: Way,
    /// Parser of the answer, which is counted as used while it is held.
    _parser: Option<Arc<Parser>>,
    /// Reason for which the answer cannot continue.
    failure: Option<String>,
}

#[derive(Clone)]
enum Way {
    Parsed(Box<Matcher>),
    Json(Box<Json>),
    /// Within text before the calls of the grammar with this index, or within the calls.
    Calling(Box<Calling>, usize),
    /// Within one of the texts of the grammar with this index.
    Chosen(Choosing, usize),
    /// Before the marker of the grammar with this index.
    Waiting(Box<Waiting>, usize),
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}

impl Walk {
    /// Creates a walk at the beginning of a parser, or a failed one; `marked` are the tokens that
    /// can complete a key, follow one or escape one of its characters.
    pub(crate) fn parsed(
        forms: &Arc<Grammars>,
        form: usize,
        parser: Result<Arc<Parser>, GrammarError>,
        marked: &Arc<[u32]>,
    ) -> Walk {
        let failure = parser.as_ref().err().map(ToString::to_string);
        let Form::Parsed(grammar) = &forms.forms[form] else {
            return Walk::choosing(forms, form);
        };
        let way = match (grammar, &parser) {
            (_, Err(error)) => Way::Parsed(Box::new(Matcher::new(Err(error.clone().into())))),
            (Grammar::Behind(behind), Ok(parser)) if calls_have_headers(&behind.grammar) => {
                let runs_out = behind.grammar.keys_run_out();
                let calling = Calling::new(Arc::clone(parser), Arc::clone(marked), runs_out);
                Way::Calling(Box::new(calling.or_marker()), form)
            }
            (Grammar::Behind(_), Ok(parser)) => {
                let waiting = Waiting::new(Arc::clone(parser), Arc::clone(marked));
                Way::Waiting(Box::new(waiting), form)
            }
            (grammar, Ok(parser)) => begun(grammar, parser, &[], marked, form),
        };
        Walk { forms: Arc::clone(forms), way, _parser: parser.ok(), failure }
    }

    /// Creates a walk at the beginning of all texts of a grammar.
    pub(crate) fn choosing(forms: &Arc<Grammars>, form: usize) -> Walk {
        let way = Way::Chosen(Choosing::new(texts(forms, form).len()), form);
        Walk { forms: Arc::clone(forms), way, _parser: None, failure: None }
    }

    /// Returns true if every token is allowed, so that no mask is needed.
    pub fn is_free(&self) -> bool {
        matches!(&self.way, Way::Calling(calling, _) if calling.is_free())
    }

    /// Sets the bits of the allowed tokens, of which there is always at least one: at the end of
    /// the grammar, and if no token is allowed, those that end the answer.
    pub fn allow(&mut self, mask: &mut [u32]) {
        mask.fill(0);
        let error = match &mut self.way {
            Way::Parsed(matcher) => allowed(matcher, mask),
            Way::Json(json) => json.allow(&self.forms.vocabulary, mask),
            Way::Calling(calling, _) => calling.allow(&self.forms.vocabulary, mask),
            Way::Waiting(..) => {
                Waiting::allow(&self.forms.vocabulary, mask);
                None
            }
            Way::Chosen(choosing, form) => {
                let texts = texts(&self.forms, *form);
                choosing.next(texts).for_each(|token| set(mask, token));
                if choosing.is_complete(texts) {
                    self.forms.vocabulary.ends.iter().for_each(|end| set(mask, *end));
                }
                None
            }
        };
        self.note(error);
        let ends = &self.forms.vocabulary.ends;
        let is_over = mask.iter().all(|word| *word == 0);
        if is_over || ends.iter().any(|end| is_set(mask, *end)) {
            ends.iter().for_each(|end| set(mask, *end));
        }
    }

    /// Advances by a token. After a token that was not allowed, only the end is expected.
    pub fn take(&mut self, token: u32) {
        if self.forms.vocabulary.ends.contains(&token) {
            return;
        }
        let error = match &mut self.way {
            Way::Parsed(matcher) => taken(matcher, token),
            Way::Json(json) => json.take(&self.forms.vocabulary, token),
            Way::Calling(calling, form) => {
                let Some(syntax) = syntax(&self.forms, *form) else { return };
                let marker = marker(&self.forms, *form);
                calling.take(&self.forms.vocabulary, syntax, marker, token)
            }
            Way::Waiting(waiting, form) => {
                let Form::Parsed(Grammar::Behind(behind)) = &self.forms.forms[*form] else {
                    return;
                };
                let found = waiting.take(&self.forms.vocabulary, &behind.marker, token);
                let Some(said) = found else { return };
                let Waiting { parser, marked, .. } = &**waiting;
                let begins = said.is_empty() || begun_with(parser, &said).is_some();
                self.way = begun(&behind.grammar, parser, &said, marked, *form);
                (!begins)
                    .then(|| GrammarError("the format does not allow this beginning".to_owned()))
            }
            Way::Chosen(choosing, form) => {
                let is_possible = choosing.take(texts(&self.forms, *form), token);
                (!is_possible).then(|| GrammarError("no choice goes on like this".to_owned()))
            }
        };
        self.note(error);
    }

    /// Returns the reason for which the answer cannot continue; it then ends where it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns true if the text so far matches the grammar as a whole.
    pub fn is_complete(&mut self) -> bool {
        self.failure.is_none()
            && match &mut self.way {
                Way::Parsed(matcher) => matcher.is_accepting().unwrap_or(false),
                Way::Json(json) => json.is_complete(),
                Way::Calling(calling, _) => calling.is_complete(),
                Way::Waiting(..) => false,
                Way::Chosen(choosing, form) => choosing.is_complete(texts(&self.forms, *form)),
            }
    }

    /// Records an error; the first one is kept.
    fn note(&mut self, error: Option<GrammarError>) {
        if self.failure.is_none() {
            self.failure = error.map(|error| error.0);
        }
    }
}

/// Returns the state within a grammar after the bytes `said`; `form` is its index.
fn begun(
    grammar: &Grammar,
    parser: &Arc<Parser>,
    said: &[u8],
    marked: &Arc<[u32]>,
    form: usize,
) -> Way {
    let (marked, runs_out) = (Arc::clone(marked), grammar.keys_run_out());
    let matcher = begun_with(parser, said).unwrap_or_else(|| Matcher::new(Ok(parser.begin())));
    match grammar {
        Grammar::Calls(calls) if !calls.is_required => {
            Way::Calling(Box::new(Calling::new(Arc::clone(parser), marked, runs_out)), form)
        }
        Grammar::Calls(calls) if calls.syntax.parameters.is_some() => {
            Way::Parsed(Box::new(matcher))
        }
        Grammar::JsonSchema(..) | Grammar::Arguments(_) | Grammar::Calls(_) => {
            let mut json = Json::new(matcher, marked, runs_out);
            json.said(said);
            Way::Json(Box::new(json))
        }
        Grammar::CallsOr(either) => {
            let json = Json::new(matcher, marked, runs_out);
            let is_tagged = either.calls.syntax.parameters.is_some();
            let mut json = if is_tagged { json.without_keys_of_tags() } else { json };
            json.said(said);
            Way::Json(Box::new(json))
        }
        Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Behind(_) => {
            Way::Parsed(Box::new(matcher))
        }
    }
}

/// Returns the syntax of a grammar's calls.
fn syntax(forms: &Grammars, form: usize) -> Option<&CallSyntax> {
    match &forms.forms[form] {
        Form::Parsed(grammar) => grammar.calls().map(|calls| &calls.syntax),
        Form::Spelled(_) => None,
    }
}

/// Returns the marker before a grammar.
fn marker(forms: &Grammars, form: usize) -> Option<&Marker> {
    match &forms.forms[form] {
        Form::Parsed(Grammar::Behind(behind)) => Some(&behind.marker),
        _ => None,
    }
}

/// Returns true if a grammar allows calls with headers, which do not need the marker before them.
fn calls_have_headers(grammar: &Grammar) -> bool {
    matches!(grammar, Grammar::CallsOr(either) if either.calls.syntax.headers.is_some())
}

/// Returns the texts of a choice; none if the grammar needs a parser.
fn texts(forms: &Grammars, form: usize) -> &[Vec<u32>] {
    match &forms.forms[form] {
        Form::Spelled(texts) => texts,
        Form::Parsed(_) => &[],
    }
}
