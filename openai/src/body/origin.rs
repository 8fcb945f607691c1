//! Sources of requests.

/// Source of a body, which determines the handling of fields that are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyOrigin {
    /// Line that consists of the fields themselves and may have its own columns.
    ShortLine,
    /// Line of a batch file.
    BatchLine,
    /// Client of the server: unknown fields of messages are ignored, and fields that require a
    /// connection are read.
    Client,
}
