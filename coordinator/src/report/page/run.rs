//! A run as the page tells it.

use crate::report::file::Report;

/// A report, and what it is called on the page.
#[derive(Debug)]
pub(super) struct Run<'r> {
    /// `a`, or `b` of the one beside it.
    pub(super) letter: &'static str,
    pub(super) report: &'r Report,
    /// The same, for pointers.
    pub(super) value: serde_json::Value,
}
