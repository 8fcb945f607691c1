//! Events of a streamed response.

use serde::Serialize;

use super::items::{ItemStatus, OutputItem, OutputPart};
use super::response::{
    ResponseError, ResponseHead, ResponseObject, ResponseStatus, ResponseUsage, token_logprobs,
};
use crate::answer_accumulator::AnswerDelta;
use crate::answer_blocks::{BlockEvent, BlockKind, BlockSplitter};
use crate::logprobs::ChatTokenLogprob;
use crate::output::Usage;
use crate::sse::write_named_event;
use crate::stop::Answer;

/// Writer of the events of a streamed response.
#[derive(Debug)]
pub struct ResponseEvents {
    head: ResponseHead,
    splitter: BlockSplitter,
    next_event: u64,
    /// Items that have ended.
    items: Vec<OutputItem>,
    /// Kind of the open item.
    kind: BlockKind,
    /// Text of the open item.
    text: String,
    /// Log-probabilities of the open item.
    logprobs: Vec<ChatTokenLogprob>,
    /// Log-probabilities of tokens whose text is not written yet.
    pending_logprobs: Vec<ChatTokenLogprob>,
}

#[derive(Serialize)]
struct Event<'a, T> {
    #[serde(rename = "type")]
    kind: &'a str,
    sequence_number: u64,
    #[serde(flatten)]
    fields: T,
}

#[derive(Serialize)]
struct ResponseFields<'a> {
    response: &'a ResponseObject<'a>,
}

#[derive(Serialize)]
struct ItemFields<'a> {
    output_index: usize,
    item: &'a OutputItem,
}

#[derive(Serialize)]
struct PartFields<'a> {
    item_id: String,
    output_index: usize,
    content_index: usize,
    part: &'a OutputPart,
}

/// Fields of an event about the text or the arguments of an item.
#[derive(Serialize)]
struct TextFields<'a> {
    item_id: String,
    output_index: usize,
    /// Omitted for arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    /// Omitted for reasoning and arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a [ChatTokenLogprob]>,
}

impl ResponseEvents {
    /// Creates a writer of the answer to a request.
    pub fn new(head: ResponseHead) -> ResponseEvents {
        ResponseEvents {
            head,
            splitter: BlockSplitter::default(),
            next_event: 0,
            items: Vec::new(),
            kind: BlockKind::Text,
            text: String::new(),
            logprobs: Vec::new(),
            pending_logprobs: Vec::new(),
        }
    }

