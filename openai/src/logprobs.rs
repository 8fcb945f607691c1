//! Log-probabilities of an answer's tokens, in the formats of OpenAI's two endpoints.

use engine_api::codec::TextCodec;
use engine_api::event::Logprob;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Log-probability that is reported for a token that cannot follow, OpenAI's value: JSON has no
/// infinity.
const IMPOSSIBLE_LOGPROB: f32 = -9999.0;

/// A token and its log-probability in an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenLogprob {
    /// Text of the token; `bytes:\xc3` for a part of a character, `token_id:N` for a model without
    /// a tokenizer.
    pub token: String,
    pub logprob: f32,
    /// Bytes that the token adds to the text; null for a model without a tokenizer.
    pub bytes: Option<Vec<u8>>,
}

/// Representation of tokens.
#[derive(Debug, Clone, Copy)]
pub struct Spelling<'c> {
    pub codec: Option<&'c dyn TextCodec>,
    /// Tokens are represented by their ids, but their bytes are those of their texts.
    pub spells_ids: bool,
}

impl<'c> Spelling<'c> {
    /// Represents tokens by their texts.
    pub fn text(codec: Option<&'c dyn TextCodec>) -> Spelling<'c> {
        Spelling { codec, spells_ids: false }
    }
}

impl TokenLogprob {
    /// Converts the id of a token to its representation.
    pub(super) fn new(found: Logprob, spelling: Spelling<'_>) -> TokenLogprob {
        let Spelling { codec, spells_ids } = spelling;
        let bytes = codec.map(|codec| codec.bytes(found.token));
        let token = match &bytes {
            Some(bytes) if !spells_ids => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes
                    .iter()
                    .fold("bytes:".to_owned(), |text, byte| text + &format!("\\x{byte:02x}")),
            },
            _ => format!("token_id:{}", found.token),
        };
        let logprob = if found.logprob.is_finite() { found.logprob } else { IMPOSSIBLE_LOGPROB };
        TokenLogprob { token, logprob, bytes }
    }
}

/// A token of an answer, and the most likely tokens at its position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatTokenLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Option<Vec<u8>>,
    pub top_logprobs: Vec<TokenLogprob>,
}

/// `logprobs` of a chat answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatLogprobs {
    pub content: Vec<ChatTokenLogprob>,
    /// Always null, since no answer is a refusal.
    pub refusal: Option<()>,
}

/// `logprobs` of a completion: lists with an entry for each token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextLogprobs {
    pub tokens: Vec<String>,
    /// Log-probability of each token; null for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// Most likely tokens at each position, followed by the token itself if it is not among them;
    /// null if none were requested.
    pub top_logprobs: Option<Vec<Option<IndexMap<String, f32>>>>,
    /// Number of characters of the text before each token.
    pub text_offset: Vec<usize>,
}

/// Log-probabilities of an answer's tokens, for either endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    tokens: Vec<ChatTokenLogprob>,
    /// Number of characters of the text before each token.
    starts: Vec<usize>,
    /// The most likely tokens were requested.
    has_top: bool,
}

impl Logprobs {
    /// Converts tokens that begin at `starts` to their texts; `found` has `width` entries for each
    /// of them, the token's own first.
    pub fn new(
        found: &[Logprob],
        width: usize,
        starts: Vec<usize>,
        spelling: Spelling<'_>,
    ) -> Logprobs {
        let convert = |found: &Logprob| TokenLogprob::new(*found, spelling);
        let tokens = found.chunks(width).map(|of_token| {
            let TokenLogprob { token, logprob, bytes } = convert(&of_token[0]);
            let top_logprobs = of_token[1..].iter().map(convert).collect();
            ChatTokenLogprob { token, logprob, bytes, top_logprobs }
        });
        Logprobs { tokens: tokens.collect(), starts, has_top: width > 1 }
    }

    /// Returns true if there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Removes the first `count` tokens.
    #[must_use]
    pub fn skip(mut self, count: usize) -> Logprobs {
        self.tokens.drain(..count.min(self.tokens.len()));
        self.starts.drain(..count.min(self.starts.len()));
        self
    }

    /// Returns the format of a chat answer.
    pub fn into_chat(self) -> ChatLogprobs {
        ChatLogprobs { content: self.tokens, refusal: None }
    }

    /// Returns the format of a completion.
    pub fn into_text(self) -> TextLogprobs {
        let top = |token: &ChatTokenLogprob| {
            let likely =
                token.top_logprobs.iter().map(|candidate| (&candidate.token, candidate.logprob));
            let mut top = IndexMap::new();
            // If several tokens have an equal text, the most likely one represents all of them.
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
    /// Inserts a token without a log-probability at the beginning; `likely` is the number of most
    /// likely tokens of the others.
    pub(super) fn prepend_unknown(&mut self, token: u32, likely: u16, spelling: Spelling<'_>) {
        let unknown = Logprob { token, logprob: 0.0 };
        self.tokens.insert(0, TokenLogprob::new(unknown, spelling).token);
        self.token_logprobs.insert(0, None);
        self.text_offset.insert(0, 0);
        if likely > 0 {
            self.top_logprobs.get_or_insert_default().insert(0, None);
        }
    }

    /// Appends the log-probabilities of a text that follows one of `characters` characters.
    pub(super) fn extend(&mut self, following: TextLogprobs, characters: usize) {
        self.tokens.extend(following.tokens);
        self.token_logprobs.extend(following.token_logprobs);
        self.text_offset.extend(following.text_offset.iter().map(|offset| offset + characters));
        if let Some(top) = following.top_logprobs {
            self.top_logprobs.get_or_insert_default().extend(top);
        }
    }
}
