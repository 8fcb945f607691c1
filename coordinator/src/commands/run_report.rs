//! Report of a run: the file of `--report`, and the table at the end.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use batch::summary::JobSummary;
use engine::RunStats;
use program::plan::Plan;

use report::build::{self, RunPrediction};
use report::file::RequestCounts;
use report::table;
use session::placement::thread_counts;
use session::request::Verbosity;
use session::session::Session;
use session::terminal::print;

/// Returns the counts of a job's requests.
pub(super) fn job_counts(summary: &JobSummary) -> RequestCounts {
    RequestCounts {
        answered: summary.answered,
        failed: summary.failed_lines.len(),
        cut: summary.truncated_lines.len(),
        not_run: summary.not_run.len(),
    }
}

/// Writes the report to a file, if one is requested, and prints the table. `requests` is `None` for
/// a benchmark.
///
/// # Errors
/// A report that could not be written.
pub(super) fn write_report(
    session: &Session<'_>,
    file: Option<&Path>,
    requests: Option<RequestCounts>,
    plan: &Plan,
    measured: &RunStats,
    prediction: &RunPrediction,
) -> anyhow::Result<()> {
    let (cpu_threads, gpu_threads) = thread_counts(session, plan.map.uses_gpu());
    let mut by_worker = BTreeMap::from([("cpu worker".to_owned(), cpu_threads)]);
    if plan.map.uses_gpu() {
        by_worker.insert("gpu worker".to_owned(), gpu_threads);
    }
    let mut report = build::build(plan, measured, prediction, by_worker);
    // Results of a job may go to stdout; then tables go to stderr.
    let report_uses_stdout = file == Some(Path::new("-"));
    let prints_to_stdout = requests.is_none() && !report_uses_stdout;
    report.requests = requests;
    if let Some(path) = file {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        if report_uses_stdout {
            write!(std::io::stdout(), "{text}").or_else(ignore_broken_pipe)?;
        } else {
            std::fs::write(path, text).with_context(|| format!("the report {}", path.display()))?;
        }
    }
    if !session.options.is_quiet() && report.groups > 0 {
        let text = table::render(&report, session.options.verbosity == Verbosity::Verbose);
        if prints_to_stdout {
            print(&text).or_else(ignore_broken_pipe)?;
        } else {
            eprint!("{text}");
        }
    }
    Ok(())
}

fn ignore_broken_pipe(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}
