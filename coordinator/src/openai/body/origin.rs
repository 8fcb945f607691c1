//! Where requests come from.

/// Where a body comes from, which decides what becomes of fields that nothing reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A line that holds the fields itself, with columns of its own.
    ShortLine,
    /// A line of a batch file.
    BatchLine,
    /// A client of the server: fields of messages that nobody knows are left out, and what only a
    /// connection can do is read.
    Client,
}
