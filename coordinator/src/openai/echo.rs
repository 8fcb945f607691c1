//! Prompts that are returned with their answers, and their log-probabilities.

use super::item::{Endpoint, Request};
use super::logprobs::{Logprobs, TextLogprobs};
use super::output::{Choice, Done};
use super::prompt_logprobs::prompt_logprobs;
use crate::boundary::codec::{CodecError, TextCodec, TextContext};
use crate::boundary::engine::Logprob;

/// A prompt to be echoed: the text of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EchoedPrompt {
    /// Text of the complete characters.
    pub text: String,
    /// Incomplete character at the end of the prompt, as U+FFFD. It is part of the text of an
    /// answer that has tokens.
    rest: String,
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
        let rest = pieces.pop().unwrap_or_default();
        let mut characters = 0;
        let starts = pieces.iter().map(|piece| {
            let start = characters;
            characters += piece.chars().count();
            start
        });
        Ok(EchoedPrompt {
            starts: starts.collect(),
            text: pieces.concat(),
            rest,
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
        codec: &dyn TextCodec,
    ) -> TextLogprobs {
        let most = usize::from(likely) + 1;
        let starts = self.starts.get(1..).unwrap_or_default().to_vec();
        let told = found.chunks(width.max(1)).flat_map(|place| &place[..most]).copied();
        let told: Vec<Logprob> = told.collect();
        let mut shown = Logprobs::new(&told, most, starts, Some(codec)).of_text();
        if let Some(first) = self.tokens.first() {
            shown.prepend_unknown(*first, likely, codec);
        }
        shown
    }

    /// Returns the text between the prompt's complete characters and an answer: the incomplete
    /// character before an empty answer, and nothing before other answers, whose text includes it.
    pub fn rest_before(&self, text: &str, token_ids: &[u32]) -> &str {
        if text.is_empty() && token_ids.is_empty() { &self.rest } else { "" }
    }

    /// Returns the number of characters of the text.
    pub fn characters(&self) -> usize {
        self.text.chars().count()
    }
}

/// Results of an engine for the prompt of one of a request's answers.
#[derive(Debug, Clone, Copy)]
pub struct OfPrompt<'p> {
    pub request: &'p Request,
    /// The decoded prompt, if the answer begins with it.
    pub echoed: Option<&'p EchoedPrompt>,
    /// Log-probabilities of each token but the first, [`Request::logprobs_of_prompt_token`] for
    /// each of them.
    pub found: &'p [Logprob],
    pub codec: Option<&'p dyn TextCodec>,
}

impl OfPrompt<'_> {
    fn width(&self) -> usize {
        self.request.logprobs_of_prompt_token().into()
    }

    /// Returns log-probabilities of an echoed prompt if they are requested.
    pub fn echoed_logprobs(&self) -> Option<TextLogprobs> {
        let (prompt, likely, codec) = (self.echoed?, self.request.logprobs?, self.codec?);
        Some(prompt.logprobs(self.found, self.width(), likely, codec))
    }

    /// Adds the requested text and log-probabilities of the prompt to the answer.
    pub fn tell(&self, done: &mut Done) {
        let of_prompt = |likely| prompt_logprobs(self.found, self.width(), likely, self.codec);
        // The choices of a chat have a single prompt, which is reported once.
        let is_told = self.request.endpoint == Endpoint::Completions || done.choice.index() == 0;
        let told = self.request.prompt_logprobs.filter(|_| is_told).map(of_prompt);
        match &mut done.choice {
            Choice::Text { text, token_ids, logprobs, prompt_logprobs, .. } => {
                *prompt_logprobs = told;
                if let Some(prompt) = self.echoed {
                    let rest = prompt.rest_before(text, token_ids);
                    text.insert_str(0, rest);
                    text.insert_str(0, &prompt.text);
                    *logprobs =
                        joined(self.echoed_logprobs(), prompt.characters(), logprobs.take());
                }
            }
            Choice::Chat { .. } => done.prompt_logprobs = told,
        }
    }
}

/// Joins the log-probabilities of a prompt of `characters` characters and those of its answer.
fn joined(
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
