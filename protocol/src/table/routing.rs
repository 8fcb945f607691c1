//! Counts of routed rows.

use program::routing_log::{LOG_IS_FULL, LoggedUse};
use program::step_table::ROUTER_SUMS;

use super::StepTable;

impl StepTable {
    /// Logs a lookup in a cache of experts: the experts that it needed, and whether the cache
    /// lacked them. A lookup that does not fit ends the log.
    pub fn log_lookup(&self, layer: u16, uses: impl Iterator<Item = (u16, bool)> + Clone) {
        let capacity = self.layout.routers.logged;
        let first = self.layout.routing_log();
        if capacity == 0 {
            return;
        }
        // Only one lane at a time runs the router of a layer.
        let count = self.words.load(first);
        if count & LOG_IS_FULL != 0 {
            return;
        }
        let more = uses.clone().count() as u32;
        if more > capacity - count {
            self.words.store(first, count | LOG_IS_FULL);
            return;
        }
        for (place, (expert, is_missing)) in (0u32..).zip(uses) {
            let entry = LoggedUse { layer, expert, is_missing, is_first: place == 0 };
            self.words.store(first + 1 + (count + place) as usize, entry.to_word());
        }
        self.words.store(first, count + more);
    }

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
