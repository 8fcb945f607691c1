//! A model's tokenizer and chat template, in the current process.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use engine_api::codec::{ChatTurn, Conversation, TextContext};
use model::source::gguf::GgufSource;
use text::chat::built_in::template_of;
use text::chat::{ChatMessage, ChatTemplate};
use text::gguf_tokenizer::GgufTokenizer;
use text::tokenizer::{TextPiece, TextTokenizer, TokenizerError};
use text::tokenizer_config::TokenizerConfig;

use super::message::{TextSource, VocabularyEntry};

/// A model's tokenizer and chat templates, to convert text to tokens and back.
#[derive(Debug)]
pub struct ModelText {
    tokenizer: TextTokenizer,
    template: Option<ChatTemplate>,
    /// Template of conversations with functions, if there is a separate one.
    tools_template: Option<ChatTemplate>,
    /// The tokenizer's tokens for the beginning and the end of a text.
    boundary_tokens: (Option<u32>, Option<u32>),
}

impl ModelText {
    /// Reads a model's files; returns `None` if the model has no tokenizer.
    ///
    /// # Errors
    /// Returns a sentence without its full stop if a file is invalid.
    pub fn open(from: &TextSource) -> anyhow::Result<Option<ModelText>> {
        match from {
            TextSource::Directory { path, family } => {
                let Some(found) = TextTokenizer::from_directory(path, *family)? else {
                    return Ok(None);
                };
                let mut config = TokenizerConfig::from_directory(path)?;
                if config.chat_template.is_none() {
                    config.chat_template = template_of(*family).map(str::to_owned);
                }
                Ok(Some(ModelText::new(found, &config)?))
            }
            TextSource::Gguf { path } => open_gguf(path),
        }
    }

    fn new(tokenizer: TextTokenizer, config: &TokenizerConfig) -> anyhow::Result<ModelText> {
        let template = |text: &Option<String>| {
            let text = text.as_deref();
            let (bos, eos) = (config.bos_token.as_deref(), config.eos_token.as_deref());
            text.map(|text| ChatTemplate::new(text, bos, eos)).transpose()
        };
        let (template, tools_template) =
            (template(&config.chat_template)?, template(&config.tools_template)?);
        let token = |text: &Option<String>| tokenizer.token_id(text.as_deref()?);
        let boundary_tokens = (token(&config.bos_token), token(&config.eos_token));
        Ok(ModelText { tokenizer, template, tools_template, boundary_tokens })
    }

