//! Defaults for chats: variables of the chat template, and the handling of reasoning.

use std::borrow::Cow;

use engine_api::codec::{CodecError, TextCodec};

use super::body::RawPrompt;
use super::reasoning::syntax::ReasoningSyntax;

/// Options of the user for all chats.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatOptions {
    /// Variables of the chat template for chats that do not set them, as names and JSON texts.
    pub variables: Vec<(String, String)>,
    pub reasoning: ReasoningFormat,
}

/// Destination of the reasoning of a model that thinks before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// The field `reasoning_content`, as in the API of `DeepSeek`.
    #[default]
    Separate,
    /// The answer itself, as the model writes it.
    Inline,
}

/// Options for chats, resolved for a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatRules {
    variables: Vec<(String, String)>,
    /// Syntax of reasoning; `None` if reasoning is not separated from answers.
    pub reasoning: Option<ReasoningSyntax>,
}

impl ChatRules {
    /// Resolves the options for a model, which has no chats if it has no `codec`.
    ///
    /// # Errors
    /// Returns an error if the tokenizer does not answer.
    pub fn new(
        options: &ChatOptions,
        codec: Option<&dyn TextCodec>,
    ) -> Result<ChatRules, CodecError> {
        let codec = codec.filter(|_| options.reasoning == ReasoningFormat::Separate);
        let reasoning = codec.map(ReasoningSyntax::detect).transpose()?.flatten();
        Ok(ChatRules { variables: options.variables.clone(), reasoning })
    }

    /// Returns a prompt with the variables that it does not set itself.
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
