//! Measured routing in the report of an earlier run.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use program::routing_counts::RoutingCounts;
use serde::Deserialize;

/// Maximum size of a report, far above that of a model with a thousand layers of experts.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of layers and of experts of a layer in a file.
const MAX_COUNT: usize = 1 << 16;

/// Measured routing of rows to experts, as an argument; `None`: all experts are taken to be equally
/// likely.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoutingChoice(pub Option<Arc<RoutingCounts>>);

/// The part of a report that is read.
#[derive(Deserialize)]
struct ReportRouting {
    routing: Option<CountedRows>,
}

#[derive(Deserialize)]
struct CountedRows {
    #[serde(default)]
    rows_of_experts: RoutingCounts,
}

/// Reads `even`, or the file of an earlier run's `--report`.
///
/// # Errors
/// A file that cannot be read, is too large, or has no counts of routed rows.
pub fn parse_routing(text: &str) -> Result<RoutingChoice, String> {
    if text == "even" {
        return Ok(RoutingChoice::default());
    }
    read(Path::new(text)).map(|counts| RoutingChoice(Some(Arc::new(counts))))
}

fn read(path: &Path) -> Result<RoutingCounts, String> {
    let shown = path.display();
    let fail = |error: std::io::Error| format!("{shown}: {error}");
    let file = std::fs::File::open(path).map_err(fail)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("{shown} is larger than {MAX_BYTES} bytes, so it is no report"));
    }
    let report: ReportRouting = serde_json::from_slice(&bytes)
        .map_err(|error| format!("{shown} is not a report: {error}"))?;
    let counts = report.routing.map(|routing| routing.rows_of_experts).unwrap_or_default();
    let is_bounded = counts.layers.len() <= MAX_COUNT
        && counts.layers.iter().all(|rows| rows.len() <= MAX_COUNT);
    if !is_bounded {
        return Err(format!("{shown} counts more than {MAX_COUNT} layers or experts"));
    }
    if counts.layers.iter().flatten().all(|rows| *rows == 0) {
        return Err(format!(
            "{shown} has no counts of routed rows; give the --report of a run of a mixture of \
             experts, or `even`"
        ));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_contain_the_rows_of_experts() {
        let folder = tempfile::tempdir().expect("a folder");
        let parse = |text: &str| {
            let path = folder.path().join("report.json");
            std::fs::write(&path, text).expect("writable");
            parse_routing(path.to_str().expect("a name"))
        };
        let counted = parse(r#"{"tool": 1, "routing": {"rows_of_experts": [[1, 2], [0, 3]]}}"#);
        let counts = counted.expect("counts").0.expect("a file");
        assert_eq!(counts.layers, [[1, 2], [0, 3]]);
        assert_eq!(parse_routing("even"), Ok(RoutingChoice(None)));
        for (text, problem) in [
            ("{}", "no counts"),
            (r#"{"routing": {"experts": 8}}"#, "no counts"),
            (r#"{"routing": {"rows_of_experts": [[0, 0]]}}"#, "no counts"),
            (r#"{"routing": {"rows_of_experts": [[-1]]}}"#, "not a report"),
            ("[[", "not a report"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(problem), "{text}: {refused}");
        }
        let missing = parse_routing("/nonexistent/report.json").expect_err("no file");
        assert!(missing.contains("report.json"), "{missing}");
    }
}
