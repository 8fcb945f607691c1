//! Answers on their way.

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

/// An answer on its way through a grammar.
#[derive(Clone)]
pub struct Walk {
    forms: Arc<Grammars>,
    way: Way,
    /// What it began with, which is counted as long as it is held.
    _parser: Option<Arc<Parser>>,
    /// Why it cannot go on.
    failure: Option<String>,
}

#[derive(Clone)]
enum Way {
    Parsed(Box<Matcher>),
    Json(Box<Json>),
    /// Through a text to the calls of the form of this number.
    Calling(Box<Calling>, usize),
    /// To one of the texts of the form of this number.
    Chosen(Choosing, usize),
    /// Before the marker of the form of this number.
    Waiting(Box<Waiting>, usize),
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}

impl Walk {
    /// At the beginning of the parser of a form, or failed; `marked` are the tokens that can
    /// complete a key or be followed by one.
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

    /// At the beginning of all texts of a form.
    pub(crate) fn choosing(forms: &Arc<Grammars>, form: usize) -> Walk {
        let way = Way::Chosen(Choosing::new(texts(forms, form).len()), form);
        Walk { forms: Arc::clone(forms), way, _parser: None, failure: None }
    }

    /// Whether every token can follow, so that there is no need to ask.
    pub fn is_free(&self) -> bool {
        matches!(&self.way, Way::Calling(calling, _) if calling.is_free())
    }

    /// Sets the bits of the tokens that can follow, of which there is always one: at the end of the
    /// grammar, and where nothing can follow, those that end the answer.
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

    /// The token that followed. Of one that was not allowed nothing more is expected than the end.
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
                (!begins).then(|| GrammarError("the form does not begin like this".to_owned()))
            }
            Way::Chosen(choosing, form) => {
                let is_possible = choosing.take(texts(&self.forms, *form), token);
                (!is_possible).then(|| GrammarError("no choice goes on like this".to_owned()))
            }
        };
        self.note(error);
    }

    /// Why it cannot go on, if it cannot: the answer then ends where it is.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether what was taken so far is a whole text of the form.
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

    /// The first failure stays.
    fn note(&mut self, error: Option<GrammarError>) {
        if self.failure.is_none() {
            self.failure = error.map(|error| error.0);
        }
    }
}

/// A way into a grammar of which so much is said; `form` is its number.
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

/// How the calls of a form are written.
fn syntax(forms: &Grammars, form: usize) -> Option<&CallSyntax> {
    match &forms.forms[form] {
        Form::Parsed(grammar) => grammar.calls().map(|calls| &calls.syntax),
        Form::Spelled(_) => None,
    }
}

/// What a form stands behind.
fn marker(forms: &Grammars, form: usize) -> Option<&Marker> {
    match &forms.forms[form] {
        Form::Parsed(Grammar::Behind(behind)) => Some(&behind.marker),
        _ => None,
    }
}

/// Whether a form may be calls that have headers of their own, which no marker stands before.
fn calls_have_headers(grammar: &Grammar) -> bool {
    matches!(grammar, Grammar::CallsOr(either) if either.calls.syntax.headers.is_some())
}

/// The texts of a form; none where a parser follows it.
fn texts(forms: &Grammars, form: usize) -> &[Vec<u32>] {
    match &forms.forms[form] {
        Form::Spelled(texts) => texts,
        Form::Parsed(_) => &[],
    }
}
