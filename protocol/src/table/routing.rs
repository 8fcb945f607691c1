//! Counts of routed rows.

use program::step_table::ROUTER_SUMS;

use super::StepTable;

impl StepTable {
    /// Counts the experts that a layer's router selected, given the number of rows of each, and how
    /// many of them a cache did not have. A decode step counts as one.
    pub fn count_routed(
        &self,
        layer: usize,
        decode_rows: Option<u32>,
        rows_of: &[u32],
        missing: Option<u32>,
    ) {
        let first = self.layout.router(layer);
        let add = |word: usize, more: u32| {
            // Only one lane at a time runs the router of a layer.
            self.words.store(first + word, self.words.load(first + word).saturating_add(more));
        };
        if let Some(rows) = decode_rows {
            let used = rows_of.iter().filter(|rows| **rows > 0).count() as u32;
            let sums: [u32; ROUTER_SUMS] = [1, rows, used, missing.unwrap_or(used)];
            sums.into_iter().enumerate().for_each(|(word, more)| add(word, more));
        }
        for (expert, rows) in rows_of.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            add(ROUTER_SUMS + expert, *rows);
        }
    }
}
