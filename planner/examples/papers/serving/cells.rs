//! The records of `planner/papers/serving`: the results of one policy relative to another, by the
//! length of answers, and the runs to which they belong.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Texts of the records, in the order of the tables.
pub const FILES: [(&str, &str); 2] = [
    ("neo.toml", include_str!("../../../papers/serving/neo.toml")),
    ("apex.toml", include_str!("../../../papers/serving/apex.toml")),
];

/// Records of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    pub title: String,
    /// Printed results for which there is no cell, each with the reason.
    pub left_out: Vec<String>,
    /// Reasons why answers differ.
    #[serde(default)]
    pub causes: BTreeMap<String, String>,
    pub figure: Vec<Figure>,
}

/// A figure: one policy relative to another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub id: String,
    pub title: String,
    pub note: String,
    /// Name of a known model.
    pub model: String,
    pub policy: String,
    pub over: String,
    /// Number of requests, which all arrive at once.
    pub requests: u32,
    /// Mean number of prompt tokens; lengths are within 10%.
    pub input: u32,
    /// Number of pages of 16 positions on the device; every policy except `gpu-only` leaves one
    /// layer's share of them free.
    pub device_pages: u32,
    /// Maximum number of rows in an iteration.
    pub rows: u32,
    /// Maximum error of an answer.
    pub goal: Option<f64>,
    /// Quantity that is compared.
    pub by: By,
    pub series: Vec<Series>,
}

/// Part of the run whose throughput is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The window of NEO's evaluation.
    Window,
    /// The whole run.
    Makespan,
}

/// The results of one machine in a figure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Name of a known machine.
    pub machine: String,
    /// Host memory for caches.
    pub host_gb: u32,
    /// Mean numbers of answer tokens; lengths are within 10%.
    pub output: Vec<u32>,
    /// One value per output; alternatively there is a bound for all of them.
    #[serde(default)]
    pub value: Vec<f64>,
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// Reasons why answers miss the goal.
    #[serde(default)]
    pub cause: Vec<String>,
}

/// The paper's result for an output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Printed {
    Value(f64),
    AtLeast(f64),
    AtMost(f64),
}

impl Printed {
    /// Returns the error of an answer, and true if it is within the goal.
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
    /// Returns the outputs with the paper's result for each.
    pub fn cells(&self) -> impl Iterator<Item = (u32, Printed)> {
        self.output.iter().enumerate().filter_map(|(index, output)| {
            let value = self.value.get(index).map(|value| Printed::Value(*value));
            let bound = self.least.map(Printed::AtLeast).or_else(|| self.most.map(Printed::AtMost));
            Some((*output, value.or(bound)?))
        })
    }
}

/// Parses a record.
///
/// # Errors
/// Returns a message that starts with the file's name.
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
