//! Numbers of positions that new tokens attended to in a run with KV selection, as counted by the
//! workers.

use program::step_table::StepTableLayout;
use shm::SharedU32s;

/// Numbers of positions, summed over all new tokens, layers and KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseAttentionStats {
    /// Positions that were attended to.
    pub attended: u64,
    /// Positions that could have been attended to.
    pub total: u64,
}

impl SparseAttentionStats {
    /// Reads the counts; returns `None` if nothing was counted.
    pub(super) fn read(
        layout: &StepTableLayout,
        words: &SharedU32s,
    ) -> Option<SparseAttentionStats> {
        let first = layout.selected();
        let word = |offset: usize| u64::from(words.load(first + offset));
        let selected = SparseAttentionStats {
            attended: word(0) | word(1) << 32,
            total: word(2) | word(3) << 32,
        };
        (selected.total > 0).then_some(selected)
    }

    /// Returns the share of the positions that were attended to.
    pub fn share(self) -> f64 {
        self.attended as f64 / self.total as f64
    }
}
