//! How conversations become prompts, and answers to them messages, where no request says it.

use std::borrow::Cow;

use super::body::RawPrompt;
use super::reasoning::syntax::ReasoningSyntax;
use crate::boundary::codec::{CodecError, TextCodec};

/// What a user chooses for all chats.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatOptions {
    /// Variables of the chat template for chats that do not set them: names and JSON texts.
    pub variables: Vec<(String, String)>,
    pub reasoning: ReasoningFormat,
}

/// Where the thoughts of a model go that thinks before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Into `reasoning_content`, as at `DeepSeek`.
    #[default]
    Apart,
    /// They stay in the answer as the model writes them.
    Within,
}

/// The same, for one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatRules {
    variables: Vec<(String, String)>,
    /// How thoughts are told apart; `None` where they are not.
    pub reasoning: Option<ReasoningSyntax>,
}

impl ChatRules {
    /// For a model, which has no chats without a `codec`.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    pub fn new(
        options: &ChatOptions,
        codec: Option<&dyn TextCodec>,
    ) -> Result<ChatRules, CodecError> {
        let codec = codec.filter(|_| options.reasoning == ReasoningFormat::Apart);
        let reasoning = codec.map(ReasoningSyntax::of).transpose()?.flatten();
        Ok(ChatRules { variables: options.variables.clone(), reasoning })
    }

    /// A prompt with the variables that it does not set.
    pub fn with_variables<'p>(&self, prompt: &'p RawPrompt) -> Cow<'p, RawPrompt> {
        let RawPrompt::Chat(chat) = prompt else { return Cow::Borrowed(prompt) };
        let is_set = |name: &str| chat.variables.iter().any(|(set, _)| set == name);
        let lacking: Vec<_> =
            self.variables.iter().filter(|(name, _)| !is_set(name)).cloned().collect();
        if lacking.is_empty() {
            return Cow::Borrowed(prompt);
        }
        let mut chat = chat.clone();
        chat.variables.extend(lacking);
        Cow::Owned(RawPrompt::Chat(chat))
    }
}
