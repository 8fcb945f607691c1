//! `coordinator doctor`: the features of this machine that Tandem can use, and the cost of each
//! missing one. It measures and changes nothing; it allocates two MiB of a CUDA device for a
//! moment, to find out whether another process can open them.
//!
//! A report is a list of sections, and a section a list of findings. A new kind of device adds a
//! section to [`examine`].

mod disks;
mod gpu;
mod memory;
pub mod probe;
mod processor;
mod show;
mod system;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use session::exit::Exit;
use session::output::print_result;

/// A feature that a machine has or lacks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// Name in JSON: lower case, words joined by `_`.
    name: &'static str,
    /// Value in JSON: a bool, a number of bytes or items, a text, or `null` if the system does not
    /// report it.
    value: Value,
    /// Name in the text report.
    #[serde(skip)]
    label: String,
    /// Value in the text report.
    #[serde(skip)]
    shown: String,
    /// Cost of the feature's absence, in one clause; `None` if it is not missing.
    costs: Option<String>,
}

impl Finding {
    /// Returns a finding without a cost.
    fn new(name: &'static str, label: &str, value: impl Into<Value>, shown: String) -> Finding {
        Finding { name, value: value.into(), label: label.to_owned(), shown, costs: None }
    }

    /// Returns a finding for a feature that is present or missing, with the cost of its absence.
    fn for_feature(name: &'static str, label: &str, is_present: bool, costs: &str) -> Finding {
        let shown = if is_present { "yes" } else { "no" }.to_owned();
        Finding::new(name, label, is_present, shown).costs_unless(is_present, costs)
    }

    fn costs_unless(mut self, is_present: bool, costs: &str) -> Finding {
        self.costs = (!is_present).then(|| costs.to_owned());
        self
    }
}

/// Findings about one part of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Section {
    name: &'static str,
    findings: Vec<Finding>,
}

/// Root directory of a machine's files; tests use their own.
#[derive(Debug, Clone)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// Returns the trimmed text of a file below `proc` or `sys`; `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.0.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns the names in a folder in ascending order; none if it cannot be read.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(path));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// Returns a field of `/proc/meminfo` in bytes.
    fn meminfo_bytes(&self, field: &str) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }
}

/// Examines all parts of a machine.
fn examine(root: &Path) -> Vec<Section> {
    let root = Root(root.to_owned());
    vec![
        Section { name: "processor", findings: processor::findings() },
        Section { name: "memory", findings: memory::findings(&root) },
        Section { name: "gpu", findings: gpu::findings(&root) },
        Section { name: "disks", findings: disks::findings(&root) },
        Section { name: "system", findings: system::findings(&root) },
    ]
}

/// Examines this machine and prints the report.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(json: bool) -> anyhow::Result<Exit> {
    let sections = examine(Path::new("/"));
    let text = if json { show::json(&sections)? } else { show::text(&sections) };
    print_result(&text, json)?;
    Ok(Exit::Done)
}

/// Formats a size like `12.3 GiB` or `512.0 MiB`; the smallest unit is KiB.
fn format_size(bytes: u64) -> String {
    let bytes = bytes as f64;
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)];
    let found = units.into_iter().find(|(_, unit)| bytes >= *unit as f64);
    let (name, unit) = found.unwrap_or(("KiB", 1 << 10));
    format!("{:.1} {name}", bytes / unit as f64)
}
