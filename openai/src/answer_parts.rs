//! Parts of an answer: reasoning, content and tool calls.

/// The parts of an answer that are known so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerParts {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
}

/// A tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// JSON text as the model wrote it, possibly incomplete.
    pub arguments: String,
}

/// Continuation of the parts of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartsDelta {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<CallDelta>,
}

/// Continuation of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallDelta {
    /// Index among the answer's calls.
    pub index: usize,
    /// Name of the function, in the first continuation of the call.
    pub name: Option<String>,
    pub arguments: String,
}

impl AnswerParts {
    /// Appends a continuation.
    pub fn extend(&mut self, delta: &PartsDelta) {
        self.reasoning.push_str(&delta.reasoning);
        self.content.push_str(&delta.content);
        for CallDelta { index, name, arguments } in &delta.calls {
            if *index == self.calls.len() {
                self.calls.push(Call::default());
            }
            let call = &mut self.calls[*index];
            call.name.push_str(name.as_deref().unwrap_or_default());
            call.arguments.push_str(arguments);
        }
    }

    /// Joins all continuations of an answer.
    pub fn from_deltas(deltas: impl IntoIterator<Item = PartsDelta>) -> AnswerParts {
        let mut parts = AnswerParts::default();
        deltas.into_iter().for_each(|deltas| parts.extend(&deltas));
        parts
    }

    /// Returns the continuation from `previous` to these parts.
    pub fn delta_since(&self, previous: &AnswerParts) -> PartsDelta {
        let rest =
            |all: &str, previous: &str| all.get(previous.len()..).unwrap_or_default().to_owned();
        let calls = self.calls.iter().enumerate().filter_map(|(index, call)| {
            let known = previous.calls.get(index);
            let arguments = rest(&call.arguments, known.map_or("", |known| &known.arguments));
            let name = known.is_none().then(|| call.name.clone());
            let is_more = name.is_some() || !arguments.is_empty();
            is_more.then_some(CallDelta { index, name, arguments })
        });
        PartsDelta {
            reasoning: rest(&self.reasoning, &previous.reasoning),
            content: rest(&self.content, &previous.content),
            calls: calls.collect(),
        }
    }
}

impl PartsDelta {
    /// Appends to the arguments of the call with this index, which was found before.
    pub fn push_argument(&mut self, index: usize, argument: &str) {
        match self.calls.last_mut().filter(|call| call.index == index) {
            Some(call) => call.arguments.push_str(argument),
            None if argument.is_empty() => {}
            None => {
                let arguments = argument.to_owned();
                self.calls.push(CallDelta { index, name: None, arguments });
            }
        }
    }
}
