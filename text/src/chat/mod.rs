//! Chat templates: Jinja, rendered as by Hugging Face's tokenizers. `python`, `python_repr`,
//! `concat` and `json` format values as Python does, `dates` provides dates to templates that
//! request them, `calls` has the forms of tool calls, and `bounds` limits memory and time.
//! `built_in` has templates of models whose files have none.

use std::io::{self, Write};
use std::time::SystemTime;

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;

mod bounds;
pub mod built_in;
mod calls;
mod concat;
mod dates;
mod json;
mod null_content;
mod python;
mod python_repr;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
    /// Further fields that the template receives, such as `name` and `tool_calls`. A `content` in
    /// this map is null and indicates that the message has no content, which differs from an empty
    /// one.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl ChatMessage {
    /// Creates a turn with further fields, given as names and JSON texts. Invalid JSON is left out.
    pub fn new(role: String, content: String, more: Vec<(String, String)>) -> ChatMessage {
        let more = more.into_iter().filter_map(|(name, text)| {
            let value = serde_json::from_str(&text).ok()?;
            Some((name, value))
        });
        ChatMessage { role, content, more: more.collect() }
    }

    /// Returns the message with its `reasoning_content` also under the field name that the template
    /// uses.
    #[must_use]
    pub fn with_reasoning_for(mut self, template: &ChatTemplate) -> ChatMessage {
        let thoughts = self.more.get("reasoning_content").cloned();
        if let Some(thoughts) = thoughts.filter(|_| template.text.contains("message.thinking")) {
            self.more.entry("thinking").or_insert(thoughts);
        }
        self
    }

    /// Returns the message with the role `developer`, OpenAI's newer name for `system`, replaced by
    /// `system` if the template does not know it: templates omit or refuse messages of unknown
    /// roles.
    #[must_use]
    pub fn with_role_for(mut self, template: &ChatTemplate) -> ChatMessage {
        if self.role == DEVELOPER && !template.text.contains(DEVELOPER) {
            SYSTEM.clone_into(&mut self.role);
        }
        self
    }

    /// Returns the size of the message's fields in bytes.
    fn size_bytes(&self) -> usize {
        let more = self.more.iter().map(|(name, value)| name.len() + value.to_string().len());
        self.role.len() + self.content.len() + more.sum::<usize>()
    }
}

/// Reason for which a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("the model's chat template is not valid Jinja: {0}")]
    Template(String),
    /// The template's own message if it raised an exception.
    #[error("the model's chat template refuses this conversation: {0}")]
    Render(String),
}

/// A compiled template and the special tokens that it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    text: String,
    /// True if the template checks whether the content of a message is null.
    keeps_null: bool,
    call_rendering: calls::CallRendering,
    bos_token: String,
    eos_token: String,
}

const NAME: &str = "chat";

const DEVELOPER: &str = "developer";
const SYSTEM: &str = "system";

/// Marker at the end of a message that is continued. Its trailing space shows whether the template
/// strips messages.
const END_OF_MESSAGE: &str = "\u{f8ff}end of the message\u{f8ff} ";

/// Maximum number of steps that a template may take: a constant and an allowance per message.
const MAX_STEPS: u64 = 5_000_000;
const MAX_STEPS_PER_MESSAGE: u64 = 50_000;

