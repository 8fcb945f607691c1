//! The records of `planner/papers/serving`: what a paper shows of a policy over another, by the
//! length of answers, and the runs that it is about.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Texts of the records, in the order of the tables.
pub const FILES: [(&str, &str); 2] = [
    ("neo.toml", include_str!("../../../papers/serving/neo.toml")),
    ("apex.toml", include_str!("../../../papers/serving/apex.toml")),
];

/// One paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    pub title: String,
    /// What it prints and no cell has, each with the reason.
    pub left_out: Vec<String>,
    /// Why answers differ.
    #[serde(default)]
    pub causes: BTreeMap<String, String>,
    pub figure: Vec<Figure>,
}

/// A figure: one policy over another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub id: String,
    pub title: String,
    pub note: String,
    /// A known model.
    pub model: String,
    pub policy: String,
    pub over: String,
    /// All at once.
    pub requests: u32,
    /// Tokens of prompts, within 10%.
    pub input: u32,
    /// Of 16 positions; every policy but `gpu-only` leaves one layer's share of them free.
    pub device_pages: u32,
    /// Most of an iteration.
    pub rows: u32,
    /// How far an answer may be from its value.
    pub goal: Option<f64>,
    /// What is compared.
    pub by: By,
    pub series: Vec<Series>,
}

/// Throughput of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Of NEO's window.
    Window,
    /// Of all of the run.
    Makespan,
}

/// A machine's part of a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// A known machine.
    pub machine: String,
    /// Caches in host memory.
    pub host_gb: u32,
    /// Tokens of answers, within 10%.
    pub output: Vec<u32>,
    /// One for each output; or a bound for all of them.
    #[serde(default)]
    pub value: Vec<f64>,
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// Why answers that are beyond the goal are.
    #[serde(default)]
    pub cause: Vec<String>,
}

/// What a paper has for an output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Printed {
    Value(f64),
    AtLeast(f64),
    AtMost(f64),
}

impl Printed {
    /// How far an answer is from it, and whether that is within a goal.
    pub fn compare(self, answer: f64, goal: Option<f64>) -> (Option<f64>, Option<bool>) {
        match self {
            Printed::Value(value) => {
                let error = answer - value;
                (Some(error), goal.map(|goal| error.abs() <= goal))
            }
            Printed::AtLeast(least) => (None, Some(answer >= least)),
            Printed::AtMost(most) => (None, Some(answer <= most)),
        }
    }

    pub fn text(self) -> String {
        match self {
            Printed::Value(value) => format!("{value}x"),
            Printed::AtLeast(least) => format!("at least {least}x"),
            Printed::AtMost(most) => format!("at most {most}x"),
        }
    }
}

impl Series {
    /// Outputs and what the paper has for each.
    pub fn cells(&self) -> impl Iterator<Item = (u32, Printed)> {
        self.output.iter().enumerate().filter_map(|(index, output)| {
            let value = self.value.get(index).map(|value| Printed::Value(*value));
            let bound = self.least.map(Printed::AtLeast).or_else(|| self.most.map(Printed::AtMost));
            Some((*output, value.or(bound)?))
        })
    }
}

/// Reads a record.
///
/// # Errors
/// A sentence that begins with the file's name.
pub fn read((name, text): (&str, &str)) -> Result<Paper, String> {
    let paper: Paper = toml::from_str(text).map_err(|error| format!("{name}: {error}"))?;
    for figure in &paper.figure {
        for series in &figure.series {
            if series.cells().count() != series.output.len() {
                return Err(format!("{name}: {}: an output without a value", figure.id));
            }
            if let Some(cause) = series.cause.iter().find(|one| !paper.causes.contains_key(*one)) {
                return Err(format!("{name}: {}: there is no cause {cause}", figure.id));
            }
        }
    }
    Ok(paper)
}
