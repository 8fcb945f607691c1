//! Messages of a chat completion, composed from the messages or items of other APIs.

use serde_json::{Map, Value, json};

/// Messages that are being composed.
#[derive(Debug, Default)]
pub struct ChatMessages {
    messages: Vec<Value>,
    /// Turn of the assistant that may be continued.
    assistant: Option<AssistantTurn>,
}

/// Turn of the assistant: reasoning, followed by text, followed by tool calls.
#[derive(Debug, Default)]
struct AssistantTurn {
    reasoning: String,
    content: Option<String>,
    calls: Vec<Value>,
}

impl ChatMessages {
    /// Appends a text of a role other than the assistant's. System messages at the beginning are
    /// joined, since most templates accept only one.
    pub fn push_text(&mut self, role: &str, text: String) {
        self.end_turn();
        let is_system = |role: &str| ["system", "developer"].contains(&role);
        if let [only] = &mut self.messages[..]
            && is_system(role)
            && only["role"].as_str().is_some_and(is_system)
        {
            append_content(only, "\n\n", &text);
            return;
        }
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// Appends a text of the user, which continues the last message if that is the user's too.
    pub fn push_or_continue_user(&mut self, text: String) {
        self.end_turn();
        match self.messages.last_mut().filter(|last| last["role"] == "user") {
            Some(last) => append_content(last, "\n", &text),
            None => self.messages.push(json!({"role": "user", "content": text})),
        }
    }

    /// Appends reasoning of the assistant, which begins a turn unless the current one has only
    /// reasoning.
    pub fn push_reasoning(&mut self, text: &str) {
        if self.assistant.as_ref().is_some_and(AssistantTurn::is_answered) {
            self.end_turn();
        }
        let reasoning = &mut self.assistant.get_or_insert_default().reasoning;
        if !reasoning.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(text);
    }

    /// Appends a text of the assistant, which begins a turn after tool calls.
    pub fn push_assistant(&mut self, text: &str) {
        if self.assistant.as_ref().is_some_and(|turn| !turn.calls.is_empty()) {
            self.end_turn();
        }
        let turn = self.assistant.get_or_insert_default();
        turn.content.get_or_insert_default().push_str(text);
    }

    /// Appends a tool call, whose arguments are a JSON text or an object.
    pub fn push_call(&mut self, id: Value, name: Value, arguments: Value) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.assistant.get_or_insert_default().calls.push(call);
    }

    /// Appends the result of a tool call.
    pub fn push_result(&mut self, call_id: Value, text: String) {
        self.end_turn();
        self.messages.push(json!({"role": "tool", "tool_call_id": call_id, "content": text}));
    }

    /// Returns true if the last message is a text of the assistant without tool calls.
    pub fn ends_with_assistant_text(&self) -> bool {
        self.assistant.as_ref().is_some_and(|turn| turn.calls.is_empty() && turn.content.is_some())
    }

    /// Ends the current turn of the assistant; the next message begins a new one.
    pub fn end_turn(&mut self) {
        self.messages.extend(self.assistant.take().map(AssistantTurn::into_message));
    }

    /// Returns all messages.
    pub fn into_value(mut self) -> Value {
        self.end_turn();
        Value::Array(self.messages)
    }
}

impl AssistantTurn {
    fn is_answered(&self) -> bool {
        self.content.is_some() || !self.calls.is_empty()
    }

    fn into_message(self) -> Value {
        let content = self.content.map_or(Value::Null, Value::from);
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        Value::Object(message)
    }
}

fn append_content(message: &mut Value, separator: &str, text: &str) {
    if let Some(Value::String(content)) = message.get_mut("content") {
        content.push_str(separator);
        content.push_str(text);
    }
}
