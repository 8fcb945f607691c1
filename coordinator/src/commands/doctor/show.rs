//! The findings as text and as JSON.

use std::fmt::Write;

use super::Section;
use report::plain_table::plain_table;

/// Returns one object: `{"sections": [{"name", "findings": [{"name", "value", "costs"}]}]}`.
///
/// # Errors
/// None that these values can cause.
pub(super) fn json(sections: &[Section]) -> serde_json::Result<String> {
    let object = serde_json::json!({ "sections": sections });
    Ok(serde_json::to_string_pretty(&object)? + "\n")
}

/// Returns one table per section, followed by the costs of missing features. Each cost is labelled
/// with the name of its finding.
pub(super) fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        let mut table = plain_table();
        table.set_header([section.name, ""]);
        for finding in &section.findings {
            table.add_row([finding.label.as_str(), finding.shown.as_str()]);
        }
        let _ = writeln!(text, "{table}");
        for finding in &section.findings {
            if let Some(costs) = &finding.costs {
                let _ = writeln!(text, " - {} ({}): {costs}.", finding.label, finding.shown);
            }
        }
        text.push('\n');
    }
    let missing = sections.iter().flat_map(|section| &section.findings);
    let missing = missing.filter(|finding| finding.costs.is_some()).count();
    text.push_str(&match missing {
        0 => "All features that this program can use are present.\n".to_owned(),
        1 => "1 feature is missing or slow; results are correct without it.\n".to_owned(),
        _ => format!("{missing} features are missing or slow; results are correct without them.\n"),
    });
    text
}
