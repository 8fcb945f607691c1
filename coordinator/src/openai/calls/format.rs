//! How models write calls, told by what their chat templates say.

use grammar::{CallSyntax, Word};

use super::{harmony, hermes, llama, mistral, qwen_coder};

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFormat {
    /// Hermes, Qwen 2.5 and 3, and those trained alike: JSON between tags.
    Hermes,
    /// Llama 3: JSON alone.
    Llama,
    /// Mistral's first: a list of JSON behind a token.
    MistralList,
    /// Mistral's later: a name and JSON, each behind a token.
    MistralNamed,
    /// Qwen3-Coder and Qwen3.5: each argument between tags.
    QwenCoder,
    /// OpenAI's Harmony, of gpt-oss: a message to a function.
    Harmony,
}

/// Those that are known, for a sentence.
pub const KNOWN: &str =
    "Hermes and Qwen 2.5 and 3, Qwen3-Coder and Qwen3.5, Llama 3, Mistral, and gpt-oss";

impl CallFormat {
    /// The one that a template shows its model; `None` where it shows none that is known.
    pub fn of_template(template: &str) -> Option<CallFormat> {
        let formats = [
            (CallFormat::Harmony, harmony::is_shown(template)),
            (CallFormat::MistralNamed, mistral::is_named(template)),
            (CallFormat::MistralList, mistral::is_list(template)),
            (CallFormat::Hermes, hermes::is_shown(template)),
            (CallFormat::QwenCoder, qwen_coder::is_shown(template)),
            (CallFormat::Llama, llama::is_shown(template)),
        ];
        let found = formats.into_iter().find(|(_, is_shown)| *is_shown && takes_tools(template));
        found.map(|(format, _)| format)
    }

    /// How calls are written with a tokenizer that says which token is a text and no part of
    /// others.
    ///
    /// # Errors
    /// A tokenizer that does not answer.
    pub fn syntax(
        self,
        special: &dyn Fn(&str) -> Result<Option<u32>, String>,
    ) -> Result<CallSyntax, String> {
        let marker = |name: &str| {
            let token = special(name)?;
            Ok(token.map_or_else(|| Word::Text(name.to_owned()), Word::Token))
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

    /// Whether one answer can have several calls: Llama's templates refuse them in a conversation,
    /// and a message to a function ends the turn of gpt-oss.
    pub fn takes_several(self) -> bool {
        !matches!(self, CallFormat::Llama | CallFormat::Harmony)
    }
}

/// Whether a template tells its model of functions.
pub fn takes_tools(template: &str) -> bool {
    template.contains("tools")
}
