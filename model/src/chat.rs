//! Chat templates: Jinja, as Hugging Face's tokenizers render them. `python` and `json` write
//! values as Python does, `dates` answers templates that ask for one, `bounds` keeps all within
//! limits.

use std::io::{self, Write};
use std::time::SystemTime;

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;

mod bounds;
mod dates;
mod json;
mod python;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// What else the template is told of it, such as `name` and `tool_calls`.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A turn with further fields, as names and JSON texts; what is no JSON is left out.
    pub fn new(role: String, content: String, more: Vec<(String, String)>) -> Message {
        let more = more.into_iter().filter_map(|(name, text)| {
            let value = serde_json::from_str(&text).ok()?;
            Some((name, value))
        });
        Message { role, content, more: more.collect() }
    }

    /// With its `reasoning_content` also under the name by which the template asks for it.
    #[must_use]
    pub fn with_thoughts_for(mut self, template: &ChatTemplate) -> Message {
        let thoughts = self.more.get("reasoning_content").cloned();
        if let Some(thoughts) = thoughts.filter(|_| template.text.contains("message.thinking")) {
            self.more.entry("thinking").or_insert(thoughts);
        }
        self
    }

    /// With the role `developer`, which is how OpenAI's newer models call `system`, under the name
    /// that the template knows: templates leave messages of unknown roles out, or refuse them.
    #[must_use]
    pub fn with_role_for(mut self, template: &ChatTemplate) -> Message {
        if self.role == DEVELOPER && !template.text.contains(DEVELOPER) {
            SYSTEM.clone_into(&mut self.role);
        }
        self
    }

    /// Bytes of what was given.
    fn given(&self) -> usize {
        let more = self.more.iter().map(|(name, value)| name.len() + value.to_string().len());
        self.role.len() + self.content.len() + more.sum::<usize>()
    }
}

/// Why a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("the model's chat template is not valid Jinja: {0}")]
    Template(String),
    /// The template's own words, when it raised them.
    #[error("the model's chat template refuses this conversation: {0}")]
    Render(String),
}

/// A compiled template with the tokens it may write.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    text: String,
    bos_token: String,
    eos_token: String,
}

const NAME: &str = "chat";

const DEVELOPER: &str = "developer";
const SYSTEM: &str = "system";

/// Stands at the end of a message that is continued; the blank tells whether ends are stripped.
const END_OF_MESSAGE: &str = "\u{f8ff}end of the message\u{f8ff} ";

/// Steps that a template may take: some for itself and some for each message.
const STEPS: u64 = 5_000_000;
const STEPS_PER_MESSAGE: u64 = 50_000;

/// Bytes that a template may write: some for itself and some for each byte of the conversation.
const OUTPUT_BYTES: usize = 64 << 20;
const OUTPUT_BYTES_PER_BYTE: usize = 4;

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// Text that is no Jinja.
    pub fn new(
        template: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<ChatTemplate, ChatError> {
        let mut environment = Environment::new();
        // As transformers configures Jinja.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        bounds::bound_filters(&mut environment);
        python::behave_as_python(&mut environment);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", json::to_json);
        environment
            .add_template_owned(NAME, python::without_generation_tags(template))
            .map_err(|error| ChatError::Template(error.to_string()))?;
        Ok(ChatTemplate {
            environment,
            text: template.to_owned(),
            bos_token: bos_token.unwrap_or_default().to_owned(),
            eos_token: eos_token.unwrap_or_default().to_owned(),
        })
    }

    /// The template itself.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text up to where the assistant's answer begins. `tools` are JSON texts of the functions
    /// that the model is told of, `variables` names and JSON texts of what else the template is
    /// told, and `now` is what it is told of the date.
    ///
    /// # Errors
    /// A conversation that the template refuses.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[String],
        variables: &[(String, String)],
        now: SystemTime,
    ) -> Result<String, ChatError> {
        self.written(messages, tools, variables, true, now)
    }

    /// The same up to the end of the last message, which the assistant goes on with.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], or a template that leaves out what the message says.
    pub fn render_continued(
        &self,
        messages: &[Message],
        tools: &[String],
        variables: &[(String, String)],
        now: SystemTime,
    ) -> Result<String, ChatError> {
        let mut messages = messages.to_vec();
        if let Some(last) = messages.last_mut() {
            last.content.push_str(END_OF_MESSAGE);
        }
        let mut text = self.written(&messages, tools, variables, false, now)?;
        // A template that strips messages strips the end of this one.
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
        messages: &[Message],
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
        environment.set_fuel(Some(STEPS + STEPS_PER_MESSAGE * messages.len() as u64));
        let template = environment.get_template(NAME).map_err(refused)?;
        let given = messages.iter().map(Message::given).sum::<usize>()
            + tools.iter().map(String::len).sum::<usize>()
            + variables.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
        let limit = given.saturating_mul(OUTPUT_BYTES_PER_BYTE).saturating_add(OUTPUT_BYTES);
        let mut output = Bounded { text: Vec::new(), limit, exceeded: false };
        let rendered = template.render_captured_to(
            context! {
                messages => messages,
                add_generation_prompt => adds_prompt,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
                // transformers passes these as None, and templates ask "is not none".
                tools => told(tools)?,
                documents => (),
                // Of one name the first counts, so what stands above is as it is.
                ..variables_of(variables)?
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

/// The functions as a template is told of them.
fn told(tools: &[String]) -> Result<Value, ChatError> {
    if tools.is_empty() {
        return Ok(Value::from(()));
    }
    let read = |text: &String| serde_json::from_str::<serde_json::Value>(text);
    let tools: Result<Vec<_>, _> = tools.iter().map(read).collect();
    let tools = tools.map_err(|error| ChatError::Render(error.to_string()))?;
    Ok(Value::from_serialize(tools))
}

/// What else a template is told.
fn variables_of(variables: &[(String, String)]) -> Result<Value, ChatError> {
    let read = |(name, text): &(String, String)| {
        let value = serde_json::from_str::<serde_json::Value>(text);
        value.map(|value| (name.clone(), value))
    };
    let variables: Result<serde_json::Map<_, _>, _> = variables.iter().map(read).collect();
    let variables = variables.map_err(|error| ChatError::Render(error.to_string()))?;
    Ok(Value::from_serialize(variables))
}

/// Text that grows up to a limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl Write for Bounded {
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
