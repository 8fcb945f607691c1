//! Matcher of a JSON text in which no object repeats a key.

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::Matcher;

use crate::error::GrammarError;
use crate::keys::{Effect, Keys};
use crate::mask::{clear, is_set, tokens};
use crate::parser::{allowed, taken};
use crate::vocabulary::Vocabulary;

/// Maximum number of tokens tried for one mask. Keys of an object with common prefixes that are
/// longer in total may lead to a state in which no key is left, and the answer fails.
const TRIED: usize = 512;

/// State of a JSON text.
#[derive(Clone)]
pub(crate) struct Json {
    matcher: Matcher,
    /// `None` if the text is not JSON as a whole; its keys are then not checked.
    keys: Option<Keys>,
    /// Tokens that can complete a key, follow one or escape one of its characters.
    marked: Arc<[u32]>,
    /// True if the possible keys of an object may all be used up.
    runs_out: bool,
    /// True before the first byte if a text that begins with a tag is not JSON.
    may_be_tagged: bool,
}

impl Json {
    pub(crate) fn new(matcher: Matcher, marked: Arc<[u32]>, runs_out: bool) -> Json {
        let keys = Some(Keys::with_one_spelling());
        Json { matcher, keys, marked, runs_out, may_be_tagged: false }
    }

    /// Does not check the keys of a text that begins with a tag.
    #[must_use]
    pub(crate) fn without_keys_of_tags(self) -> Json {
        Json { may_be_tagged: true, ..self }
    }

    /// Does not check the keys.
    #[must_use]
    pub(crate) fn without_keys(self) -> Json {
        Json { keys: None, ..self }
    }

    /// Sets the bits of the allowed tokens; returns the error if the parser fails.
    pub(crate) fn allow(
        &mut self,
        vocabulary: &Vocabulary,
        mask: &mut [u32],
    ) -> Option<GrammarError> {
        let error = allowed(&mut self.matcher, mask);
        if error.is_some() {
            return error;
        }
        let Json { matcher, keys: Some(keys), marked, runs_out, .. } = self else { return None };
        let marked = marked.iter().copied().filter(|token| is_set(mask, *token));
        let refused = if *runs_out {
            // Within a key every token may lead to used keys, elsewhere only marked ones.
            let watched =
                if keys.is_at_key() { tokens(mask).collect() } else { marked.collect::<Vec<_>>() };
            let crowds = |token: &u32| {
                keys.effect(vocabulary.word(*token).unwrap_or_default()) == Effect::Crowds
            };
            let before = watched.iter().any(crowds).then(|| matcher.clone());
            let (seen, path) = (HashMap::new(), Vec::new());
            let mut search = Search { vocabulary, before, path, tried: 0, seen };
            search.refused(matcher, keys, &watched)
        } else {
            let repeats = |token: &u32| keys.repeats(vocabulary.word(*token).unwrap_or_default());
            // Within an escape every token may spell a key in another way.
            if keys.is_in_escape() {
                Ok(tokens(mask).filter(repeats).collect())
            } else {
                Ok(marked.filter(repeats).collect())
            }
        };
        match refused {
            Ok(refused) => refused.into_iter().for_each(|token| clear(mask, token)),
            Err(error) => return Some(error),
        }
        None
    }

    /// Adds bytes that the parser has already taken.
    pub(crate) fn said(&mut self, bytes: &[u8]) {
        self.look_for_tag(bytes);
        // The parser has accepted them, so they repeat no key that it would refuse.
        let _ = self.keys.as_mut().map(|keys| keys.take(bytes));
    }

    /// Advances by a token; returns the error if it is not allowed.
    pub(crate) fn take(&mut self, vocabulary: &Vocabulary, token: u32) -> Option<GrammarError> {
        let word = vocabulary.word(token).unwrap_or_default();
        self.look_for_tag(word);
        let repeated = self.keys.as_mut().and_then(|keys| keys.take(word).err());
        let repeated = repeated.map(|key| GrammarError(format!("the key `{key}` is repeated")));
        taken(&mut self.matcher, token).or(repeated)
    }

