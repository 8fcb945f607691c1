//! Reads tables from files and validates them, with one sentence per error.

use std::collections::HashSet;

use super::{OpCost, OperationTable};

/// Maximum number of operations: a layer has a dozen, three of them in at most 64 chunks.
const OPS_MAX: usize = 256;
/// Maximum number of batches, more than any memory holds.
const BATCHES_MAX: u32 = 4096;
/// Maximum time: an operation of more than a day is an error of unit.
const TIME_MAX_MS: f64 = 86_400_000.0;

/// Reason for which a table is refused.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("the table is not valid: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the table has no operations; \"ops\" must list at least one")]
    Empty,
    #[error("the table lists {found} operations; a layer has at most {OPS_MAX}, chunks included")]
    TooManyOps { found: usize },
    #[error("operation number {number} has no name")]
    NoName { number: usize },
    #[error("the name {name} is used for two operations; names must differ")]
    Duplicate { name: String },
    #[error("{field} of {name} is {value}; a time is a finite number of milliseconds")]
    NotFinite { name: String, field: &'static str, value: f64 },
    #[error("{field} of {name} is {value}; a time cannot be negative")]
    Negative { name: String, field: &'static str, value: f64 },
    #[error("{field} of {name} is {value} ms, more than a day; times are in milliseconds")]
    Absurd { name: String, field: &'static str, value: f64 },
    #[error("\"batches\" is {found}; it must be between 1 and {BATCHES_MAX}")]
    Batches { found: u32 },
}

impl OperationTable {
    /// Reads a `--tables` file. Neighbouring KV operations named `name.0`, `name.1`, ... are taken
    /// for chunks of one operation.
    ///
    /// # Errors
    /// Text that is not such a table, with the line; invalid times; see
    /// [`OperationTable::validate`].
    pub fn from_json(text: &str) -> Result<OperationTable, TableError> {
        let mut table: OperationTable = serde_json::from_str(text)?;
        table.validate()?;
        find_chunks(&mut table.ops);
        Ok(table)
    }

    /// Checks the constraints that types do not express.
    ///
    /// # Errors
    /// No operations, a duplicate name, a time that is negative, not finite or longer than a day, 0
    /// batches.
    pub fn validate(&self) -> Result<(), TableError> {
        if self.ops.is_empty() {
            return Err(TableError::Empty);
        }
        if self.ops.len() > OPS_MAX {
            return Err(TableError::TooManyOps { found: self.ops.len() });
        }
        if !(1..=BATCHES_MAX).contains(&self.batches) {
            return Err(TableError::Batches { found: self.batches });
        }
        let mut names = HashSet::new();
        for (index, op) in self.ops.iter().enumerate() {
            if op.name.trim().is_empty() {
                return Err(TableError::NoName { number: index + 1 });
            }
            if !names.insert(op.name.as_str()) {
                return Err(TableError::Duplicate { name: op.name.clone() });
            }
            op.validate()?;
        }
        Ok(())
    }
}

impl OpCost {
    fn validate(&self) -> Result<(), TableError> {
        let times = [
            ("cpu_ms", self.cpu_ms),
            ("gpu_ms", self.gpu_ms),
            ("h2d_ms", self.h2d_ms),
            ("h2d_compressed_ms", self.h2d_compressed_ms),
            ("decompress_ms", self.decompress_ms),
            ("s2d_ms", self.s2d_ms),
        ];
        for (field, value) in times {
            let name = || self.name.clone();
            if !value.is_finite() {
                return Err(TableError::NotFinite { name: name(), field, value });
            }
            if value < 0.0 {
                return Err(TableError::Negative { name: name(), field, value });
            }
            if value > TIME_MAX_MS {
                return Err(TableError::Absurd { name: name(), field, value });
            }
        }
        Ok(())
    }
}

/// Numbers the chunks. Only KV operations are split, so `FC.0` and `FC.1` are two operations.
fn find_chunks(ops: &mut [OpCost]) {
    let parsed: Vec<Option<(String, u16)>> = ops
        .iter()
        .map(|op| {
            let (base, index) = op.name.rsplit_once('.').filter(|_| op.kv)?;
            Some((base.to_owned(), index.parse().ok()?))
        })
        .collect();
    for index in 0..ops.len() {
        let Some((base, chunk)) = &parsed[index] else { continue };
        let is_sibling = |other: Option<&Option<(String, u16)>>| {
            other.and_then(Option::as_ref).is_some_and(|(name, _)| name == base)
        };
        let before = index.checked_sub(1).and_then(|before| parsed.get(before));
        if is_sibling(before) || is_sibling(parsed.get(index + 1)) {
            ops[index].chunk = Some(*chunk);
        }
    }
}
