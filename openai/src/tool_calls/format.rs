//! Formats of tool calls, detected from chat templates.

use grammar::{CallSyntax, SyntaxElement};

use super::{harmony, hermes, llama, mistral, qwen_coder};

/// A format in which models write tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// JSON between tags: Hermes, Qwen 2.5 and 3, and models trained in the same way.
    Hermes,
    /// JSON without tags: Llama 3.
    Llama,
    /// A list of JSON objects after a token: earlier models of Mistral.
    MistralList,
    /// A name and JSON, each after a token: later models of Mistral.
    MistralNamed,
    /// Each argument between its own tags: Qwen3-Coder and Qwen3.5.
    QwenCoder,
    /// A message to a function in OpenAI's Harmony format: gpt-oss.
    Harmony,
}

/// Models whose formats are known, as part of a sentence.
pub const KNOWN_FORMATS: &str =
    "Hermes and Qwen 2.5 and 3, Qwen3-Coder and Qwen3.5, Llama 3, Mistral, and gpt-oss";

impl CallFormat {
    /// Returns the format that a chat template shows to its model, or `None` if it shows no known
    /// format.
    pub fn from_template(template: &str) -> Option<CallFormat> {
        let formats = [
            (CallFormat::Harmony, harmony::matches_template(template)),
            (CallFormat::MistralNamed, mistral::matches_named_template(template)),
            (CallFormat::MistralList, mistral::matches_list_template(template)),
            (CallFormat::Hermes, hermes::matches_template(template)),
            (CallFormat::QwenCoder, qwen_coder::matches_template(template)),
            (CallFormat::Llama, llama::matches_template(template)),
        ];
        let found = formats.into_iter().find(|(_, is_shown)| *is_shown && supports_tools(template));
        found.map(|(format, _)| format)
    }

    /// Returns the syntax of calls in this format. `special` returns the token that represents a
    /// text and is not part of other texts, or `None` if the tokenizer has none.
    ///
    /// # Errors
    /// Returns the error of `special` if the tokenizer does not answer.
    pub fn syntax(
        self,
        special: &dyn Fn(&str) -> Result<Option<u32>, String>,
    ) -> Result<CallSyntax, String> {
        let marker = |name: &str| {
            let token = special(name)?;
            Ok(token.map_or_else(|| SyntaxElement::Text(name.to_owned()), SyntaxElement::Token))
        };
        match self {
            CallFormat::Hermes => hermes::syntax(&marker),
            CallFormat::Llama => llama::syntax(&marker),
            CallFormat::MistralList => mistral::list_syntax(&marker),
            CallFormat::MistralNamed => mistral::named_syntax(&marker),
            CallFormat::QwenCoder => qwen_coder::syntax(&marker),
            CallFormat::Harmony => harmony::syntax(&marker),
        }
    }

    /// Returns true if an answer may contain several calls. Llama's templates refuse several calls
    /// in a conversation, and a message to a function ends the turn of gpt-oss.
    pub fn supports_parallel_calls(self) -> bool {
        !matches!(self, CallFormat::Llama | CallFormat::Harmony)
    }
}

/// Returns true if a chat template describes functions to its model.
pub fn supports_tools(template: &str) -> bool {
    template.contains("tools")
}
