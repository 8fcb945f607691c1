//! Matcher of a JSON text in which no object repeats a key.

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::Matcher;

use crate::error::GrammarError;
use crate::key_tracker::{KeyEffect, KeyTracker};
use crate::mask::{clear, is_set, tokens};
use crate::parser::{consume_token, fill_mask};
use crate::vocabulary::Vocabulary;

/// Maximum number of tokens tried for one mask. Keys of an object with common prefixes that are
/// longer in total may lead to a state in which no key is left, and the answer fails.
const MAX_TRIED_TOKENS: usize = 512;

/// State of a JSON text.
#[derive(Clone)]
pub(crate) struct JsonMatcher {
    matcher: Matcher,
    /// `None` if the text is not JSON as a whole; its keys are then not checked.
    keys: Option<KeyTracker>,
    /// Tokens that can complete a key, follow one or escape one of its characters.
    key_tokens: Arc<[u32]>,
    /// True if the possible keys of an object may all be used up.
    keys_are_finite: bool,
    /// True before the first byte if a text that begins with a tag is not JSON.
    may_be_tagged: bool,
}

impl JsonMatcher {
    pub(crate) fn new(
        matcher: Matcher,
        key_tokens: Arc<[u32]>,
        keys_are_finite: bool,
    ) -> JsonMatcher {
        let keys = Some(KeyTracker::with_one_spelling());
        JsonMatcher { matcher, keys, key_tokens, keys_are_finite, may_be_tagged: false }
    }

    /// Does not check the keys of a text that begins with a tag.
    #[must_use]
    pub(crate) fn without_keys_of_tags(self) -> JsonMatcher {
        JsonMatcher { may_be_tagged: true, ..self }
    }

    /// Does not check the keys.
    #[must_use]
    pub(crate) fn without_keys(self) -> JsonMatcher {
        JsonMatcher { keys: None, ..self }
    }

    /// Sets the bits of the allowed tokens; returns the error if the parser fails.
    pub(crate) fn fill_mask(
        &mut self,
        vocabulary: &Vocabulary,
        mask: &mut [u32],
    ) -> Option<GrammarError> {
        let error = fill_mask(&mut self.matcher, mask);
        if error.is_some() {
            return error;
        }
        let JsonMatcher { matcher, keys: Some(keys), key_tokens, keys_are_finite, .. } = self
        else {
            return None;
        };
        let key_tokens = key_tokens.iter().copied().filter(|token| is_set(mask, *token));
        let refused = if *keys_are_finite {
            // Within a key every token may lead to used keys, elsewhere only marked ones.
            let watched = if keys.is_at_key() {
                tokens(mask).collect()
            } else {
                key_tokens.collect::<Vec<_>>()
            };
            let crowds = |token: &u32| {
                keys.effect(vocabulary.word(*token).unwrap_or_default()) == KeyEffect::SharesPrefix
            };
            let state_before = watched.iter().any(crowds).then(|| matcher.clone());
            let (known_results, path) = (HashMap::new(), Vec::new());
            let mut search =
                NewKeySearch { vocabulary, state_before, path, tried: 0, known_results };
            search.rejected_tokens(matcher, keys, &watched)
        } else {
            let repeats = |token: &u32| keys.repeats(vocabulary.word(*token).unwrap_or_default());
            // Within an escape every token may spell a key in another way.
            if keys.is_in_escape() {
                Ok(tokens(mask).filter(repeats).collect())
            } else {
                Ok(key_tokens.filter(repeats).collect())
            }
        };
        match refused {
            Ok(refused) => refused.into_iter().for_each(|token| clear(mask, token)),
            Err(error) => return Some(error),
        }
        None
    }

    /// Adds bytes that the parser has already taken.
    pub(crate) fn advance_bytes(&mut self, bytes: &[u8]) {
        self.detect_tag(bytes);
        // The parser has accepted them, so they repeat no key that it would refuse.
        let _ = self.keys.as_mut().map(|keys| keys.advance_bytes(bytes));
    }

