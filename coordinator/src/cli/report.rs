//! Arguments of `report`.

use std::path::PathBuf;

use clap::Args;

use super::request::ReportRequest;

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct LowReport {
    /// What a run wrote with --report
    #[arg(value_name = "REPORT")]
    pub report: PathBuf,
    /// Another report, to show beside it
    #[arg(long, value_name = "REPORT")]
    pub compare: Option<PathBuf>,
    /// Where the page goes: one file that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: PathBuf,
}

/// Converts the arguments to a request.
pub(super) fn report(low: LowReport) -> ReportRequest {
    let LowReport { report, compare, html } = low;
    ReportRequest { report, compare, html }
}
