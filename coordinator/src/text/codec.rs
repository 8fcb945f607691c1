//! The codec of a real model: text processes, as many as ask at once.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use model::tokenizer::{GrowingTokens, Piece};

use super::message::{TextFrom, TextReply, TextRequest, Word};
use super::process::{TextError, TextLimits, TextProcess};
use crate::boundary::codec::{Conversation, TextCodec, TextStream};

/// A model's tokenizer and chat template, in processes of their own.
#[derive(Debug)]
pub struct ProcessCodec {
    from: TextFrom,
    limits: TextLimits,
    /// Processes that nobody asks anything at the moment.
    idle: Mutex<Vec<TextProcess>>,
    losses: Mutex<Losses>,
    /// Tokens of the model.
    vocab_size: usize,
    vocabulary: OnceLock<Vec<Word>>,
    tools_template: OnceLock<Option<String>>,
}

/// Processes that ended while they were asked something.
#[derive(Debug, Default)]
struct Losses {
    /// Since the last answer.
    in_a_row: u32,
    /// How the last of too many was lost.
    given_up: Option<String>,
}

impl ProcessCodec {
    /// Starts a first process; `None` where the model has no tokenizer.
    ///
    /// # Errors
    /// What is wrong with the model's files.
    pub fn start(
        from: TextFrom,
        vocab_size: usize,
        limits: TextLimits,
    ) -> Result<Option<ProcessCodec>, TextError> {
        let Some(first) = TextProcess::start(&from, limits)? else { return Ok(None) };
        let (idle, losses) = (Mutex::new(vec![first]), Mutex::default());
        Ok(Some(ProcessCodec {
            from,
            limits,
            idle,
            losses,
            vocab_size,
            vocabulary: OnceLock::new(),
            tools_template: OnceLock::new(),
        }))
    }

    /// Ends all processes but one, after many were asked at once.
    pub fn keep_one(&self) {
        lock(&self.idle).truncate(1);
    }

    /// What each of the model's tokens spells, for a grammar: nothing for special ones.
    ///
    /// # Errors
    /// A process that failed; the end of a sentence.
    pub fn words(&self) -> Result<Vec<Vec<u8>>, String> {
        let spelled = |word: &Word| if word.is_special { Vec::new() } else { word.bytes.clone() };
        Ok(self.vocabulary()?.iter().map(spelled).collect())
    }

    /// The tokens of a text within another one; `None` where it has none.
    pub fn part(&self, text: &str) -> Option<Vec<u32>> {
        self.tokens(&TextRequest::EncodePart { text: text.to_owned() }).ok()
    }

    fn vocabulary(&self) -> Result<&[Word], String> {
        if let Some(known) = self.vocabulary.get() {
            return Ok(known);
        }
        match self.ask(&TextRequest::Vocabulary { tokens: self.vocab_size })? {
            TextReply::Vocabulary(words) => Ok(self.vocabulary.get_or_init(|| words)),
            _ => Err(unexpected()),
        }
    }

    fn ask(&self, request: &TextRequest) -> Result<TextReply, String> {
        if let Some(reason) = &lock(&self.losses).given_up {
            return Err(reason.clone());
        }
        let idle = lock(&self.idle).pop();
        let process = idle.map_or_else(|| self.start_another(), Ok);
        let reply = process.and_then(|mut process| {
            let reply = process.ask(request);
            if matches!(reply, Ok(_) | Err(TextError::Refused(_))) {
                lock(&self.idle).push(process);
            }
            reply
        });
        let mut losses = lock(&self.losses);
        match reply {
            Ok(reply) => {
                losses.in_a_row = 0;
                Ok(reply)
            }
            Err(TextError::Refused(reason)) => Err(reason),
            Err(error) => {
                losses.in_a_row = losses.in_a_row.saturating_add(1);
                let reason = error.to_string();
                let losses_max = self.limits.losses;
                if losses.in_a_row >= losses_max {
                    losses.given_up = Some(format!("{reason}, {losses_max} times in a row"));
                }
                Err(reason)
            }
        }
    }

    fn start_another(&self) -> Result<TextProcess, TextError> {
        TextProcess::start(&self.from, self.limits)?
            .ok_or_else(|| TextError::Refused("the model's tokenizer is gone".to_owned()))
    }

    fn tokens(&self, request: &TextRequest) -> Result<Vec<u32>, String> {
        match self.ask(request)? {
            TextReply::Tokens(tokens) => Ok(tokens),
            _ => Err(unexpected()),
        }
    }
}

impl TextCodec for ProcessCodec {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokens(&TextRequest::Encode { text: text.to_owned() })
    }

    fn encode_part(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokens(&TextRequest::EncodePart { text: text.to_owned() })
    }

    fn encode_chat(&self, chat: &Conversation, now_s: u64) -> Result<Vec<u32>, String> {
        self.tokens(&TextRequest::EncodeChat { chat: chat.clone(), now_s })
    }

    fn tools_template(&self) -> Result<Option<String>, String> {
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

    fn special_token(&self, text: &str) -> Result<Option<u32>, String> {
        match self.ask(&TextRequest::SpecialToken { text: text.to_owned() })? {
            TextReply::SpecialToken(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }

    fn bytes(&self, token: u32) -> Vec<u8> {
        let word = self.vocabulary().ok().and_then(|words| words.get(token as usize));
        word.map(|word| word.bytes.clone()).unwrap_or_default()
    }

    fn pieces(&self, tokens: &[u32]) -> Result<Vec<String>, String> {
        match self.ask(&TextRequest::Pieces { tokens: tokens.to_vec() })? {
            TextReply::Pieces(pieces) if pieces.len() == tokens.len() + 1 => Ok(pieces),
            _ => Err(unexpected()),
        }
    }

    fn stream(&self) -> Box<dyn TextStream + '_> {
        Box::new(ProcessStream { codec: self, growing: GrowingTokens::default() })
    }
}

struct ProcessStream<'a> {
    codec: &'a ProcessCodec,
    growing: GrowingTokens,
}

impl TextStream for ProcessStream<'_> {
    fn push(&mut self, token: u32) -> Result<String, String> {
        self.growing.push(token);
        let (tokens, emitted) = self.growing.as_parts();
        let request = TextRequest::NextPiece { tokens: tokens.to_vec(), emitted, is_last: false };
        match self.codec.ask(&request)? {
            TextReply::NextPiece(Some(Piece { text, tokens })) => {
                self.growing.emit(tokens);
                Ok(text)
            }
            TextReply::NextPiece(None) => Ok(String::new()),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> String {
    "the process for its tokenizer answered something else".to_owned()
}

/// A thread that panicked left whole values behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
