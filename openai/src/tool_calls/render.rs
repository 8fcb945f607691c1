//! Tool calls in the format of answers and streams.

use serde::{Deserialize, Serialize};

use crate::answer_parts::{Call, CallDelta};
use crate::fingerprint::call_id;

/// A tool call of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Identifier by which a message with the result refers to the call.
    pub id: String,
    /// Always "function".
    #[serde(rename = "type")]
    pub kind: String,
    pub function: CalledFunction,
}

/// Function and arguments of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    pub name: String,
    /// Arguments as the JSON text that the model wrote, which is incomplete if the answer was cut.
    pub arguments: String,
}

/// Continuation of a tool call in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCallDelta {
    /// Index among the answer's calls.
    pub index: usize,
    /// Identifier of the call, only in its first event. This applies to `kind` and the function's
    /// name as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: CalledFunctionDelta,
}

/// Continuation of a tool call's function and arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CalledFunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

const FUNCTION_KIND: &str = "function";

/// Returns the tool calls of the choice with index `choice` of the answers to the request
/// `custom_id`.
pub fn tool_calls(custom_id: &str, choice: usize, calls: Vec<Call>) -> Vec<ToolCall> {
    let render = |(index, Call { name, arguments })| ToolCall {
        id: call_id(custom_id, choice, index),
        kind: FUNCTION_KIND.to_owned(),
        function: CalledFunction { name, arguments },
    };
    calls.into_iter().enumerate().map(render).collect()
}

/// Returns the continuations of tool calls of the choice with index `choice` of the answers to the
/// request `custom_id`.
pub fn tool_call_deltas(
    custom_id: &str,
    choice: usize,
    deltas: Vec<CallDelta>,
) -> Vec<ToolCallDelta> {
    let render = |CallDelta { index, name, arguments }: CallDelta| ToolCallDelta {
        index,
        id: name.is_some().then(|| call_id(custom_id, choice, index)),
        kind: name.is_some().then_some(FUNCTION_KIND),
        function: CalledFunctionDelta { name, arguments },
    };
    deltas.into_iter().map(render).collect()
}
