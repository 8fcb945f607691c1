//! A prompt that its answer begins with.

use super::logprobs::{Logprobs, TextLogprobs};
use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Logprob;

/// A prompt as it is told: the text of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EchoedPrompt {
    pub text: String,
    tokens: Vec<u32>,
    /// Characters of the text before each token.
    starts: Vec<usize>,
}

impl EchoedPrompt {
    /// The prompt of these tokens.
    ///
    /// # Errors
    /// The end of a sentence: why they have no text.
    pub fn new(tokens: &[u32], codec: &dyn TextCodec) -> Result<EchoedPrompt, String> {
        let pieces = codec.pieces(tokens)?;
        let mut characters = 0;
        let starts = pieces.iter().take(tokens.len()).map(|piece| {
            let start = characters;
            characters += piece.chars().count();
            start
        });
        Ok(EchoedPrompt {
            starts: starts.collect(),
            text: pieces.concat(),
            tokens: tokens.to_vec(),
        })
    }

    /// Log-probabilities of its tokens, of which nothing is known of the first; `logprobs` of the
    /// others has the token's own and those of `likely` others for each.
    pub fn logprobs(
        &self,
        logprobs: &[Logprob],
        likely: u16,
        codec: &dyn TextCodec,
    ) -> TextLogprobs {
        let width = usize::from(likely) + 1;
        let starts = self.starts.get(1..).unwrap_or_default().to_vec();
        let mut shown = Logprobs::new(logprobs, width, starts, Some(codec)).of_text();
        if let Some(first) = self.tokens.first() {
            shown.prepend_unknown(*first, likely, codec);
        }
        shown
    }

    /// How many characters its text has.
    pub fn characters(&self) -> usize {
        self.text.chars().count()
    }
}

/// Log-probabilities of a prompt and of what follows it.
#[must_use]
pub fn joined(
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