    /// Returns the request and the settings of the response.
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Writes the first events.
    pub fn begin(&mut self, bytes: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            let sequence_number = self.next_number();
            let response = &self.head.response(ResponseStatus::InProgress, &[]);
            let fields = ResponseFields { response };
            write_named_event(kind, &Event { kind, sequence_number, fields }, bytes);
        }
    }

    /// Writes a continuation of the answer.
    pub fn write(&mut self, mut delta: AnswerDelta, bytes: &mut Vec<u8>) {
        if self.head.request.output.omits_reasoning {
            delta.reasoning.clear();
        }
        self.pending_logprobs.extend(token_logprobs(delta.logprobs.take()));
        for event in self.splitter.push(delta.into_parts()) {
            match event {
                BlockEvent::Start(kind) => self.start_item(kind, bytes),
                BlockEvent::Delta(text) => self.write_delta(&text, bytes),
                BlockEvent::End => self.end_item(ItemStatus::Completed, bytes),
            }
        }
    }

    /// Ends the last item of an answer. An answer without items gets an empty message.
    pub fn end_items(&mut self, answer: &Answer, bytes: &mut Vec<u8>) {
        let status = ResponseStatus::from_answer(answer).of_last_item();
        let is_open = self.splitter.end();
        if !is_open && self.items.is_empty() {
            self.start_item(BlockKind::Text, bytes);
        }
        if is_open || self.items.is_empty() {
            self.end_item(status, bytes);
        }
    }

    /// Returns the response object of an answer whose items have ended at `completed_at`, in
    /// seconds since 1970.
    pub fn response(
        &self,
        answer: &Answer,
        usage: &Usage,
        completed_at: u64,
    ) -> ResponseObject<'_> {
        let status = ResponseStatus::from_answer(answer);
        let mut response = self.head.response(status, &self.items);
        response.usage = Some(ResponseUsage::new(usage));
        response.error = answer.error.as_deref().map(ResponseError::new);
        response.completed_at = Some(completed_at).filter(|_| status == ResponseStatus::Completed);
        response
    }

    /// Writes the last event, which contains the `response` object of an answer.
    pub fn end(&mut self, answer: &Answer, response: &impl Serialize, bytes: &mut Vec<u8>) {
        #[derive(Serialize)]
        struct Fields<'a, T> {
            response: &'a T,
        }
        let kind = match ResponseStatus::from_answer(answer) {
            ResponseStatus::Incomplete => "response.incomplete",
            ResponseStatus::Failed => "response.failed",
            ResponseStatus::Completed
            | ResponseStatus::Queued
            | ResponseStatus::InProgress
            | ResponseStatus::Cancelled => "response.completed",
        };
        let sequence_number = self.next_number();
        let fields = Fields { response };
        write_named_event(kind, &Event { kind, sequence_number, fields }, bytes);
    }

    /// Writes the last event of a response that failed for the given reason, a sentence.
    pub fn fail(&mut self, message: &str, bytes: &mut Vec<u8>) {
        let (kind, sequence_number) = ("response.failed", self.next_number());
        let mut response = self.head.response(ResponseStatus::Failed, &self.items);
        response.error = Some(ResponseError::new(message));
        let fields = ResponseFields { response: &response };
        write_named_event(kind, &Event { kind, sequence_number, fields }, bytes);
    }

    fn next_number(&mut self) -> u64 {
        self.next_event += 1;
        self.next_event - 1
    }

    fn write_event(&mut self, kind: &str, fields: impl Serialize, bytes: &mut Vec<u8>) {
        let sequence_number = self.next_number();
        write_named_event(kind, &Event { kind, sequence_number, fields }, bytes);
    }

    fn item_id(&self) -> String {
        self.head.item_builder().id(&self.kind, self.items.len())
    }

    fn start_item(&mut self, kind: BlockKind, bytes: &mut Vec<u8>) {
        let output_index = self.items.len();
        let item = self.head.item_builder().begin(&kind, output_index);
        self.kind = kind;
        self.write_event(
            "response.output_item.added",
            ItemFields { output_index, item: &item },
            bytes,
        );
        if let Some(part) = self.part(String::new(), Vec::new()) {
            self.write_part("response.content_part.added", &part, bytes);
        }
    }

    /// Returns a content of the open item; `None` for a call.
    fn part(&self, text: String, logprobs: Vec<ChatTokenLogprob>) -> Option<OutputPart> {
        match self.kind {
            BlockKind::Reasoning => Some(OutputPart::ReasoningText { text }),
            BlockKind::Text => Some(OutputPart::OutputText { text, annotations: [], logprobs }),
            BlockKind::Call { .. } => None,
        }
    }

    fn write_part(&mut self, kind: &str, part: &OutputPart, bytes: &mut Vec<u8>) {
        let (item_id, output_index) = (self.item_id(), self.items.len());
        self.write_event(kind, PartFields { item_id, output_index, content_index: 0, part }, bytes);
    }

    /// Returns the fields that all events about the open item's text have.
    fn text_fields<'a>(&self) -> TextFields<'a> {
        let is_call = matches!(self.kind, BlockKind::Call { .. });
        TextFields {
            item_id: self.item_id(),
            output_index: self.items.len(),
            content_index: (!is_call).then_some(0),
            delta: None,
            text: None,
            name: None,
            arguments: None,
            logprobs: None,
        }
    }

    fn write_delta(&mut self, text: &str, bytes: &mut Vec<u8>) {
        self.text.push_str(text);
        let fields = TextFields { delta: Some(text), ..self.text_fields() };
        match self.kind {
            BlockKind::Reasoning => {
                self.write_event("response.reasoning_text.delta", fields, bytes);
            }
            BlockKind::Text => {
                let logprobs = std::mem::take(&mut self.pending_logprobs);
                let fields = TextFields { logprobs: Some(&logprobs), ..fields };
                self.write_event("response.output_text.delta", fields, bytes);
                self.logprobs.extend(logprobs);
            }
            BlockKind::Call { .. } => {
                self.write_event("response.function_call_arguments.delta", fields, bytes);
            }
        }
    }

    fn end_item(&mut self, status: ItemStatus, bytes: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.text);
        let mut logprobs = std::mem::take(&mut self.logprobs);
        let fields = self.text_fields();
        match self.kind.clone() {
            BlockKind::Reasoning => {
                let fields = TextFields { text: Some(&text), ..fields };
                self.write_event("response.reasoning_text.done", fields, bytes);
            }
            BlockKind::Text => {
                logprobs.append(&mut self.pending_logprobs);
                let fields = TextFields { text: Some(&text), logprobs: Some(&logprobs), ..fields };
                self.write_event("response.output_text.done", fields, bytes);
            }
            BlockKind::Call { name, .. } => {
                let (name, arguments) = (Some(&*name), Some(&*text));
                let fields = TextFields { name, arguments, ..fields };
                self.write_event("response.function_call_arguments.done", fields, bytes);
            }
        }
        if let Some(part) = self.part(text.clone(), logprobs.clone()) {
            self.write_part("response.content_part.done", &part, bytes);
        }
        let output_index = self.items.len();
        let builder = self.head.item_builder();
        let item = builder.end(&self.kind, output_index, text, logprobs, status);
        self.write_event(
            "response.output_item.done",
            ItemFields { output_index, item: &item },
            bytes,
        );
        self.items.push(item);
    }
}
