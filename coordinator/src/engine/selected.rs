//! What new tokens attended to in a run where they select, as the workers have counted it.

use program::step_table::StepTableLayout;
use shm::SharedU32s;

/// Positions of all new tokens, layers and KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    /// Those that were attended to.
    pub read: u64,
    /// Those that there were.
    pub all: u64,
}

impl Selected {
    /// `None` where nothing was counted.
    pub(super) fn read(layout: &StepTableLayout, words: &SharedU32s) -> Option<Selected> {
        let first = layout.selected();
        let word = |offset: usize| u64::from(words.load(first + offset));
        let selected = Selected { read: word(0) | word(1) << 32, all: word(2) | word(3) << 32 };
        (selected.all > 0).then_some(selected)
    }

    /// Share of the positions that were attended to.
    pub fn share(self) -> f64 {
        self.read as f64 / self.all as f64
    }
}
