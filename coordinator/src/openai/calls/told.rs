//! Calls as answers and streams tell them.

use serde::{Deserialize, Serialize};

use crate::openai::fingerprint::call_id;
use crate::openai::parts::{Call, CallDelta};

/// A call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// What a message with its result names it by.
    pub id: String,
    /// Always "function".
    #[serde(rename = "type")]
    pub kind: String,
    pub function: CalledFunction,
}

/// What is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    pub name: String,
    /// JSON, as the model wrote it; cut where the answer was.
    pub arguments: String,
}

/// What a call has more than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCallDelta {
    /// Among the answer's calls.
    pub index: usize,
    /// This and what is left out below: at the call's first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: CalledFunctionDelta,
}

/// What is called, as far as it is known now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CalledFunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

const FUNCTION: &str = "function";

/// The calls of the answer of this index to a request of this `custom_id`.
pub fn tool_calls(custom_id: &str, choice: usize, calls: Vec<Call>) -> Vec<ToolCall> {
    let told = |(index, Call { name, arguments })| ToolCall {
        id: call_id(custom_id, choice, index),
        kind: FUNCTION.to_owned(),
        function: CalledFunction { name, arguments },
    };
    calls.into_iter().enumerate().map(told).collect()
}

/// The same of what they have more than before.
pub fn tool_call_deltas(
    custom_id: &str,
    choice: usize,
    deltas: Vec<CallDelta>,
) -> Vec<ToolCallDelta> {
    let told = |CallDelta { index, name, arguments }: CallDelta| ToolCallDelta {
        index,
        id: name.is_some().then(|| call_id(custom_id, choice, index)),
        kind: name.is_some().then_some(FUNCTION),
        function: CalledFunctionDelta { name, arguments },
    };
    deltas.into_iter().map(told).collect()
}