    fn look_for_tag(&mut self, bytes: &[u8]) {
        let Some(first) = bytes.first().filter(|_| self.may_be_tagged) else { return };
        self.may_be_tagged = false;
        if *first == b'<' {
            self.keys = None;
        }
    }

    pub(crate) fn is_complete(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }
}

/// Search for keys that an object does not have yet.
struct Search<'w> {
    vocabulary: &'w Vocabulary,
    /// Copy of the parser in the current state, made if tokens have to be tried: a parser that
    /// finds no allowed token cannot be rolled back.
    before: Option<Matcher>,
    /// Tokens tried so far on the current path.
    path: Vec<u32>,
    /// Number of tokens tried.
    tried: usize,
    /// Result for each byte sequence tried: true if a new key can follow.
    seen: HashMap<Vec<u8>, bool>,
}

impl<'w> Search<'w> {
    /// Returns the tokens that repeat a key or cannot lead to a new one.
    fn refused(
        &mut self,
        matcher: &mut Matcher,
        keys: &Keys,
        watched: &[u32],
    ) -> Result<Vec<u32>, GrammarError> {
        let (mut refused, mut said) = (Vec::new(), Vec::new());
        for token in watched {
            let word = self.word(*token);
            let is_fine = match keys.effect(word) {
                Effect::Nothing => true,
                Effect::Repeats => false,
                Effect::Crowds => self.leads(matcher, keys, *token, &mut said)?,
            };
            if !is_fine {
                refused.push(*token);
            }
        }
        Ok(refused)
    }

    fn word(&self, token: u32) -> &'w [u8] {
        self.vocabulary.word(token).unwrap_or_default()
    }

    /// Returns true if a new key can follow a token.
    fn leads(
        &mut self,
        matcher: &mut Matcher,
        keys: &Keys,
        token: u32,
        said: &mut Vec<u8>,
    ) -> Result<bool, GrammarError> {
        let before = said.len();
        said.extend(self.word(token));
        let leads = match self.seen.get(said.as_slice()) {
            Some(known) => *known,
            None if self.tried >= TRIED => true,
            None => {
                self.tried += 1;
                let goes_on = matcher.consume_token(token).is_ok() && !matcher.is_stopped();
                self.path.push(token);
                let leads = goes_on && self.has_key(matcher, keys, token, said)?;
                self.path.pop();
                if !goes_on || matcher.is_stopped() || matcher.rollback(1).is_err() {
                    self.go_back(matcher)?;
                }
                self.seen.insert(said.clone(), leads);
                leads
            }
        };
        said.truncate(before);
        Ok(leads)
    }

    /// Restores the parser to the state after the current path.
    fn go_back(&self, matcher: &mut Matcher) -> Result<(), GrammarError> {
        if let Some(before) = &self.before {
            *matcher = before.clone();
        }
        matcher.consume_tokens(&self.path).map_err(|error| GrammarError::new(&error))
    }

    /// Returns true if a new key can follow the state of a parser, which has taken `token`; `keys`
    /// has not.
    fn has_key(
        &mut self,
        matcher: &mut Matcher,
        keys: &Keys,
        token: u32,
        said: &mut Vec<u8>,
    ) -> Result<bool, GrammarError> {
        let mut keys = keys.clone();
        if keys.take(self.word(token)).is_err() {
            return Ok(false);
        }
        let Ok(mask) = matcher.compute_mask_or_eos() else { return Ok(false) };
        if matcher.is_stopped() {
            return Ok(false);
        }
        let mut crowding = Vec::new();
        for token in tokens(mask.as_slice()) {
            let word = self.word(token);
            // Whitespace leads to no key that is not possible without it.
            if word.iter().all(u8::is_ascii_whitespace) && !keys.is_in_key() {
                continue;
            }
            match keys.effect(word) {
                Effect::Nothing => return Ok(true),
                Effect::Repeats => {}
                Effect::Crowds => crowding.push(token),
            }
        }
        for token in crowding {
            if self.leads(matcher, &keys, token, said)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
