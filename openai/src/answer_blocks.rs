//! Division of an answer into blocks, for APIs whose answers are lists of blocks or items.

use super::answer_parts::{CallDelta, PartsDelta};

/// Kind of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockKind {
    Reasoning,
    Text,
    /// Tool call with its index among the answer's calls.
    Call {
        index: usize,
        name: String,
    },
}

/// Change of the list of blocks. At most one block is open at a time, the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockEvent {
    Start(BlockKind),
    /// Continuation of the open block, which is not empty.
    Delta(String),
    End,
}

/// Block that is being continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Reasoning,
    Text,
    Call(usize),
}

/// Splitter of a growing answer into blocks.
#[derive(Debug, Default)]
pub struct BlockSplitter {
    open: Option<OpenBlock>,
}

impl BlockSplitter {
    /// Appends a continuation of the answer; returns the changes of its blocks.
    pub fn push(&mut self, delta: PartsDelta) -> Vec<BlockEvent> {
        let PartsDelta { reasoning, content, calls } = delta;
        let mut events = Vec::new();
        let texts = [
            (OpenBlock::Reasoning, BlockKind::Reasoning, reasoning),
            (OpenBlock::Text, BlockKind::Text, content),
        ];
        for (block, kind, text) in texts {
            if !text.is_empty() {
                self.open(block, kind, &mut events);
                events.push(BlockEvent::Delta(text));
            }
        }
        for CallDelta { index, name, arguments } in calls {
            self.open(
                OpenBlock::Call(index),
                BlockKind::Call { index, name: name.unwrap_or_default() },
                &mut events,
            );
            if !arguments.is_empty() {
                events.push(BlockEvent::Delta(arguments));
            }
        }
        events
    }

    /// Ends the answer; returns true if a block was open, which ends as well.
    pub fn end(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// Opens `block` unless it is open already.
    fn open(&mut self, block: OpenBlock, kind: BlockKind, events: &mut Vec<BlockEvent>) {
        if self.open == Some(block) {
            return;
        }
        if self.open.replace(block).is_some() {
            events.push(BlockEvent::End);
        }
        events.push(BlockEvent::Start(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(reasoning: &str, content: &str, calls: Vec<CallDelta>) -> PartsDelta {
        PartsDelta { reasoning: reasoning.to_owned(), content: content.to_owned(), calls }
    }

    fn call(index: usize, name: Option<&str>, arguments: &str) -> CallDelta {
        CallDelta { index, name: name.map(str::to_owned), arguments: arguments.to_owned() }
    }

    #[test]
    fn each_part_is_a_block_that_ends_before_the_next_begins() {
        let mut splitter = BlockSplitter::default();
        let text = |text: &str| BlockEvent::Delta(text.to_owned());
        let start =
            |index, name: &str| BlockEvent::Start(BlockKind::Call { index, name: name.to_owned() });
        assert_eq!(splitter.push(PartsDelta::default()), []);
        assert_eq!(
            splitter.push(delta("a", "", vec![])),
            [BlockEvent::Start(BlockKind::Reasoning), text("a")]
        );
        assert_eq!(splitter.push(delta("b", "", vec![])), [text("b")]);
        assert_eq!(
            splitter.push(delta("c", "d", vec![call(0, Some("f"), "")])),
            [
                text("c"),
                BlockEvent::End,
                BlockEvent::Start(BlockKind::Text),
                text("d"),
                BlockEvent::End,
                start(0, "f"),
            ]
        );
        assert_eq!(
            splitter.push(delta("", "", vec![call(0, None, "{}"), call(1, Some("g"), "[")])),
            [text("{}"), BlockEvent::End, start(1, "g"), text("[")]
        );
        assert!(splitter.end() && !splitter.end());
    }
}
