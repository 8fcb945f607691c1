//! Validation of answers against the grammars of their requests.

use engine_api::codec::TextCodec;
use grammar::{Behind, Calls, Checker, Grammar, GrammarError};

use super::answer_parts::Call;
use super::stop::Answer;

/// Validator of finished answers against the grammars of their requests.
#[derive(Default)]
pub struct OutputValidator {
    checker: Option<Checker>,
}

impl std::fmt::Debug for OutputValidator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputValidator").finish_non_exhaustive()
    }
}

impl OutputValidator {
    fn checker(&mut self) -> Result<&mut Checker, GrammarError> {
        Ok(match self.checker.take() {
            Some(checker) => self.checker.insert(checker),
            None => self.checker.insert(Checker::new()?),
        })
    }

    /// Returns a sentence that explains why an answer violates its grammar; `None` if it does not,
    /// or did not end by itself.
    pub fn find_violation(
        &mut self,
        grammar: &Grammar,
        answer: &Answer,
        codec: Option<&dyn TextCodec>,
    ) -> Option<String> {
        let codec = codec.filter(|_| answer.ended_with_eos)?;
        let of_text = grammar.after_text();
        if let Some(calls) =
            grammar.calls().filter(|_| of_text.is_none() || !answer.calls.is_empty())
        {
            return self.find_call_violation(calls, &answer.calls);
        }
        let tokens = &answer.token_ids;
        let (grammar, text) = match grammar {
            Grammar::Behind(behind) => {
                let Behind { marker, grammar } = &**behind;
                let Some(text) = marker.bytes_after(tokens, |token| codec.bytes(token)) else {
                    return Some(
                        "The answer ended before the model finished reasoning.".to_owned(),
                    );
                };
                (grammar, text)
            }
            grammar => (grammar, tokens.iter().flat_map(|token| codec.bytes(*token)).collect()),
        };
        let grammar = grammar.after_text().unwrap_or(grammar);
        let checker = self.checker();
        let error = checker.and_then(|checker| checker.check_text(grammar, &text)).err()?;
        Some(format!(
            "The answer does not match the requested format: {error}. A simpler format, or a \
             prompt that describes it, may help."
        ))
    }

    fn find_call_violation(&mut self, calls: &Calls, found: &[Call]) -> Option<String> {
        if found.is_empty() {
            let sentence = "The answer calls no function, although 'tool_choice' requires a call.";
            return calls.is_required.then(|| sentence.to_owned());
        }
        let wrong = found.iter().find_map(|Call { name, arguments }| {
            let checker = self.checker();
            checker.and_then(|checker| checker.check_call(calls, name, arguments)).err()
        })?;
        Some(format!("The answer contains a function call with invalid arguments: {wrong}."))
    }
}
