//! Summary of all scores as text.

use std::fmt::Write;

use batch::score::summary::ScoreSummary;

use report::plain_table::{plain_table, right_aligned};

/// Returns the table, and a line about missing scores.
pub(super) fn render(summary: &ScoreSummary) -> String {
    let mut table = plain_table();
    table.set_header(["", "scored", "greedy", "tokens", "log-probability", "perplexity"]);
    let perplexity =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
    table.add_row([
        "all".to_owned(),
        summary.continuations.to_string(),
        summary.greedy.to_string(),
        summary.tokens.to_string(),
        format!("{:.4}", summary.logprob),
        perplexity(summary.perplexity),
    ]);
    if let Some(of_windows) = summary.perplexity_of_windows {
        let dashes = ["mean over windows, as in transformers", "", "", "", ""];
        table.add_row(dashes.map(str::to_owned).into_iter().chain([perplexity(Some(of_windows))]));
    }
    right_aligned(&mut table, 1..6);
    let mut text = format!("{table}\n");
    let ScoreSummary { items, failed, not_run, computed_tokens, cached_tokens, seconds, .. } =
        summary;
    let _ = write!(text, "{} of {items} lines scored", items - failed - not_run);
    for (count, what) in [(failed, "failed"), (not_run, "not run")] {
        if *count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if computed_tokens + cached_tokens > 0 {
        let _ = write!(
            text,
            "; {computed_tokens} tokens computed and {cached_tokens} read from caches in \
             {seconds:.1} s"
        );
    }
    if summary.interrupted {
        let more = if summary.resumable { ", continue with --resume" } else { "" };
        let _ = write!(text, "; interrupted{more}");
    }
    text
}
