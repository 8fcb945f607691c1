//! Forms that answers must have: whether there can be such an answer, and whether one has it.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use grammar::{Behind, Calls, Checker, Grammar, GrammarError};

use super::item::{ErrorCode, Rejection, Request};
use super::parts::Call;
use super::stop::Answer;
use crate::boundary::codec::TextCodec;

/// Forms that are remembered of each kind: a job may have as many as lines, a server as many as
/// requests.
const FORMS_MAX: usize = 1024;

/// Forms that were asked for, each checked once.
#[derive(Default)]
pub struct Forms {
    checker: Option<Checker>,
    /// What requests share.
    accepted: HashSet<Arc<Grammar>>,
    /// By their hashes.
    refused: HashMap<u64, GrammarError>,
}

impl std::fmt::Debug for Forms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forms").field("accepted", &self.accepted.len()).finish_non_exhaustive()
    }
}

impl Forms {
    /// The request, its form shared with others.
    ///
    /// # Errors
    /// A form that no answer can have.
    pub fn check_request(&mut self, mut request: Request) -> Result<Request, Rejection> {
        request.grammar = request.grammar.map(|grammar| self.check(grammar)).transpose()?;
        Ok(request)
    }

    /// The form as requests share it.
    ///
    /// # Errors
    /// A form that no answer can have.
    pub fn check(&mut self, grammar: Arc<Grammar>) -> Result<Arc<Grammar>, Rejection> {
        if let Some(known) = self.accepted.get(&grammar) {
            return Ok(Arc::clone(known));
        }
        let hash = self.accepted.hasher().hash_one(&grammar);
        let checked = match self.refused.get(&hash) {
            Some(error) => Err(error.clone()),
            None => self.look_at(&grammar),
        };
        if let Err(error) = checked {
            let message = match grammar.calls() {
                Some(_) => format!("The field \"tools\" cannot be followed: {error}."),
                None => format!("No answer can have the form that is asked for: {error}."),
            };
            if self.refused.len() >= FORMS_MAX {
                self.refused.clear();
            }
            self.refused.insert(hash, error);
            return Err(Rejection::new(ErrorCode::InvalidValue, message));
        }
        if self.accepted.len() >= FORMS_MAX {
            self.accepted.clear();
        }
        self.accepted.insert(Arc::clone(&grammar));
        Ok(grammar)
    }

    fn look_at(&mut self, grammar: &Grammar) -> Result<(), GrammarError> {
        self.checker()?.check(grammar)
    }

    fn checker(&mut self) -> Result<&mut Checker, GrammarError> {
        Ok(match self.checker.take() {
            Some(checker) => self.checker.insert(checker),
            None => self.checker.insert(Checker::new()?),
        })
    }

    /// Why an answer that ended by itself has not the form that it must have: a sentence.
    pub fn wrong(
        &mut self,
        grammar: &Grammar,
        answer: &Answer,
        codec: Option<&dyn TextCodec>,
    ) -> Option<String> {
        let codec = codec.filter(|_| answer.ends_by_itself)?;
        let of_text = grammar.of_text();
        if let Some(calls) =
            grammar.calls().filter(|_| of_text.is_none() || !answer.calls.is_empty())
        {
            return self.wrong_calls(calls, &answer.calls);
        }
        let tokens = &answer.token_ids;
        let (grammar, text) = match grammar {
            Grammar::Behind(behind) => {
                let Behind { marker, grammar } = &**behind;
                let Some(text) = marker.behind(tokens, |token| codec.bytes(token)) else {
                    return Some("The answer ends within what the model thinks.".to_owned());
                };
                (grammar, text)
            }
            grammar => (grammar, tokens.iter().flat_map(|token| codec.bytes(*token)).collect()),
        };
        let grammar = grammar.of_text().unwrap_or(grammar);
        let checker = self.checker();
        let error = checker.and_then(|checker| checker.check_text(grammar, &text)).err()?;
        Some(format!(
            "The answer has not the form that was asked for: {error}. A simpler form, or a prompt \
             that asks for it, may help."
        ))
    }

    fn wrong_calls(&mut self, calls: &Calls, found: &[Call]) -> Option<String> {
        if found.is_empty() {
            let sentence = "The answer calls no function, which it had to.";
            return calls.is_required.then(|| sentence.to_owned());
        }
        let wrong = found.iter().find_map(|Call { name, arguments }| {
            let checker = self.checker();
            checker.and_then(|checker| checker.check_call(calls, name, arguments)).err()
        })?;
        Some(format!(
            "The answer has a call whose arguments are not as the function has them: {wrong}."
        ))
    }
}
