//! Log-probabilities of an answer's tokens, in the two forms of OpenAI's endpoints.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::boundary::codec::TextCodec;
use crate::boundary::engine::Logprob;

/// What stands for the log-probability of a token that cannot follow, as at OpenAI: JSON has no
/// infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// A token as an answer shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenLogprob {
    /// Its text; `bytes:\xc3` for a part of a character, `token_id:N` for a model without
    /// tokenizer.
    pub token: String,
    pub logprob: f32,
    /// What it adds to the text as bytes; null for a model without tokenizer.
    pub bytes: Option<Vec<u8>>,
}

impl TokenLogprob {
    /// Of a token with its log-probability.
    pub(super) fn new(found: Logprob, codec: Option<&dyn TextCodec>) -> TokenLogprob {
        let bytes = codec.map(|codec| codec.bytes(found.token));
        let token = match &bytes {
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes
                    .iter()
                    .fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
            },
            None => format!("token_id:{}", found.token),
        };
        let logprob = if found.logprob.is_finite() { found.logprob } else { IMPOSSIBLE };
        TokenLogprob { token, logprob, bytes }
    }
}

/// A token of an answer beside those that were most likely in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownToken {
    pub token: String,
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
    pub top_logprobs: Vec<TokenLogprob>,
}

/// `logprobs` of a chat answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatLogprobs {
    pub content: Vec<ShownToken>,
    /// Always null: nothing here refuses.
    pub refusal: Option<()>,
}

/// `logprobs` of a completion, an entry for each token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt that is echoed.
    pub token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens, and the token itself behind them if it is none of them; null where
    /// none were asked for.
    pub top_logprobs: Option<Vec<Option<IndexMap<String, f32>>>>,
    /// Characters of the text before the token.
    pub text_offset: Vec<usize>,
}

/// What is known of an answer's tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    tokens: Vec<ShownToken>,
    /// Characters of the text before each token.
    starts: Vec<usize>,
    /// The most likely tokens were requested.
    has_top: bool,
}

impl Logprobs {
    /// Of tokens that begin at `starts`; `found` has `width` entries for each, its own first.
    pub fn new(
        found: &[Logprob],
        width: usize,
        starts: Vec<usize>,
        codec: Option<&dyn TextCodec>,
    ) -> Logprobs {
        let shown = |found: &Logprob| TokenLogprob::new(*found, codec);
        let tokens = found.chunks(width).map(|of_token| {
            let TokenLogprob { token, logprob, bytes } = shown(&of_token[0]);
            let top_logprobs = of_token[1..].iter().map(shown).collect();
            ShownToken { token, logprob, bytes, top_logprobs }
        });
        Logprobs { tokens: tokens.collect(), starts, has_top: width > 1 }
    }

    /// Returns true if there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Without the first `count` tokens.
    #[must_use]
    pub fn skip(mut self, count: usize) -> Logprobs {
        self.tokens.drain(..count.min(self.tokens.len()));
        self.starts.drain(..count.min(self.starts.len()));
        self
    }

    /// In a chat answer.
    pub fn of_chat(self) -> ChatLogprobs {
        ChatLogprobs { content: self.tokens, refusal: None }
    }

    /// In a completion.
    pub fn of_text(self) -> TextLogprobs {
        let top = |token: &ShownToken| {
            let likely = token.top_logprobs.iter().map(|one| (&one.token, one.logprob));
            let mut top = IndexMap::new();
            // Of several with one text the most likely stands for all.
            for (text, logprob) in likely.chain(std::iter::once((&token.token, token.logprob))) {
                top.entry(text.clone()).or_insert(logprob);
            }
            Some(top)
        };
        TextLogprobs {
            top_logprobs: self.has_top.then(|| self.tokens.iter().map(top).collect()),
            token_logprobs: self.tokens.iter().map(|token| Some(token.logprob)).collect(),
            tokens: self.tokens.into_iter().map(|token| token.token).collect(),
            text_offset: self.starts,
        }
    }
}

impl TextLogprobs {
    /// A token of which nothing is known, in front; `likely` as of the others.
    pub(super) fn prepend_unknown(&mut self, token: u32, likely: u16, codec: &dyn TextCodec) {
        let unknown = Logprob { token, logprob: 0.0 };
        self.tokens.insert(0, TokenLogprob::new(unknown, Some(codec)).token);
        self.token_logprobs.insert(0, None);
        self.text_offset.insert(0, 0);
        if likely > 0 {
            self.top_logprobs.get_or_insert_default().insert(0, None);
        }
    }

    /// Adds those of the text that follows one of so many characters.
    pub(super) fn extend(&mut self, following: TextLogprobs, characters: usize) {
        self.tokens.extend(following.tokens);
        self.token_logprobs.extend(following.token_logprobs);
        self.text_offset.extend(following.text_offset.iter().map(|offset| offset + characters));
        if let Some(top) = following.top_logprobs {
            self.top_logprobs.get_or_insert_default().extend(top);
        }
    }
}
