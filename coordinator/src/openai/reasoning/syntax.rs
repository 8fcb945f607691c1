//! How models write what they think, told by what their chat templates say.

use grammar::Marker;

use crate::boundary::codec::{CodecError, TextCodec};

/// A way to write thoughts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningSyntax {
    /// Before the answer, between two markers: DeepSeek-R1, Qwen 3, and most others.
    Tags(Tags),
    /// In messages of their own: gpt-oss.
    Harmony(HarmonyTokens),
}

/// Markers around thoughts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    pub open: Tag,
    pub close: Tag,
}

/// How a marker is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// Not empty.
    Text(String),
    /// A token that no text has.
    Token(u32),
}

/// Of OpenAI's Harmony format: an answer is messages, each with a header that says its channel and
/// to whom it is, `<|message|>`, and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarmonyTokens {
    /// `<|start|>` of a message's header.
    pub start: u32,
    /// `<|channel|>` before the channel's name.
    pub channel: u32,
    /// `<|message|>` between header and text.
    pub message: u32,
    /// `<|end|>` of a message that others follow.
    pub end: u32,
    /// `<|constrain|>` before the type of a text, where there is one.
    pub constrain: Option<u32>,
    /// What an answer proper begins with, `<|channel|>final<|message|>`.
    pub answer: Vec<u32>,
}

/// Markers that models have, the closing one of which templates show.
const TAGS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];

/// Tokens at the end of a prompt in which a marker is looked for.
const TAIL: usize = 16;

impl ReasoningSyntax {
    /// The one that a model's template shows; `None` where it shows none that is known.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    pub fn of(codec: &dyn TextCodec) -> Result<Option<ReasoningSyntax>, CodecError> {
        let Some(template) = codec.tools_template()? else { return Ok(None) };
        if template.contains("<|channel|>") && template.contains("<|message|>") {
            let tokens = HarmonyTokens::of(codec)?;
            return Ok(tokens.map(ReasoningSyntax::Harmony));
        }
        let shown = TAGS.iter().find(|(_, close)| template.contains(close));
        let Some((open, close)) = shown else { return Ok(None) };
        let tag = |text: &str| {
            let token = codec.special_token(text)?;
            Ok::<Tag, CodecError>(token.map_or_else(|| Tag::Text(text.to_owned()), Tag::Token))
        };
        Ok(Some(ReasoningSyntax::Tags(Tags { open: tag(open)?, close: tag(close)? })))
    }

    /// Whether a prompt ends within thoughts.
    pub fn is_open(&self, prompt: &[u32], codec: &dyn TextCodec) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(TAIL)..];
        let ReasoningSyntax::Tags(tags) = self else { return false };
        match &tags.open {
            Tag::Token(open) => {
                let is_blank = |token: u32| codec.bytes(token).iter().all(u8::is_ascii_whitespace);
                tail.iter().rfind(|token| !is_blank(**token)) == Some(open)
            }
            Tag::Text(open) => {
                let said: Vec<u8> = tail.iter().flat_map(|token| codec.bytes(*token)).collect();
                said.trim_ascii_end().ends_with(open.as_bytes())
            }
        }
    }
}

impl Tags {
    /// What an answer's form stands behind.
    pub fn closing(&self) -> Marker {
        match &self.close {
            Tag::Text(text) => Marker::Text(text.clone()),
            Tag::Token(token) => Marker::Tokens(vec![*token]),
        }
    }
}

impl HarmonyTokens {
    /// Those of a tokenizer; `None` where it lacks one.
    fn of(codec: &dyn TextCodec) -> Result<Option<HarmonyTokens>, CodecError> {
        let names = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
        let found = names.map(|name| codec.special_token(name));
        let [start, channel, message, end] = found;
        let (Some(start), Some(channel), Some(message), Some(end)) =
            (start?, channel?, message?, end?)
        else {
            return Ok(None);
        };
        let constrain = codec.special_token("<|constrain|>")?;
        let answer = codec.encode_part("<|channel|>final<|message|>")?;
        Ok(Some(HarmonyTokens { start, channel, message, end, constrain, answer }))
    }
}
