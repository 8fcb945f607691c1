//! Pooled hidden states of sequences.

use program::step_table::{Field, PoolingMode};

use super::StepTable;

impl StepTable {
    /// Returns which rows of a sequence are pooled.
    pub fn pooling_mode(&self, batch: usize, sequence: usize) -> PoolingMode {
        match self.field(batch, sequence, Field::Pooling) {
            1 => PoolingMode::LastRow,
            2 => PoolingMode::AllRows,
            _ => PoolingMode::NoRows,
        }
    }

    /// Returns the pooled row of a sequence: its last one, or the sum of all.
    pub fn pooled_row(&self, batch: usize, sequence: usize) -> impl Iterator<Item = f32> {
        let first = self.layout.pooled(batch, sequence);
        (first..first + self.layout.pooled as usize).map(|at| f32::from_bits(self.words.load(at)))
    }

    /// Returns the number of elements of a pooled row.
    pub fn pooled_elements(&self) -> usize {
        self.layout.pooled as usize
    }

    /// Replaces each element of the pooled row of a sequence by `update` of it and the element of
    /// `row`.
    ///
    /// # Panics
    /// Panics if `row` has another number of elements.
    pub fn update_pooled_row<T>(
        &self,
        batch: usize,
        sequence: usize,
        row: &[T],
        update: impl Fn(f32, &T) -> f32,
    ) {
        assert_eq!(row.len(), self.pooled_elements(), "elements of a pooled row");
        for (at, element) in (self.layout.pooled(batch, sequence)..).zip(row) {
            let updated = update(f32::from_bits(self.words.load(at)), element);
            self.words.store(at, updated.to_bits());
        }
    }
}
