//! Bodies of `/v1/rerank`.

use serde_json::Value;

use crate::body::JsonFields;
use crate::body::unknown_fields::UnknownFieldPolicy;
use crate::body::values::{get_non_null, invalid_value, missing_field, read_count, read_flag};
use crate::input_line::Rejection;

/// Maximum number of documents of a request.
pub const MAX_DOCUMENTS: usize = 2048;

const KNOWN_FIELDS: [&str; 7] =
    ["model", "query", "documents", "top_n", "return_documents", "instruction", "user"];

/// Task of the model if a request has none: that of Qwen3-Reranker's model card.
const DEFAULT_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// A well-formed body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RerankBody {
    pub query: String,
    /// At least one and at most [`MAX_DOCUMENTS`].
    pub documents: Vec<String>,
    /// Maximum number of results; `None` for all documents.
    pub top_n: Option<usize>,
    pub returns_documents: bool,
    /// Description of the task.
    pub instruction: String,
}

impl RerankBody {
    /// Reads the fields of a body.
    ///
    /// # Errors
    /// Returns a rejection that names the first field that is invalid, missing or unknown.
    pub fn read(
        fields: &JsonFields,
        unknown_fields: &UnknownFieldPolicy,
    ) -> Result<RerankBody, Rejection> {
        for (name, value) in fields {
            let is_known = KNOWN_FIELDS.contains(&name.as_str()) || value.is_null();
            unknown_fields.check_known(name, is_known)?;
        }
        let text = |name: &str| match get_non_null(fields, name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
            Some(_) => Err(invalid_value(name, "a non-empty string")),
        };
        let instruction = text("instruction")?.unwrap_or_else(|| DEFAULT_INSTRUCTION.to_owned());
        Ok(RerankBody {
            query: text("query")?.ok_or_else(|| missing_field("query"))?,
            documents: read_documents(fields)?,
            top_n: read_count(fields, "top_n", 1..=MAX_DOCUMENTS)?,
            returns_documents: read_flag(fields, "return_documents")?,
            instruction,
        })
    }
}

/// Reads documents: strings, or objects with a `text`.
fn read_documents(fields: &JsonFields) -> Result<Vec<String>, Rejection> {
    let documents =
        get_non_null(fields, "documents").ok_or_else(|| missing_field("documents"))?.as_array();
    let documents = documents.filter(|list| (1..=MAX_DOCUMENTS).contains(&list.len()));
    let text = |document: &Value| {
        let text = document.as_str().or_else(|| document.get("text")?.as_str());
        text.map(str::to_owned)
    };
    let texts = documents.and_then(|list| list.iter().map(text).collect::<Option<Vec<String>>>());
    texts.ok_or_else(|| {
        let wanted = format!("an array of 1 to {MAX_DOCUMENTS} strings, or objects with a 'text'");
        invalid_value("documents", &wanted)
    })
}
