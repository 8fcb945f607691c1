//! Arguments for chat requests.

use clap::{Args, ValueEnum};
use openai::body::template_variables;
use openai::chats::{ChatOptions, ReasoningFormat};

/// Arguments for chat templates and reasoning.
#[derive(Debug, Default, Args)]
pub struct ChatArgs {
    /// Variables of the chat template for chats that do not set them, as a JSON object, e.g.
    /// '{"enable_thinking": false}'
    #[arg(long, value_name = "JSON", value_parser = parse_variables, help_heading = "Chats")]
    pub chat_template_kwargs: Option<TemplateVariables>,
    /// Format of the reasoning that a model writes before its answer
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value = "deepseek",
        help_heading = "Chats"
    )]
    pub reasoning_format: ReasoningChoice,
}

/// Variables of a chat template, as pairs of a name and a JSON text.
#[derive(Debug, Clone)]
pub struct TemplateVariables(Vec<(String, String)>);

/// Value of `--reasoning-format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ReasoningChoice {
    /// Return it separately from the answer, as reasoning_content
    #[default]
    #[value(alias = "auto")]
    Deepseek,
    /// Leave it in the answer as the model writes it
    None,
}

impl ChatArgs {
    /// Converts the arguments to options for chat requests.
    pub(super) fn options(&self) -> ChatOptions {
        let variables = self.chat_template_kwargs.clone();
        ChatOptions {
            variables: variables.map(|TemplateVariables(variables)| variables).unwrap_or_default(),
            reasoning: match self.reasoning_format {
                ReasoningChoice::Deepseek => ReasoningFormat::Separate,
                ReasoningChoice::None => ReasoningFormat::Inline,
            },
        }
    }
}

fn parse_variables(text: &str) -> Result<TemplateVariables, String> {
    let value = serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
    let variables = template_variables(&value);
    variables.map(TemplateVariables).map_err(|expected| format!("it must be {expected}"))
}
