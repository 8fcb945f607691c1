//! Events of a streamed message.

use std::sync::Arc;

use serde::Serialize;

use super::message::{
    AnthropicMessage, ContentBlock, MessageUsage, StopReason, thinking_signature, tool_use_id,
};
use crate::answer_accumulator::AnswerDelta;
use crate::answer_blocks::{BlockEvent, BlockKind, BlockSplitter};
use crate::input_line::CompletionRequest;
use crate::output::{Usage, warnings};
use crate::sse::write_named_event;
use crate::stop::Answer;

/// Name and type of the event that keeps a connection alive.
const PING: &str = "ping";

/// Writer of the events of a streamed message.
#[derive(Debug)]
pub struct MessageEvents {
    request: Arc<CompletionRequest>,
    model: String,
    splitter: BlockSplitter,
    /// Index of the next block.
    next_block: usize,
    /// Kind of the open block.
    kind: BlockKind,
    has_begun: bool,
}

#[derive(Serialize)]
struct MessageStart {
    #[serde(rename = "type")]
    kind: &'static str,
    message: AnthropicMessage,
}

#[derive(Serialize)]
struct ContentBlockStart {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
    content_block: ContentBlock,
}

#[derive(Serialize)]
struct ContentBlockDelta {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
    delta: BlockDelta,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

#[derive(Serialize)]
struct ContentBlockStop {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
}

#[derive(Serialize)]
struct MessageDelta {
    #[serde(rename = "type")]
    kind: &'static str,
    delta: MessageEnd,
    usage: MessageUsage,
    /// Deviations from the request, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct MessageEnd {
    stop_reason: StopReason,
    stop_sequence: Option<String>,
}

/// Event without content.
#[derive(Serialize)]
struct Empty {
    #[serde(rename = "type")]
    kind: &'static str,
}

impl MessageEvents {
    /// Creates a writer of the answer to a request.
    pub fn new(request: Arc<CompletionRequest>, model: String) -> MessageEvents {
        MessageEvents {
            request,
            model,
            splitter: BlockSplitter::default(),
            next_block: 0,
            kind: BlockKind::Text,
            has_begun: false,
        }
    }

    /// Writes the first events unless they are written already. `usage` counts the tokens of the
    /// prompt.
    pub fn begin(&mut self, usage: &Usage, bytes: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let message = AnthropicMessage::empty(&self.request, &self.model, MessageUsage::new(usage));
        let kind = "message_start";
        write_named_event(kind, &MessageStart { kind, message }, bytes);
        MessageEvents::write_ping(bytes);
    }

    /// Writes a continuation of the answer.
    pub fn write(&mut self, mut delta: AnswerDelta, bytes: &mut Vec<u8>) {
        if self.request.output.omits_reasoning {
            delta.reasoning.clear();
        }
        for event in self.splitter.push(delta.into_parts()) {
            match event {
                BlockEvent::Start(kind) => self.start_block(kind, bytes),
                BlockEvent::Delta(text) => self.write_delta(text, bytes),
                BlockEvent::End => self.end_block(bytes),
            }
        }
    }

    /// Writes the last events of an answer without an error.
    pub fn end(&mut self, answer: &Answer, usage: &Usage, bytes: &mut Vec<u8>) {
        if self.splitter.end() {
            self.end_block(bytes);
        }
        let stop_reason = StopReason::from_answer(answer);
        let is_at_stop = stop_reason == StopReason::StopSequence;
        let stop_sequence = answer.stop_string.clone().filter(|_| is_at_stop);
        let kind = "message_delta";
        let event = MessageDelta {
            kind,
            delta: MessageEnd { stop_reason, stop_sequence },
            usage: MessageUsage::new(usage),
            warnings: warnings(&self.request),
        };
        write_named_event(kind, &event, bytes);
        let kind = "message_stop";
        write_named_event(kind, &Empty { kind }, bytes);
    }

    /// Writes an event that keeps the connection alive.
    pub fn write_ping(bytes: &mut Vec<u8>) {
        write_named_event(PING, &Empty { kind: PING }, bytes);
    }

    fn start_block(&mut self, block: BlockKind, bytes: &mut Vec<u8>) {
        let content_block = match &block {
            BlockKind::Reasoning => {
                ContentBlock::Thinking { thinking: String::new(), signature: String::new() }
            }
            BlockKind::Text => ContentBlock::text(String::new()),
            BlockKind::Call { index, name } => ContentBlock::ToolUse {
                id: tool_use_id(&self.request, *index),
                name: name.clone(),
                input: serde_json::json!({}),
            },
        };
        let kind = "content_block_start";
        let event = ContentBlockStart { kind, index: self.next_block, content_block };
        write_named_event(kind, &event, bytes);
        self.kind = block;
        self.next_block += 1;
    }

    fn write_delta(&self, text: String, bytes: &mut Vec<u8>) {
        let delta = match &self.kind {
            BlockKind::Reasoning => BlockDelta::Thinking { thinking: text },
            BlockKind::Text => BlockDelta::Text { text },
            BlockKind::Call { .. } => BlockDelta::InputJson { partial_json: text },
        };
        self.write_block_delta(delta, bytes);
    }

    fn write_block_delta(&self, delta: BlockDelta, bytes: &mut Vec<u8>) {
        let kind = "content_block_delta";
        let event = ContentBlockDelta { kind, index: self.open_block(), delta };
        write_named_event(kind, &event, bytes);
    }

    fn end_block(&self, bytes: &mut Vec<u8>) {
        if self.kind == BlockKind::Reasoning {
            let signature = thinking_signature(&self.request);
            self.write_block_delta(BlockDelta::Signature { signature }, bytes);
        }
        let kind = "content_block_stop";
        write_named_event(kind, &ContentBlockStop { kind, index: self.open_block() }, bytes);
    }

    /// Returns the index of the open block.
    fn open_block(&self) -> usize {
        self.next_block.saturating_sub(1)
    }
}
