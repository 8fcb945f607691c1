//! Result table of `vllm bench serve`, with the same row names, so that parsers of one can read the
//! other.

use std::fmt::Write as _;

use super::arrivals::Rate;
use super::results::{LatencySummary, LoadTestResults};

/// Width of the table, in characters.
const WIDTH: usize = 50;

/// Returns the table; each line ends with a newline.
pub fn format_table(figures: &LoadTestResults, rate: Option<Rate>) -> String {
    let mut text = title_line(" Serving Benchmark Result ", '=');
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<40} {value:<10}");
    };
    row("Successful requests:", figures.completed.to_string());
    row("Failed requests:", figures.failed.to_string());
    if let Some(Rate::PerSecond(rate)) = rate {
        row("Request rate configured (RPS):", two_decimals(rate));
    }
    row("Benchmark duration (s):", two_decimals(figures.duration));
    row("Total input tokens:", figures.total_input_tokens.to_string());
    row("Total generated tokens:", figures.total_output_tokens.to_string());
    row("Request throughput (req/s):", two_decimals(figures.request_throughput));
    row("Request goodput (req/s):", two_decimals(figures.request_goodput));
    row("Requests within the SLO (%):", two_decimals(figures.within_slo * 100.0));
    row("Output token throughput (tok/s):", two_decimals(figures.output_throughput));
    row("Total Token throughput (tok/s):", two_decimals(figures.total_token_throughput));
    let parts = [
        ("Time to First Token", "TTFT", figures.ttft_ms),
        ("Time per Output Token (excl. 1st token)", "TPOT", figures.tpot_ms),
        ("Inter-token Latency", "ITL", figures.itl_ms),
    ];
    for (title, name, spread) in parts {
        text.push_str(&title_line(title, '-'));
        let mut row = |statistic: &str, value: fn(LatencySummary) -> f64| {
            let value = spread.map_or_else(|| "-".to_owned(), |spread| two_decimals(value(spread)));
            let _ = writeln!(text, "{:<40} {value:<10}", format!("{statistic} {name} (ms):"));
        };
        row("Mean", |spread| spread.mean);
        row("Median", |spread| spread.median);
        row("P99", |spread| spread.p99);
    }
    text.push_str(&title_line("", '='));
    text
}

fn two_decimals(value: f64) -> String {
    format!("{value:.2}")
}

/// Returns a line with `title` in the middle.
fn title_line(title: &str, fill: char) -> String {
    let around = WIDTH.saturating_sub(title.len());
    let fills = |count| fill.to_string().repeat(count);
    format!("{}{title}{}\n", fills(around / 2), fills(around - around / 2))
}

#[cfg(test)]
mod tests {
    use super::super::record::RequestRecords;
    use super::super::slo::Slo;
    use super::*;

    #[test]
    fn rows_have_the_names_that_others_read() {
        let figures = LoadTestResults {
            completed: 100,
            output_throughput: 1234.567,
            tpot_ms: Some(LatencySummary { mean: 1.0, median: 2.0, p95: 3.0, p99: 4.5, max: 5.0 }),
            ..LoadTestResults::from_records(&RequestRecords::default(), Slo::default())
        };
        let text = format_table(&figures, Some(Rate::PerSecond(4.0)));
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[0], "============ Serving Benchmark Result ============");
        let with = |name: &str, value: &str| format!("{name:<40} {value}");
        for line in [
            with("Successful requests:", "100"),
            with("Request rate configured (RPS):", "4.00"),
            with("Output token throughput (tok/s):", "1234.57"),
            with("Mean TTFT (ms):", "-"),
            with("P99 TPOT (ms):", "4.50"),
        ] {
            assert!(lines.contains(&line.as_str()), "{line}\n{text}");
        }
        assert!(text.contains("---------------Time to First Token----------------"));
        assert!(text.contains("-----Time per Output Token (excl. 1st token)------"));
        assert!(text.contains("---------------Inter-token Latency----------------"));
        assert!(!format_table(&figures, Some(Rate::Infinite)).contains("configured"));
    }
}
