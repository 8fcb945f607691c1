//! Tokenizer with one token per byte.

use engine_api::codec::{ChatTurn, CodecError, Conversation, TextCodec, TextContext, TextStream};

/// Token at the beginning of a text.
pub const BOS: u32 = 256;
/// Token that ends an answer.
pub const EOS: u32 = 257;

/// Token that cannot be decoded: the tokenizer reports itself unavailable.
pub const SLEEP: u32 = 290;

/// Character that a chat encodes as `EOS`.
pub const END_OF_TEXT: char = '\u{3}';

/// Tokenizer whose tokens are the bytes of UTF-8, with `BOS` before a raw prompt, and a chat
/// template in angle brackets that describes tool calls as Hermes does.
#[derive(Debug)]
pub struct ByteCodec {
    /// `None` if the model has no chat template.
    template: Option<&'static str>,
    /// Strips the first space of a text, as SentencePiece decoders do.
    strips: bool,
}

impl ByteCodec {
    /// A tokenizer without a chat template.
    pub const PLAIN: ByteCodec = ByteCodec { template: None, strips: false };
    pub const STRIPPING: ByteCodec = ByteCodec { template: None, strips: true };
    pub const CHAT: ByteCodec = ByteCodec {
        template: Some("tools: <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>"),
        strips: false,
    };
    /// A model that thinks before it answers; with the variable `think`, prompts end within
    /// thoughts.
    pub const THINKING: ByteCodec = ByteCodec {
        template: Some(
            "tools: <think></think><tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>",
        ),
        strips: false,
    };

    /// Returns a tokenizer whose chat template has this text.
    pub const fn with_template(template: &'static str) -> ByteCodec {
        ByteCodec { template: Some(template), strips: false }
    }
}

impl TextCodec for ByteCodec {
    fn encode(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, CodecError> {
        if text.contains('\u{1}') {
            return Err(CodecError::Refused("the vocabulary has no such character".to_owned()));
        }
        if text.contains('\u{2}') {
            return Err(CodecError::Unavailable("the tokenizer is asleep".to_owned()));
        }
        if text.len() > max_tokens.saturating_mul(8) {
            return Err(CodecError::TooLong { tokens: text.len() });
        }
        Ok(std::iter::once(BOS).chain(text.bytes().map(u32::from)).collect())
    }

    fn encode_part(&self, text: &str) -> Result<Vec<u32>, CodecError> {
        Ok(self.encode(text, usize::MAX)?.split_off(1))
    }

    fn encode_chat(
        &self,
        chat: &Conversation,
        _now_s: u64,
        _max_tokens: usize,
    ) -> Result<Vec<u32>, CodecError> {
        if self.template.is_none() {
            return Err(CodecError::Refused("this model has no chat template".to_owned()));
        }
        let more = |turn: &ChatTurn| -> String {
            turn.extra_fields.iter().map(|(name, value)| format!(" {name}={value}")).collect()
        };
        let tools: String = chat.tools.iter().map(|tool| format!("<tool>{tool}")).collect();
        let turns = chat.turns.iter();
        let turns = turns.map(|turn| format!("<{}{}>{}", turn.role, more(turn), turn.content));
        let thinks = chat.variables.iter().any(|(name, value)| name == "think" && value == "true");
        let end = match (thinks, chat.continues_last_turn) {
            _ if chat.omits_generation_prompt => "<end>",
            (true, _) => "<think>\n",
            (false, true) => "<continued>",
            (false, false) => "",
        };
        let rendered = tools + &turns.collect::<String>() + end;
        let token = |byte| if byte == END_OF_TEXT as u8 { EOS } else { u32::from(byte) };
        Ok(rendered.bytes().map(token).collect())
    }

    fn tools_template(&self) -> Result<Option<String>, CodecError> {
        Ok(self.template.map(str::to_owned))
    }

    fn special_token(&self, _text: &str) -> Result<Option<u32>, CodecError> {
        Ok(None)
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).into_iter().collect()
    }

    fn pieces(&self, context: &TextContext, tokens: &[u32]) -> Result<Vec<String>, CodecError> {
        if tokens.contains(&SLEEP) {
            return Err(CodecError::Unavailable("the tokenizer is asleep".to_owned()));
        }
        let mut stream = ByteStream::after(context, self.strips);
        let mut pieces: Vec<String> = tokens.iter().map(|token| stream.take(*token)).collect();
        let rest = if tokens.is_empty() { Vec::new() } else { stream.waiting };
        pieces.push(String::from_utf8_lossy(&rest).into_owned());
        Ok(pieces)
    }

    fn stream(&self, context: &TextContext) -> Box<dyn TextStream + '_> {
        Box::new(ByteStream::after(context, self.strips))
    }
}

/// Decoder of the tokens of one text.
struct ByteStream {
    /// Bytes of an incomplete character.
    waiting: Vec<u8>,
    /// True if the next space is the first one of a text, which is stripped.
    strips: bool,
}

impl TextStream for ByteStream {
    fn push(&mut self, token: u32) -> Result<String, CodecError> {
        if token == SLEEP {
            return Err(CodecError::Unavailable("the tokenizer is asleep".to_owned()));
        }
        Ok(self.take(token))
    }
}

impl ByteStream {
    fn after(context: &TextContext, strips: bool) -> ByteStream {
        let mut stream = ByteStream { waiting: Vec::new(), strips };
        for token in &context.tokens {
            stream.take(*token);
        }
        stream.strips &= !context.keeps_leading_space;
        stream
    }

    fn take(&mut self, token: u32) -> String {
        let byte = u8::try_from(token).ok();
        if byte.is_some() && std::mem::take(&mut self.strips) && byte == Some(b' ') {
            return String::new();
        }
        self.waiting.extend(byte);
        match std::str::from_utf8(&self.waiting) {
            Ok(text) => {
                let text = text.to_owned();
                self.waiting.clear();
                text
            }
            Err(_) => String::new(),
        }
    }
}
