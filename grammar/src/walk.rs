//! Answers on their way.

use std::sync::Arc;

use llguidance::{Matcher, TokenParser};

use crate::choosing::Choosing;
use crate::error::GrammarError;
use crate::grammars::{Form, Grammars};
use crate::keys::Keys;

/// An answer on its way through a grammar.
#[derive(Clone)]
pub struct Walk {
    forms: Arc<Grammars>,
    way: Way,
    /// Why it cannot go on.
    failure: Option<String>,
}

#[derive(Clone)]
enum Way {
    Parsed(Box<Matcher>),
    /// With the keys of a JSON text, and the tokens that can complete one.
    Json(Box<Matcher>, Keys, Arc<[u32]>),
    /// To one of the texts of the form of this number.
    Chosen(Choosing, usize),
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}

impl Walk {
    /// At the beginning of a parser, or failed; `quoting`: the tokens that can complete a key of
    /// the JSON text that it is.
    pub(crate) fn parsed(
        forms: &Arc<Grammars>,
        parser: Result<TokenParser, GrammarError>,
        quoting: Option<Arc<[u32]>>,
    ) -> Walk {
        let failure = parser.as_ref().err().map(ToString::to_string);
        let matcher = Box::new(Matcher::new(parser.map_err(Into::into)));
        let way = match quoting {
            Some(quoting) => Way::Json(matcher, Keys::default(), quoting),
            None => Way::Parsed(matcher),
        };
        Walk { forms: Arc::clone(forms), way, failure }
    }

    /// At the beginning of all texts of a form.
    pub(crate) fn choosing(forms: &Arc<Grammars>, form: usize) -> Walk {
        let way = Way::Chosen(Choosing::new(texts(forms, form).len()), form);
        Walk { forms: Arc::clone(forms), way, failure: None }
    }

    /// Sets the bits of the tokens that can follow, of which there is always one: at the end of the
    /// grammar, and where nothing can follow, those that end the answer.
    pub fn allow(&mut self, mask: &mut [u32]) {
        mask.fill(0);
        let error = match &mut self.way {
            Way::Parsed(matcher) => parsed(matcher, mask),
            Way::Json(matcher, keys, quoting) => {
                let error = parsed(matcher, mask);
                // An object has no key twice.
                for token in quoting.iter().copied() {
                    let word = self.forms.vocabulary.word(token).filter(|_| is_set(mask, token));
                    if word.is_some_and(|word| keys.repeats(word)) {
                        clear(mask, token);
                    }
                }
                error
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
            Way::Json(matcher, keys, _) => {
                let word = self.forms.vocabulary.word(token).unwrap_or_default();
                let repeated = keys.take(word).err();
                let repeated =
                    repeated.map(|key| GrammarError(format!("the key `{key}` comes twice")));
                taken(matcher, token).or(repeated)
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
                Way::Parsed(matcher) | Way::Json(matcher, ..) => {
                    matcher.is_accepting().unwrap_or(false)
                }
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

/// The texts of a form; none where a parser follows it.
fn texts(forms: &Grammars, form: usize) -> &[Vec<u32>] {
    match &forms.forms[form] {
        Form::Spelled(texts) => texts,
        Form::Parsed(_) => &[],
    }
}

/// Sets the bits of what a parser lets follow; why it gives up.
fn parsed(matcher: &mut Matcher, mask: &mut [u32]) -> Option<GrammarError> {
    match matcher.compute_mask_or_eos() {
        Ok(allowed) => {
            let words = allowed.as_slice();
            let count = words.len().min(mask.len());
            mask[..count].copy_from_slice(&words[..count]);
            None
        }
        Err(error) => Some(GrammarError::new(&error)),
    }
}

/// Goes on with a token; why the parser gives up.
fn taken(matcher: &mut Matcher, token: u32) -> Option<GrammarError> {
    matcher.consume_token(token).err().map(|error| GrammarError::new(&error))
}

fn is_set(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

fn clear(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word &= !(1 << (token % 32));
    }
}

fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}
