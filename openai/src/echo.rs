//! Prompts that are returned with their answers, and their log-probabilities.

use engine_api::codec::{CodecError, TextCodec, TextContext};
use engine_api::event::Logprob;

use super::input_line::{CompletionRequest, Endpoint};
use super::logprobs::{Logprobs, Spelling, TextLogprobs};
use super::output::{Choice, FinishedChoice};
use super::prompt_logprobs::prompt_logprobs;

/// A prompt to be echoed: the text of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EchoedPrompt {
    /// Text of the complete characters.
    pub text: String,
    /// Incomplete character at the end of the prompt, as U+FFFD. It is part of the text of an
    /// answer that has tokens.
    incomplete_char: String,
    tokens: Vec<u32>,
    /// Number of characters of the text before each token.
    starts: Vec<usize>,
}

impl EchoedPrompt {
    /// Decodes the tokens of a prompt.
    ///
    /// # Errors
    /// Returns an error if the tokens have no text.
    pub fn new(tokens: &[u32], codec: &dyn TextCodec) -> Result<EchoedPrompt, CodecError> {
        let mut pieces = codec.pieces(&TextContext::default(), tokens)?;
        let incomplete_char = pieces.pop().unwrap_or_default();
        let mut characters = 0;
        let starts = pieces.iter().map(|piece| {
            let start = characters;
            characters += piece.chars().count();
            start
        });
        Ok(EchoedPrompt {
            starts: starts.collect(),
            text: pieces.concat(),
            incomplete_char,
            tokens: tokens.to_vec(),
        })
    }

    /// Returns log-probabilities of the prompt's tokens, which are unknown for the first one: for
    /// each other token its own and those of `likely` most likely tokens. `found` has `width`
    /// entries for each token but the first, the token's own in front.
    pub fn logprobs(
        &self,
        found: &[Logprob],
        width: usize,
        likely: u16,
        spelling: Spelling<'_>,
    ) -> TextLogprobs {
        let entries = usize::from(likely) + 1;
        let starts = self.starts.get(1..).unwrap_or_default().to_vec();
        let reported = found.chunks(width.max(1)).flat_map(|place| &place[..entries]).copied();
        let reported: Vec<Logprob> = reported.collect();
        let mut logprobs = Logprobs::new(&reported, entries, starts, spelling).into_text();
        if let Some(first) = self.tokens.first() {
            logprobs.prepend_unknown(*first, likely, spelling);
        }
        logprobs
    }

    /// Returns the text between the prompt's complete characters and an answer: the incomplete
    /// character before an empty answer, and nothing before other answers, whose text includes it.
    pub fn separator_before(&self, text: &str, token_ids: &[u32]) -> &str {
        if text.is_empty() && token_ids.is_empty() { &self.incomplete_char } else { "" }
    }

    /// Returns the number of characters of the text.
    pub fn char_count(&self) -> usize {
        self.text.chars().count()
    }
}

/// Results of an engine for the prompt of one of a request's answers.
#[derive(Debug, Clone, Copy)]
pub struct PromptOutput<'p> {
    pub request: &'p CompletionRequest,
    /// The decoded prompt, if the answer begins with it.
    pub echoed: Option<&'p EchoedPrompt>,
    /// Log-probabilities of each token but the first,
    /// [`CompletionRequest::logprobs_per_prompt_token`] for each of them.
    pub logprobs: &'p [Logprob],
    pub codec: Option<&'p dyn TextCodec>,
}

impl PromptOutput<'_> {
    fn logprobs_per_token(&self) -> usize {
        self.request.logprobs_per_prompt_token().into()
    }

    /// Returns log-probabilities of an echoed prompt if they are requested.
    pub fn echoed_logprobs(&self) -> Option<TextLogprobs> {
        let (prompt, likely) = (self.echoed?, self.request.logprobs?);
        let spells_ids = self.request.output.spells_token_ids;
        let spelling = Spelling { codec: Some(self.codec?), spells_ids };
        Some(prompt.logprobs(self.logprobs, self.logprobs_per_token(), likely, spelling))
    }

    /// Adds the requested text and log-probabilities of the prompt to the answer.
    pub fn add_to(&self, finished: &mut FinishedChoice) {
        let convert =
            |likely| prompt_logprobs(self.logprobs, self.logprobs_per_token(), likely, self.codec);
        // The choices of a chat have a single prompt, which is reported once.
        let is_reported =
            self.request.endpoint == Endpoint::Completions || finished.choice.index() == 0;
        let reported = self.request.prompt_logprobs.filter(|_| is_reported).map(convert);
        match &mut finished.choice {
            Choice::Text { text, token_ids, logprobs, prompt_logprobs, .. } => {
                *prompt_logprobs = reported;
                if let Some(prompt) = self.echoed {
                    let rest = prompt.separator_before(text, token_ids);
                    text.insert_str(0, rest);
                    text.insert_str(0, &prompt.text);
                    *logprobs =
                        join_logprobs(self.echoed_logprobs(), prompt.char_count(), logprobs.take());
                }
            }
            Choice::Chat { .. } => finished.prompt_logprobs = reported,
        }
    }
}

/// Joins the log-probabilities of a prompt of `characters` characters and those of its answer.
fn join_logprobs(
    prompt: Option<TextLogprobs>,
    characters: usize,
    answer: Option<TextLogprobs>,
) -> Option<TextLogprobs> {
    match (prompt, answer) {
        (Some(mut prompt), Some(answer)) => {
            prompt.extend(answer, characters);
            Some(prompt)
        }
        (prompt, answer) => prompt.or(answer),
    }
}
