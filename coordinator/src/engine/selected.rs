//! Numbers of positions that new tokens attended to in a run with KV selection, as counted by the
//! workers.

use program::step_table::StepTableLayout;
use shm::SharedU32s;

/// Numbers of positions, summed over all new tokens, layers and KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selected {
    /// Positions that were attended to.
    pub read: u64,
    /// Positions that could have been attended to.
    pub all: u64,
}

impl Selected {
    /// Reads the counts; returns `None` if nothing was counted.
    pub(super) fn read(layout: &StepTableLayout, words: &SharedU32s) -> Option<Selected> {
        let first = layout.selected();
        let word = |offset: usize| u64::from(words.load(first + offset));
        let selected = Selected { read: word(0) | word(1) << 32, all: word(2) | word(3) << 32 };
        (selected.all > 0).then_some(selected)
    }

    /// Returns the share of the positions that were attended to.
    pub fn share(self) -> f64 {
        self.read as f64 / self.all as f64
    }
}
