//! Codec of a real model: text processes, as many as there are concurrent requests.

use std::sync::OnceLock;

use engine_api::codec::{CodecError, Conversation, TextCodec, TextContext, TextStream};
use text::tokenizer::{GrowingTokens, TextPiece};

use super::message::{TextReply, TextRequest, TextSource, VocabularyEntry};
use super::pool::TextProcessPool;
use super::process::{TextError, TextLimits, TextProcess};

/// A model's tokenizer and chat template in separate processes.
#[derive(Debug)]
pub struct ProcessCodec {
    pool: TextProcessPool<TextProcess>,
    /// Number of token ids of the model.
    vocab_size: usize,
    vocabulary: OnceLock<Vec<VocabularyEntry>>,
    tools_template: OnceLock<Option<String>>,
}

impl ProcessCodec {
    /// Starts the first process; returns `None` if the model has no tokenizer.
    ///
    /// # Errors
    /// Returns an error if the model's files are invalid or the process cannot be started.
    pub fn start(
        from: TextSource,
        vocab_size: usize,
        limits: TextLimits,
    ) -> Result<Option<ProcessCodec>, TextError> {
        let Some(first) = TextProcess::start(&from, limits)? else { return Ok(None) };
        let start = move || {
            TextProcess::start(&from, limits)?
                .ok_or_else(|| TextError::Refused("the model's tokenizer was removed".to_owned()))
        };
        Ok(Some(ProcessCodec {
            pool: TextProcessPool::new(first, limits.max_failures, Box::new(start)),
            vocab_size,
            vocabulary: OnceLock::new(),
            tools_template: OnceLock::new(),
        }))
    }

    /// Ends all processes but one, after a phase of many concurrent requests.
    pub fn shrink_to_one(&self) {
        self.pool.shrink_to_one();
    }

    /// Returns the bytes of each of the model's tokens, for a grammar; special tokens have none.
    ///
    /// # Errors
    /// Returns an error if processes keep ending.
    pub fn token_bytes(&self) -> Result<Vec<Vec<u8>>, CodecError> {
        let spelled =
            |word: &VocabularyEntry| if word.is_special { Vec::new() } else { word.bytes.clone() };
        Ok(self.vocabulary()?.iter().map(spelled).collect())
    }

    /// Returns the tokenizer's tokens for the beginning and the end of a text.
    ///
    /// # Errors
    /// Returns an error if processes keep ending.
    pub fn boundary_tokens(&self) -> Result<(Option<u32>, Option<u32>), CodecError> {
        match self.ask(&TextRequest::BoundaryTokens)? {
            TextReply::BoundaryTokens { bos, eos } => Ok((bos, eos)),
            _ => Err(unexpected()),
        }
    }

    /// Returns the tokens of a text that is part of another one; `None` if it cannot be tokenised.
    pub fn try_encode_part(&self, text: &str) -> Option<Vec<u32>> {
        self.tokens(&TextRequest::EncodePart { text: text.to_owned() }).ok()
    }

    fn vocabulary(&self) -> Result<&[VocabularyEntry], CodecError> {
        if let Some(known) = self.vocabulary.get() {
            return Ok(known);
        }
        match self.ask(&TextRequest::Vocabulary { tokens: self.vocab_size })? {
            TextReply::Vocabulary(words) => Ok(self.vocabulary.get_or_init(|| words)),
            _ => Err(unexpected()),
        }
    }

    fn ask(&self, request: &TextRequest) -> Result<TextReply, CodecError> {
        self.pool.ask(request)
    }

    fn tokens(&self, request: &TextRequest) -> Result<Vec<u32>, CodecError> {
        match self.ask(request)? {
            TextReply::Tokens(tokens) => Ok(tokens),
            TextReply::TooLong { tokens } => Err(CodecError::TooLong { tokens }),
            _ => Err(unexpected()),
        }
    }
}

impl TextCodec for ProcessCodec {
    fn encode(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, CodecError> {
        self.tokens(&TextRequest::Encode { text: text.to_owned(), max_tokens })
    }

    fn encode_part(&self, text: &str) -> Result<Vec<u32>, CodecError> {
        self.tokens(&TextRequest::EncodePart { text: text.to_owned() })
    }

    fn encode_chat(
        &self,
        chat: &Conversation,
        now_s: u64,
        max_tokens: usize,
    ) -> Result<Vec<u32>, CodecError> {
        self.tokens(&TextRequest::EncodeChat { chat: chat.clone(), now_s, max_tokens })
    }

    fn tools_template(&self) -> Result<Option<String>, CodecError> {
        if let Some(known) = self.tools_template.get() {
            return Ok(known.clone());
        }
        match self.ask(&TextRequest::ToolsTemplate)? {
            TextReply::ToolsTemplate(found) => {
                Ok(self.tools_template.get_or_init(|| found).clone())
            }
            _ => Err(unexpected()),
        }
    }

    fn special_token(&self, text: &str) -> Result<Option<u32>, CodecError> {
        match self.ask(&TextRequest::SpecialToken { text: text.to_owned() })? {
            TextReply::SpecialToken(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        let word = self.vocabulary().ok().and_then(|words| words.get(token as usize));
        word.map(|word| word.bytes.clone()).unwrap_or_default()
    }

    fn pieces(&self, context: &TextContext, tokens: &[u32]) -> Result<Vec<String>, CodecError> {
        let request = TextRequest::Pieces { context: context.clone(), tokens: tokens.to_vec() };
        match self.ask(&request)? {
            TextReply::Pieces(pieces) if pieces.len() == tokens.len() + 1 => Ok(pieces),
            _ => Err(unexpected()),
        }
    }

    fn stream(&self, context: &TextContext) -> Box<dyn TextStream + '_> {
        let (tokens, context) = (GrowingTokens::default(), Some(context.clone()));
        Box::new(ProcessStream { codec: self, context, tokens })
    }
}

struct ProcessStream<'a> {
    codec: &'a ProcessCodec,
    /// Context that the sequence follows; `None` once the sequence has begun.
    context: Option<TextContext>,
    tokens: GrowingTokens,
}

impl ProcessStream<'_> {
    fn begin(&mut self) -> Result<(), CodecError> {
        let Some(context) = self.context.clone() else { return Ok(()) };
        match self.codec.ask(&TextRequest::BeginStream { context })? {
            TextReply::StreamState { tokens, emitted } if emitted <= tokens.len() => {
                self.tokens.grow_from(tokens, emitted);
                self.context = None;
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }
}

impl TextStream for ProcessStream<'_> {
    fn push(&mut self, token: u32) -> Result<String, CodecError> {
        self.tokens.push(token);
        self.begin()?;
        let (tokens, emitted) = self.tokens.as_parts();
        let request = TextRequest::NextPiece { tokens: tokens.to_vec(), emitted, is_last: false };
        match self.codec.ask(&request)? {
            TextReply::NextPiece(Some(TextPiece { text, tokens })) => {
                self.tokens.emit(tokens);
                Ok(text)
            }
            TextReply::NextPiece(None) => Ok(String::new()),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> CodecError {
    let sentence = "the tokenizer process sent an unexpected reply";
    CodecError::Unavailable(sentence.to_owned())
}
