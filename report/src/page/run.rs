//! A run on a page.

use crate::file::Report;

/// A report with its name on the page.
#[derive(Debug)]
pub(super) struct PageRun<'r> {
    /// `a` for the first report, `b` for the one it is compared with.
    pub(super) letter: &'static str,
    pub(super) report: &'r Report,
    /// The report as JSON, in which pointers are resolved.
    pub(super) value: serde_json::Value,
}
