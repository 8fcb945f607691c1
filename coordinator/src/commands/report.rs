//! `coordinator report`: writes a report as an HTML page.

use std::path::Path;

use anyhow::Context;

use crate::cli::request::ReportRequest;
use report::file::Report;
use report::page::render;
use session::exit::Exit;

/// Writes the page.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &ReportRequest) -> anyhow::Result<Exit> {
    let report = read_report(&request.report)?;
    let other = request.compare.as_deref().map(read_report).transpose()?;
    let page = render(&report, other.as_ref())?;
    let html = &request.html;
    std::fs::write(html, page).with_context(|| format!("the page {}", html.display()))?;
    Ok(Exit::Done)
}

fn read_report(path: &Path) -> anyhow::Result<Report> {
    let named = || format!("the report {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    let what = "not a report of a run, as `--report` writes it";
    serde_json::from_str(&text).with_context(|| format!("{}: {what}", named()))
}
