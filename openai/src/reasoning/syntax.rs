//! Syntax in which models write their reasoning, detected from chat templates.

use engine_api::codec::{CodecError, TextCodec};
use grammar::Marker;

/// Syntax of reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReasoningSyntax {
    /// Between two markers, before the answer: DeepSeek-R1, Qwen 3, and most others.
    Tags(Tags),
    /// In separate messages: gpt-oss.
    Harmony(HarmonyTokens),
}

/// Markers before and after reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    pub open: Tag,
    pub close: Tag,
}

/// Representation of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// Text, which is not empty.
    Text(String),
    /// Token that is not part of any text.
    Token(u32),
}

/// Tokens of OpenAI's Harmony format: an answer consists of messages, each of which has a header
/// with its channel and its recipient, `<|message|>`, and a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarmonyTokens {
    /// `<|start|>`, which begins a message's header.
    pub start: u32,
    /// `<|channel|>`, which precedes the channel's name.
    pub channel: u32,
    /// `<|message|>`, between header and text.
    pub message: u32,
    /// `<|end|>` of a message that is followed by others.
    pub end: u32,
    /// `<|constrain|>`, which precedes the type of a text; `None` if the tokenizer has no such
    /// token.
    pub constrain: Option<u32>,
    /// Tokens that begin the answer proper, `<|channel|>final<|message|>`.
    pub answer: Vec<u32>,
}

/// Known markers, and the text by which a template shows the closing one. Hy3's template inserts
/// the end of a marker's name with `format`.
const KNOWN_TAGS: [KnownTags; 5] = [
    KnownTags { open: "<think:opensource>", close: "</think:opensource>", shown: "</think{}>" },
    KnownTags::shown_as_written("<think:opensource>", "</think:opensource>"),
    KnownTags::shown_as_written("<think>", "</think>"),
    KnownTags::shown_as_written("[THINK]", "[/THINK]"),
    KnownTags::shown_as_written("<seed:think>", "</seed:think>"),
];

/// A pair of markers that some models use.
struct KnownTags {
    open: &'static str,
    close: &'static str,
    /// Text that occurs in templates.
    shown: &'static str,
}

impl KnownTags {
    const fn shown_as_written(open: &'static str, close: &'static str) -> KnownTags {
        KnownTags { open, close, shown: close }
    }
}

/// Number of tokens at the end of a prompt in which a marker is searched.
const TAIL_TOKENS: usize = 16;

impl ReasoningSyntax {
    /// Returns the syntax that a model's chat template shows, or `None` if it shows no known one.
    ///
    /// # Errors
    /// Returns an error if the tokenizer does not answer.
    pub fn detect(codec: &dyn TextCodec) -> Result<Option<ReasoningSyntax>, CodecError> {
        let Some(template) = codec.tools_template()? else { return Ok(None) };
        if template.contains("<|channel|>") && template.contains("<|message|>") {
            let tokens = HarmonyTokens::from_codec(codec)?;
            return Ok(tokens.map(ReasoningSyntax::Harmony));
        }
        let shown = KNOWN_TAGS.iter().find(|tags| template.contains(tags.shown));
        let Some(KnownTags { open, close, .. }) = shown else { return Ok(None) };
        let tag = |text: &str| {
            let token = codec.special_token(text)?;
            Ok::<Tag, CodecError>(token.map_or_else(|| Tag::Text(text.to_owned()), Tag::Token))
        };
        Ok(Some(ReasoningSyntax::Tags(Tags { open: tag(open)?, close: tag(close)? })))
    }

    /// Returns true if a prompt ends within reasoning.
    pub fn is_open(&self, prompt: &[u32], codec: &dyn TextCodec) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(TAIL_TOKENS)..];
        let ReasoningSyntax::Tags(tags) = self else { return false };
        match &tags.open {
            Tag::Token(open) => {
                let is_blank = |token: u32| codec.bytes(token).iter().all(u8::is_ascii_whitespace);
                tail.iter().rfind(|token| !is_blank(**token)) == Some(open)
            }
            Tag::Text(open) => {
                let text: Vec<u8> = tail.iter().flat_map(|token| codec.bytes(*token)).collect();
                text.trim_ascii_end().ends_with(open.as_bytes())
            }
        }
    }
}

impl Tags {
    /// Returns the marker between the reasoning and the answer.
    pub fn closing_marker(&self) -> Marker {
        match &self.close {
            Tag::Text(text) => Marker::Text(text.clone()),
            Tag::Token(token) => Marker::Tokens(vec![*token]),
        }
    }
}

impl HarmonyTokens {
    /// Returns the tokens of a tokenizer, or `None` if it lacks a required one.
    fn from_codec(codec: &dyn TextCodec) -> Result<Option<HarmonyTokens>, CodecError> {
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
