//! What is told of a prompt with its answer.

use super::item::Request;
use super::logprobs::{Logprobs, TextLogprobs};
use super::output::Choice;
use super::prompt_logprobs::prompt_logprobs;
use crate::boundary::codec::{CodecError, TextCodec, TextContext};
use crate::boundary::engine::Logprob;

/// A prompt as it is told: the text of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EchoedPrompt {
    /// Its whole characters.
    pub text: String,
    /// A character that it ends within, as U+FFFD: part of the text of an answer that has tokens.
    rest: String,
    tokens: Vec<u32>,
    /// Characters of the text before each token.
    starts: Vec<usize>,
}

impl EchoedPrompt {
    /// The prompt of these tokens.
    ///
    /// # Errors
    /// Tokens without a text.
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

    /// Log-probabilities of its tokens, of which nothing is known of the first; `found` of the
    /// others has `width` entries for each, the token's own in front; told are its own and `likely`
    /// others.
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

    /// What of it stands before an answer beside its whole characters: the incomplete one, which
    /// answers with tokens begin with.
    pub fn rest_before(&self, text: &str, token_ids: &[u32]) -> &str {
        if text.is_empty() && token_ids.is_empty() { &self.rest } else { "" }
    }

    /// How many characters its text has.
    pub fn characters(&self) -> usize {
        self.text.chars().count()
    }
}

/// What an engine said of the prompt of one of a request's answers.
#[derive(Debug, Clone, Copy)]
pub struct OfPrompt<'p> {
    pub request: &'p Request,
    /// Where the answer begins with it.
    pub echoed: Option<&'p EchoedPrompt>,
    /// [`Request::logprobs_of_prompt_token`] of each token but the first.
    pub found: &'p [Logprob],
    pub codec: Option<&'p dyn TextCodec>,
}

impl OfPrompt<'_> {
    fn width(&self) -> usize {
        self.request.logprobs_of_prompt_token().into()
    }

    /// Log-probabilities of a prompt that is echoed, where they are asked for.
    pub fn echoed_logprobs(&self) -> Option<TextLogprobs> {
        let (prompt, likely, codec) = (self.echoed?, self.request.logprobs?, self.codec?);
        Some(prompt.logprobs(self.found, self.width(), likely, codec))
    }

    /// Tells it with the answer.
    pub fn tell(&self, choice: &mut Choice) {
        let of_prompt = |likely| prompt_logprobs(self.found, self.width(), likely, self.codec);
        let told = self.request.prompt_logprobs.map(of_prompt);
        match choice {
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
            Choice::Chat { prompt_logprobs, .. } => *prompt_logprobs = told,
        }
    }
}

/// Log-probabilities of a prompt and of what follows it.
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