    /// Returns the token ids of a raw prompt of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// Returns an error if the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, max_tokens: usize) -> anyhow::Result<EncodeOutcome> {
        self.encode_within(text, true, max_tokens)
    }

    fn encode_within(
        &self,
        text: &str,
        add_special: bool,
        max_tokens: usize,
    ) -> anyhow::Result<EncodeOutcome> {
        if let Some(tokens) = self.tokenizer.excess(text, max_tokens)? {
            return Ok(EncodeOutcome::TooLong { tokens });
        }
        Ok(EncodeOutcome::Tokens(self.tokenizer.encode(text, add_special)?))
    }

    /// Returns the token ids of a text that is part of another one.
    ///
    /// # Errors
    /// Returns an error if the vocabulary cannot express the text.
    pub fn encode_part(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, false)?)
    }

    /// Returns the token ids of a conversation, at most `max_tokens`, rendered as of `now_s` in
    /// seconds since 1970.
    ///
    /// # Errors
    /// Returns an error if there is no template, or if it refuses the conversation.
    pub fn encode_chat(
        &self,
        chat: Conversation,
        now_s: u64,
        max_tokens: usize,
    ) -> anyhow::Result<EncodeOutcome> {
        let with_tools = (!chat.tools.is_empty()).then(|| self.with_tools()).flatten();
        let Some(template) = with_tools.or(self.template.as_ref()) else {
            anyhow::bail!("this model has no chat template; specify a prompt instead of messages")
        };
        let Conversation { turns, tools, variables, continues_last_turn, omits_generation_prompt } =
            chat;
        let message = |ChatTurn { role, content, extra_fields }| {
            ChatMessage::new(role, content, extra_fields)
                .with_reasoning_for(template)
                .with_role_for(template)
        };
        let messages: Vec<ChatMessage> = turns.into_iter().map(message).collect();
        let now = UNIX_EPOCH + Duration::from_secs(now_s);
        let rendered = if continues_last_turn {
            template.render_continued(&messages, &tools, &variables, now)?
        } else if omits_generation_prompt {
            template.render_without_generation_prompt(&messages, &tools, &variables, now)?
        } else {
            template.render(&messages, &tools, &variables, now)?
        };
        // The template writes the special tokens itself; adding them again would double the BOS.
        self.encode_within(&rendered, false, max_tokens)
    }

    fn with_tools(&self) -> Option<&ChatTemplate> {
        self.tools_template.as_ref().or(self.template.as_ref())
    }

    /// Returns the text of the template that renders conversations with functions.
    pub fn tools_template(&self) -> Option<&str> {
        self.with_tools().map(ChatTemplate::text)
    }

    /// Returns the tokenizer's tokens for the beginning and the end of a text.
    pub fn boundary_tokens(&self) -> (Option<u32>, Option<u32>) {
        self.boundary_tokens
    }

    /// Returns the special token with this text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_id(text).filter(|token| self.tokenizer.is_special(*token))
    }

    /// Returns the text that each of the tokens completes after a context, followed by the
    /// remainder at the end: one more text than there are tokens.
    ///
    /// # Errors
    /// Returns an error if the decoder refuses the tokens.
    pub fn pieces(
        &self,
        context: &TextContext,
        tokens: &[u32],
    ) -> Result<Vec<String>, TokenizerError> {
        let mut stream =
            self.tokenizer.stream_after(&context.tokens, context.keeps_leading_space)?;
        let mut pieces = Vec::with_capacity(tokens.len() + 1);
        for token in tokens {
            pieces.push(stream.push(*token)?.unwrap_or_default());
        }
        // Without tokens, an incomplete character of the context is neither completed nor ended.
        let rest = if tokens.is_empty() { None } else { stream.finish()? };
        pieces.push(rest.unwrap_or_default());
        Ok(pieces)
    }

    /// Returns the beginning of a sequence that follows a context: its tokens, and the number of
    /// them whose text has been emitted.
    ///
    /// # Errors
    /// Returns an error if the decoder refuses the tokens.
    pub fn begin_stream(&self, context: &TextContext) -> Result<(Vec<u32>, usize), TokenizerError> {
        let growing = self.tokenizer.grow_behind(&context.tokens, context.keeps_leading_space)?;
        let (tokens, emitted) = growing.as_parts();
        Ok((tokens.to_vec(), emitted))
    }

    /// See [`TextTokenizer::next_piece`].
    ///
    /// # Errors
    /// Returns an error if the decoder refuses the tokens.
    pub fn next_piece(
        &self,
        tokens: &[u32],
        emitted: usize,
        is_last: bool,
    ) -> Result<Option<TextPiece>, TokenizerError> {
        self.tokenizer.next_piece(tokens, emitted.min(tokens.len()), is_last)
    }

    /// Returns the bytes of each of the first `tokens` ids.
    pub fn vocabulary(&self, tokens: usize) -> Vec<VocabularyEntry> {
        let word = |token| VocabularyEntry {
            bytes: self.tokenizer.bytes(token),
            is_special: self.tokenizer.is_special(token),
        };
        (0..tokens as u32).map(word).collect()
    }
}

/// Result of tokenising a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncodeOutcome {
    Tokens(Vec<u32>),
    /// The text has more tokens than it may have: approximately `tokens`.
    TooLong {
        tokens: usize,
    },
}

fn open_gguf(path: &Path) -> anyhow::Result<Option<ModelText>> {
    let source = GgufSource::open(path)?;
    let shown = path.display().to_string();
    match GgufTokenizer::from_metadata(source.metadata(), &shown)? {
        Some(found) => Ok(Some(ModelText::new(found.text, &found.config)?)),
        None => Ok(None),
    }
}
