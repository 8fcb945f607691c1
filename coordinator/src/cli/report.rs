//! Arguments of `report`.

use std::path::PathBuf;

use clap::Args;

use super::request::ReportRequest;

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Report that a run wrote with --report
    #[arg(value_name = "REPORT")]
    pub report: PathBuf,
    /// Second report to compare with
    #[arg(long, value_name = "REPORT")]
    pub compare: Option<PathBuf>,
    /// File for the page, which is self-contained
    #[arg(long, value_name = "FILE")]
    pub html: PathBuf,
}

/// Converts the arguments to a request.
pub(super) fn report(args: ReportArgs) -> ReportRequest {
    let ReportArgs { report, compare, html } = args;
    ReportRequest { report, compare, html }
}
