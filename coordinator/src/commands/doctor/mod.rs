//! `coordinator doctor`: what this machine has of what Tandem can use, and what each absence costs.
//! Nothing is measured and nothing is changed; of a CUDA device two MiB are taken for a moment, to
//! see whether another process can open them.
//!
//! A report is a list of sections and a section a list of findings; a device adds a section of its
//! own to [`examine`].

mod disks;
mod gpu;
mod memory;
pub mod probe;
mod processor;
mod show;
mod system;
#[cfg(test)]
mod tests;

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::exit::Exit;
use crate::job::error::JobError;
use crate::terminal::print;

/// One thing that a machine has or lacks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// For machines: lower case, words joined by `_`.
    name: &'static str,
    /// For machines: a bool, a number of bytes or of things, a text, or `null` where the system
    /// does not say.
    value: Value,
    /// For people: what it is called.
    #[serde(skip)]
    label: String,
    /// For people: the value.
    #[serde(skip)]
    shown: String,
    /// What its absence costs, in one clause; `None` where nothing is missing.
    costs: Option<String>,
}

impl Finding {
    /// Something that is as it should be, or that costs nothing.
    fn new(name: &'static str, label: &str, value: impl Into<Value>, shown: String) -> Finding {
        Finding { name, value: value.into(), label: label.to_owned(), shown, costs: None }
    }

    /// Something that is there or not, with what its absence costs.
    fn has(name: &'static str, label: &str, there: bool, costs: &str) -> Finding {
        let shown = if there { "yes" } else { "no" }.to_owned();
        Finding::new(name, label, there, shown).costs_unless(there, costs)
    }

    fn costs_unless(mut self, fine: bool, costs: &str) -> Finding {
        self.costs = (!fine).then(|| costs.to_owned());
        self
    }
}

/// Findings about one part of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Section {
    name: &'static str,
    findings: Vec<Finding>,
}

/// Where a machine's files lie; tests have their own.
#[derive(Debug, Clone)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// The text of a file below `proc` or `sys`, trimmed; `None` when it is not there.
    fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.0.join(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Names in a folder, ascending; none when it is not there.
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

    /// A field of `/proc/meminfo`, bytes.
    fn meminfo_bytes(&self, field: &str) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    }
}

/// Looks at everything.
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

/// Examines this machine and tells.
///
/// # Errors
/// A sentence for the user.
pub fn run(json: bool) -> anyhow::Result<Exit> {
    let sections = examine(Path::new("/"));
    let text = if json { show::json(&sections)? } else { show::text(&sections) };
    let written = if json { stdout().write_all(text.as_bytes()) } else { print(&text) };
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(JobError::BrokenPipe.into())
        }
        text => Ok(text.map(|()| Exit::Done)?),
    }
}

/// `12.3 GiB`, `512.0 MiB`, or `64.0 KiB` for less.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)];
    let found = units.into_iter().find(|(_, unit)| bytes >= *unit as f64);
    let (name, unit) = found.unwrap_or(("KiB", 1 << 10));
    format!("{:.1} {name}", bytes / unit as f64)
}
