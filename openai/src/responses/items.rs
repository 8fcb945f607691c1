//! Output items of a response.

use serde::Serialize;

use crate::answer_blocks::BlockKind;
use crate::fingerprint::{call_id, id_suffix};
use crate::input_line::CompletionRequest;
use crate::logprobs::ChatTokenLogprob;

/// Beginning of `encrypted_content`, which distinguishes it from that of other services.
pub(super) const ENCRYPTED_PREFIX: &str = "plain:";

/// Progress of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    InProgress,
    Completed,
    /// The answer was cut within the item.
    Incomplete,
}

/// An item of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    Reasoning {
        id: String,
        /// Always empty: reasoning is not summarised.
        summary: [(); 0],
        content: Vec<OutputPart>,
        /// The reasoning itself, if it was requested.
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
        status: ItemStatus,
    },
    Message {
        id: String,
        role: &'static str,
        content: Vec<OutputPart>,
        status: ItemStatus,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: ItemStatus,
    },
}

/// Content of an item.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputPart {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        /// Always empty, since no source is cited.
        annotations: [(); 0],
        logprobs: Vec<ChatTokenLogprob>,
    },
}

/// Creates items of the answer to a request.
#[derive(Debug, Clone, Copy)]
pub struct ItemBuilder<'a> {
    pub request: &'a CompletionRequest,
    /// Reasoning items have `encrypted_content`.
    pub returns_encrypted_reasoning: bool,
}

impl ItemBuilder<'_> {
    /// Returns the identifier of the item with this index.
    pub fn id(&self, kind: &BlockKind, index: usize) -> String {
        let prefix = match kind {
            BlockKind::Reasoning => "rs",
            BlockKind::Text => "msg",
            BlockKind::Call { .. } => "fc",
        };
        format!("{prefix}_{}_{index}", id_suffix(&self.request.custom_id))
    }

    /// Creates an item that has just begun.
    pub fn begin(&self, kind: &BlockKind, index: usize) -> OutputItem {
        let (id, status) = (self.id(kind, index), ItemStatus::InProgress);
        match kind {
            BlockKind::Reasoning => OutputItem::Reasoning {
                id,
                summary: [],
                content: Vec::new(),
                encrypted_content: None,
                status,
            },
            BlockKind::Text => {
                OutputItem::Message { id, role: "assistant", content: Vec::new(), status }
            }
            BlockKind::Call { index: call, name } => OutputItem::FunctionCall {
                id,
                call_id: call_id(&self.request.custom_id, 0, *call),
                name: name.clone(),
                arguments: String::new(),
                status,
            },
        }
    }

    /// Creates an item that has ended.
    pub fn end(
        &self,
        kind: &BlockKind,
        index: usize,
        text: String,
        logprobs: Vec<ChatTokenLogprob>,
        ended_as: ItemStatus,
    ) -> OutputItem {
        let mut item = self.begin(kind, index);
        match &mut item {
            OutputItem::Reasoning { content, encrypted_content, status, .. } => {
                let is_requested = self.returns_encrypted_reasoning;
                *encrypted_content = is_requested.then(|| format!("{ENCRYPTED_PREFIX}{text}"));
                content.push(OutputPart::ReasoningText { text });
                *status = ended_as;
            }
            OutputItem::Message { content, status, .. } => {
                content.push(OutputPart::OutputText { text, annotations: [], logprobs });
                *status = ended_as;
            }
            OutputItem::FunctionCall { arguments, status, .. } => {
                *arguments = text;
                *status = ended_as;
            }
        }
        item
    }
}
