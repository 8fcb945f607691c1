//! Formats of tool calls, detected from chat templates.

use grammar::{CallSyntax, SyntaxElement};

use super::{deepseek, glm, harmony, hermes, hy3, kimi, llama, minimax, mistral, qwen_coder};

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
    /// Each argument as a key and a value between tags: GLM-4.5 to 4.7, GLM-5.
    Glm,
    /// A list of calls with each argument between its own tags: MiniMax-M2.
    MiniMax,
    /// A list of calls between tokens, with JSON in a fenced block: DeepSeek V3 and R1.
    DeepSeekV3,
    /// A list of calls between tokens, with a name and JSON each: DeepSeek V3.1.
    DeepSeekV31,
    /// A list of calls with each argument between its own tags: DeepSeek V4.
    DeepSeekV4,
    /// A list of calls between tokens, with an id and JSON each: Kimi K2.
    KimiK2,
    /// A list of calls with each argument as a key and a value: Hy3.
    Hy3,
    /// The format of Hy3 with shorter tags: Hy3-preview.
    Hy3Preview,
}

/// Models whose formats are known, as part of a sentence.
pub const KNOWN_FORMATS: &str = "Hermes and Qwen 2.5 and 3, Qwen3-Coder and Qwen3.5, Llama 3, \
     Mistral, gpt-oss, GLM-4.5 to 5, MiniMax-M2, DeepSeek V3, V3.1 and V4, Kimi K2, and Hy3";

impl CallFormat {
    /// Returns the format that a chat template shows to its model, or `None` if it shows no known
    /// format.
    pub fn from_template(template: &str) -> Option<CallFormat> {
        let formats = [
            (CallFormat::Harmony, harmony::matches_template(template)),
            (CallFormat::MiniMax, minimax::matches_template(template)),
            (CallFormat::DeepSeekV3, deepseek::matches_fenced_template(template)),
            (CallFormat::DeepSeekV31, deepseek::matches_plain_template(template)),
            (CallFormat::DeepSeekV4, deepseek::matches_markup_template(template)),
            (CallFormat::KimiK2, kimi::matches_template(template)),
            (CallFormat::Hy3, hy3::matches_release_template(template)),
            (CallFormat::Hy3Preview, hy3::matches_preview_template(template)),
            (CallFormat::Glm, glm::matches_template(template)),
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
            CallFormat::Glm => glm::syntax(&marker),
            CallFormat::MiniMax => minimax::syntax(&marker),
            CallFormat::DeepSeekV3 => deepseek::fenced_syntax(&marker),
            CallFormat::DeepSeekV31 => deepseek::plain_syntax(&marker),
            CallFormat::DeepSeekV4 => deepseek::markup_syntax(&marker),
            CallFormat::KimiK2 => kimi::syntax(&marker),
            CallFormat::Hy3 => hy3::syntax(&marker, hy3::RELEASE_SUFFIX),
            CallFormat::Hy3Preview => hy3::syntax(&marker, ""),
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
