//! `tokenizer_config.json` and `special_tokens_map.json`: the special tokens, whether BOS is added,
//! and the chat template. Used by `tokenizer` and `chat`.

use std::path::Path;

use serde_json::{Map, Value};

/// Contents of the two files. Each field is absent if the files do not contain it, or do not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
    pub unk_token: Option<String>,
    pub pad_token: Option<String>,
    pub add_bos_token: Option<bool>,
    pub add_prefix_space: bool,
    /// A Jinja template; the one named `default` if there are several.
    pub chat_template: Option<String>,
    /// The template named `tool_use` if there are several, for conversations with functions.
    pub tools_template: Option<String>,
}

/// Reason for which an existing tokenizer configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerConfigError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path}: not a JSON object: {reason}")]
    Json { path: String, reason: String },
}

impl TokenizerConfig {
    /// Reads both files of a directory. `tokenizer_config.json` takes precedence over the other
    /// file, and `chat_template.jinja` over the template in it.
    ///
    /// # Errors
    /// A file that exists but cannot be read, or is not a JSON object.
    pub fn from_directory(directory: &Path) -> Result<Self, TokenizerConfigError> {
        let map = read_object(&directory.join("special_tokens_map.json"))?;
        let config = read_object(&directory.join("tokenizer_config.json"))?;
        let token = |key: &str| token_text(config.get(key)).or_else(|| token_text(map.get(key)));
        let of_file = read_text(&directory.join("chat_template.jinja"))?;
        let in_config = config.get("chat_template").filter(|_| of_file.is_none());
        let named = in_config.filter(|value| value.is_array());
        Ok(Self {
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
            unk_token: token("unk_token"),
            pad_token: token("pad_token"),
            add_bos_token: config.get("add_bos_token").and_then(Value::as_bool),
            add_prefix_space: config
                .get("add_prefix_space")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            chat_template: of_file.or_else(|| template(in_config, "default")),
            tools_template: template(named, "tool_use"),
        })
    }

    /// Returns the special tokens that are named, possibly with duplicates.
    pub fn special_tokens(&self) -> impl Iterator<Item = &str> {
        [&self.bos_token, &self.eos_token, &self.unk_token, &self.pad_token]
            .into_iter()
            .filter_map(|token| token.as_deref())
    }
}

/// Returns the text of a token, which is a string or an object with flags.
fn token_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Object(object) => object.get("content")?.as_str().map(str::to_owned),
        _ => None,
    }
}

/// Returns a template, which is a string or, in a list of `{name, template}`, the one with the
/// given name.
fn template(value: Option<&Value>, name: &str) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}

fn read_text(path: &Path) -> Result<Option<String>, TokenizerConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerConfigError::Io { path: path.display().to_string(), source }),
    }
}

fn read_object(path: &Path) -> Result<Map<String, Value>, TokenizerConfigError> {
    let Some(text) = read_text(path)? else {
        return Ok(Map::new());
    };
    serde_json::from_str(&text).map_err(|error| TokenizerConfigError::Json {
        path: path.display().to_string(),
        reason: error.to_string(),
    })
}
