//! What handles of cuBLASLt stand for.

/// A handle is the index plus one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Object {
    Library,
    Preference,
    /// Whether the first operand is transposed.
    Product(bool),
    Layout {
        kind: u32,
        rows: u64,
        columns: u64,
        leading: i64,
    },
}