    /// Advances by a token; returns the error if it is not allowed.
    pub(crate) fn accept_token(
        &mut self,
        vocabulary: &Vocabulary,
        token: u32,
    ) -> Option<GrammarError> {
        let word = vocabulary.word(token).unwrap_or_default();
        self.detect_tag(word);
        let repeated = self.keys.as_mut().and_then(|keys| keys.advance_bytes(word).err());
        let repeated = repeated.map(|key| GrammarError(format!("the key `{key}` is repeated")));
        consume_token(&mut self.matcher, token).or(repeated)
    }

    fn detect_tag(&mut self, bytes: &[u8]) {
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
struct NewKeySearch<'w> {
    vocabulary: &'w Vocabulary,
    /// Copy of the parser in the current state, made if tokens have to be tried: a parser that
    /// finds no allowed token cannot be rolled back.
    state_before: Option<Matcher>,
    /// Tokens tried so far on the current path.
    path: Vec<u32>,
    /// Number of tokens tried.
    tried: usize,
    /// Result for each byte sequence tried: true if a new key can follow.
    known_results: HashMap<Vec<u8>, bool>,
}

impl<'w> NewKeySearch<'w> {
    /// Returns the tokens that repeat a key or cannot lead to a new one.
    fn rejected_tokens(
        &mut self,
        matcher: &mut Matcher,
        keys: &KeyTracker,
        watched: &[u32],
    ) -> Result<Vec<u32>, GrammarError> {
        let (mut refused, mut said) = (Vec::new(), Vec::new());
        for token in watched {
            let word = self.word(*token);
            let is_fine = match keys.effect(word) {
                KeyEffect::Nothing => true,
                KeyEffect::Repeats => false,
                KeyEffect::SharesPrefix => {
                    self.can_lead_to_new_key(matcher, keys, *token, &mut said)?
                }
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
    fn can_lead_to_new_key(
        &mut self,
        matcher: &mut Matcher,
        keys: &KeyTracker,
        token: u32,
        suffix: &mut Vec<u8>,
    ) -> Result<bool, GrammarError> {
        let before = suffix.len();
        suffix.extend(self.word(token));
        let leads = match self.known_results.get(suffix.as_slice()) {
            Some(known) => *known,
            None if self.tried >= MAX_TRIED_TOKENS => true,
            None => {
                self.tried += 1;
                let goes_on = matcher.consume_token(token).is_ok() && !matcher.is_stopped();
                self.path.push(token);
                let leads = goes_on && self.has_key(matcher, keys, token, suffix)?;
                self.path.pop();
                if !goes_on || matcher.is_stopped() || matcher.rollback(1).is_err() {
                    self.go_back(matcher)?;
                }
                self.known_results.insert(suffix.clone(), leads);
                leads
            }
        };
        suffix.truncate(before);
        Ok(leads)
    }

    /// Restores the parser to the state after the current path.
    fn go_back(&self, matcher: &mut Matcher) -> Result<(), GrammarError> {
        if let Some(before) = &self.state_before {
            *matcher = before.clone();
        }
        matcher.consume_tokens(&self.path).map_err(|error| GrammarError::new(&error))
    }

    /// Returns true if a new key can follow the state of a parser, which has taken `token`; `keys`
    /// has not.
    fn has_key(
        &mut self,
        matcher: &mut Matcher,
        keys: &KeyTracker,
        token: u32,
        suffix: &mut Vec<u8>,
    ) -> Result<bool, GrammarError> {
        let mut keys = keys.clone();
        if keys.advance_bytes(self.word(token)).is_err() {
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
                KeyEffect::Nothing => return Ok(true),
                KeyEffect::Repeats => {}
                KeyEffect::SharesPrefix => crowding.push(token),
            }
        }
        for token in crowding {
            if self.can_lead_to_new_key(matcher, &keys, token, suffix)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
