//! The sections on serving in the document.

use std::fmt::Write as _;

use super::cells::{By, Figure, Paper, Series};
use super::runs::{Ratio, Runs};

/// Returns the sections of all papers.
///
/// # Errors
/// Fails if a run is impossible.
pub fn render(papers: &[Paper], runs: &mut Runs) -> Result<String, String> {
    let mut text = HEAD.to_owned();
    for paper in papers {
        let _ = write!(text, "\n## {}\n", paper.title);
        for figure in &paper.figure {
            text += &table(figure, runs)?;
        }
        text += "\n### Causes\n\n";
        for (name, cause) in &paper.causes {
            let _ = writeln!(text, "- **{name}**: {}", one_line(cause));
        }
        text += "\nLeft out:\n\n";
        for line in &paper.left_out {
            let _ = writeln!(text, "- {}", one_line(line));
        }
    }
    Ok(text)
}

const HEAD: &str = "\n# Serving\n\n\
    Requests that come to a server, simulated iteration by iteration (`planner/src/serving`) with \
    the schedulers of `scheduler/src/hybrid`; `planner/papers/serving` has the runs. Ratios of \
    throughputs: *window* counts requests from 30% to 70% of the completions, as NEO's evaluation \
    does, *makespan* the whole run. The error is what is compared less the paper's value. Machines \
    are `planner/machines`, whose rates of memory and arithmetic are choices where a paper prints \
    none: the A10G's 45 TFLOPS are the best of three values for fig. 10a, all others were fixed \
    once. TPOT is the mean between two \
    tokens of an answer, over answers; host rows the mean between two tokens for which the CPU \
    attended. What both papers print with errors (\"maximize T/x\", \"larger T_tr/x\", \"Hiding \
    GPU\") is read as what is meant.\n";

fn table(figure: &Figure, runs: &mut Runs) -> Result<String, String> {
    let mut text = format!("\n### {}\n\n{}\n\n", figure.title, one_line(&figure.note));
    let mut rows = String::new();
    let (mut cells, mut within) = (0, 0);
    let mut least = [f64::INFINITY; 2];
    for series in &figure.series {
        for (output, printed) in series.cells() {
            let ratio = runs.ratio(figure, series, output)?;
            let (error, is_within) = printed.compare(ratio.of(figure.by), figure.goal);
            cells += 1;
            within += u32::from(is_within == Some(true));
            least = [least[0].min(ratio.window()), least[1].min(ratio.makespan())];
            rows += &row(series, output, &printed.text(), error, is_within, &ratio);
        }
    }
    let goal =
        figure.goal.map_or_else(|| "what is required".to_owned(), |goal| format!("{goal:.2}"));
    let by = match figure.by {
        By::Window => "window",
        By::Makespan => "makespan",
    };
    let [window, makespan] = least;
    let _ = writeln!(
        text,
        "Within {goal}, by {by}: {within} of {cells}. Least: {window:.3}x by window, \
         {makespan:.3}x by makespan.\n"
    );
    text += "| cell | paper | window | error | makespan | TPOT, ms | host rows, ms | cause |\n";
    text += "|---|---|---|---|---|---|---|---|\n";
    Ok(text + &rows)
}

fn row(
    series: &Series,
    output: u32,
    printed: &str,
    error: Option<f64>,
    is_within: Option<bool>,
    ratio: &Ratio,
) -> String {
    let served = &ratio.served;
    let ms = |spread: Option<planner::serving::LatencyDistribution>| {
        spread.map_or_else(|| "-".to_owned(), |spread| format!("{:.0}", spread.mean_ms))
    };
    let cause = match is_within {
        Some(false) if series.cause.is_empty() => "open".to_owned(),
        Some(false) => series.cause.join(", "),
        _ => String::new(),
    };
    format!(
        "| {}, {output} tokens out | {printed} | {:.2}x | {} | {:.2}x | {} | {} | {cause} |\n",
        series.machine,
        ratio.window(),
        error.map_or_else(String::new, |error| format!("{error:+.2}")),
        ratio.makespan(),
        ms(served.per_token),
        ms(served.host_gaps),
    )
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
