//! Objects to which the handles of cuBLASLt refer.

/// An object; its handle is its index plus one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CublasObject {
    Library,
    Preference,
    /// A product, with true if the first operand is transposed.
    Product(bool),
    Layout {
        kind: u32,
        rows: u64,
        columns: u64,
        leading: i64,
    },
}