/// Maximum number of bytes that a template may write: a constant and an allowance per byte of the
/// conversation.
const MAX_OUTPUT_BYTES: usize = 64 << 20;
const MAX_OUTPUT_BYTES_PER_BYTE: usize = 4;

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// Text that is not valid Jinja.
    pub fn new(
        template: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<ChatTemplate, ChatError> {
        let mut environment = Environment::new();
        // The configuration of Jinja in transformers.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        bounds::limit_filters(&mut environment);
        python::add_python_methods(&mut environment);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", json::to_json);
        let template = python::with_plain_line_ends(template);
        let plain = python::without_generation_tags(&template);
        environment
            .add_template_owned(NAME, concat::with_concat_calls(&plain))
            // Error messages refer to the template as it was written.
            .or_else(|_| environment.add_template_owned(NAME, plain))
            .map_err(|error| ChatError::Template(error.to_string()))?;
        Ok(ChatTemplate {
            environment,
            keeps_null: null_content::tests_for_null(&template),
            call_rendering: calls::CallRendering::from_template(&template),
            text: template.into_owned(),
            bos_token: bos_token.unwrap_or_default().to_owned(),
            eos_token: eos_token.unwrap_or_default().to_owned(),
        })
    }

    /// Returns the text of the template.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text up to the start of the assistant's answer. `tools` are the available
    /// functions as JSON texts, `variables` are names and JSON texts of further template variables,
    /// and `now` is the current date for the template.
    ///
    /// # Errors
    /// A conversation that the template refuses.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        tools: &[String],
        variables: &[(String, String)],
        now: SystemTime,
    ) -> Result<String, ChatError> {
        self.written(messages, tools, variables, true, now)
    }

    /// Renders a conversation without the prompt that begins an answer.
    ///
    /// # Errors
    /// See [`ChatTemplate::render`].
    pub fn render_without_generation_prompt(
        &self,
        messages: &[ChatMessage],
        tools: &[String],
        variables: &[(String, String)],
        now: SystemTime,
    ) -> Result<String, ChatError> {
        self.written(messages, tools, variables, false, now)
    }

    /// Returns the text up to the end of the last message, which the assistant continues.
    ///
    /// # Errors
    /// See [`ChatTemplate::render`]; in addition, a template that leaves out the content of the
    /// message.
    pub fn render_continued(
        &self,
        messages: &[ChatMessage],
        tools: &[String],
        variables: &[(String, String)],
        now: SystemTime,
    ) -> Result<String, ChatError> {
        let mut messages = messages.to_vec();
        if let Some(last) = messages.last_mut() {
            last.content.push_str(END_OF_MESSAGE);
        }
        let mut text = self.written(&messages, tools, variables, false, now)?;
        // A template that strips messages also strips the end of this one.
        let (end, is_stripped) = match text.rfind(END_OF_MESSAGE) {
            Some(end) => (end, false),
            None => {
                let found = text.rfind(END_OF_MESSAGE.trim_end());
                let left_out = || {
                    let words = "it leaves out the message that is to be continued";
                    ChatError::Render(words.to_owned())
                };
                (found.ok_or_else(left_out)?, true)
            }
        };
        text.truncate(end);
        if is_stripped {
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    fn written(
        &self,
        messages: &[ChatMessage],
        tools: &[String],
        variables: &[(String, String)],
        adds_prompt: bool,
        now: SystemTime,
    ) -> Result<String, ChatError> {
        let refused = |error: Error| {
            let detail = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            ChatError::Render(detail)
        };
        let mut environment = self.environment.clone();
        environment
            .add_function("strftime_now", move |format: String| dates::strftime(&format, now));
        environment.set_fuel(Some(MAX_STEPS + MAX_STEPS_PER_MESSAGE * messages.len() as u64));
        let template = environment.get_template(NAME).map_err(refused)?;
        let given = messages.iter().map(ChatMessage::size_bytes).sum::<usize>()
            + tools.iter().map(String::len).sum::<usize>()
            + variables.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
        let limit =
            given.saturating_mul(MAX_OUTPUT_BYTES_PER_BYTE).saturating_add(MAX_OUTPUT_BYTES);
        let mut output = LimitedBuffer { text: Vec::new(), limit, exceeded: false };
        let rendered = template.render_captured_to(
            context! {
                messages => null_content::messages_value(
                    &self.call_rendering.apply(messages),
                    self.keeps_null,
                ),
                add_generation_prompt => adds_prompt,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
                // transformers passes these as None, and templates test "is not none".
                tools => tools_value(tools)?,
                documents => (),
                // The first of several variables with one name counts, so the ones above cannot be
                // overridden.
                ..variables_value(variables)?
            },
            &mut output,
        );
        if output.exceeded {
            return Err(ChatError::Render(format!("it writes more than {limit} bytes")));
        }
        rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                ChatError::Render("it takes more steps than a conversation may need".into())
            }
            _ => refused(error),
        })?;
        String::from_utf8(output.text).map_err(|error| ChatError::Render(error.to_string()))
    }
}

/// Converts the functions to a template value; None if there are none.
fn tools_value(tools: &[String]) -> Result<Value, ChatError> {
    if tools.is_empty() {
        return Ok(Value::from(()));
    }
    let read = |text: &String| serde_json::from_str::<serde_json::Value>(text);
    let tools: Result<Vec<_>, _> = tools.iter().map(read).collect();
    let tools = tools.map_err(|error| ChatError::Render(error.to_string()))?;
    Ok(Value::from_serialize(tools))
}

/// Converts the further variables to a template value.
fn variables_value(variables: &[(String, String)]) -> Result<Value, ChatError> {
    let read = |(name, text): &(String, String)| {
        let value = serde_json::from_str::<serde_json::Value>(text);
        value.map(|value| (name.clone(), value))
    };
    let variables: Result<serde_json::Map<_, _>, _> = variables.iter().map(read).collect();
    let variables = variables.map_err(|error| ChatError::Render(error.to_string()))?;
    Ok(Value::from_serialize(variables))
}

/// Output buffer of limited size.
struct LimitedBuffer {
    text: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl Write for LimitedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.text.len() {
            self.exceeded = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
