//! The records of `planner/papers`: the numbers that a paper prints, and the runs to which they
//! belong.
//!
//! A file has a `title`, a list `left_out` with reasons, `causes` by name, and tables. All keys of
//! a table other than `id`, `title` and `note` apply to each of its cells. A cell whose value is a
//! pair stands for two cells: the minimum and the maximum of a range; their causes may also be a
//! pair.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Texts of the records, in the order of the tables.
pub const FILES: [(&str, &str); 3] = [
    ("park-egger.toml", include_str!("../../papers/park-egger.toml")),
    ("lia.toml", include_str!("../../papers/lia.toml")),
    ("ellm.toml", include_str!("../../papers/ellm.toml")),
];

/// Records of a paper.
#[derive(Debug)]
pub struct Paper {
    pub title: String,
    /// Printed results for which there is no cell, each with the reason.
    pub left_out: Vec<String>,
    /// Reasons why an answer differs, by the name that cells use.
    pub causes: BTreeMap<String, String>,
    pub tables: Vec<Figure>,
}

/// A figure, a table or a section of a paper.
#[derive(Debug)]
pub struct Figure {
    pub id: String,
    pub title: String,
    pub note: Option<String>,
    pub cells: Vec<Cell>,
}

/// Quantity of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Quantity {
    /// New tokens per second of the whole run. As a ratio, this is also the factor by which latency
    /// is lower.
    #[serde(rename = "throughput")]
    Throughput,
    /// Duration of the whole run, in s.
    #[serde(rename = "latency")]
    Latency,
    /// Duration of all decode steps, in s.
    #[serde(rename = "generation")]
    Generation,
    /// Duration of prefill, in s.
    #[serde(rename = "prefill")]
    Prefill,
    /// Share of prefill in the whole run.
    #[serde(rename = "prefill share")]
    PrefillShare,
    /// Duration of a decoder layer in a decode step, in ms.
    #[serde(rename = "layer")]
    Layer,
    /// Share of a decoder layer during which the CPU computes.
    #[serde(rename = "cpu busy")]
    CpuBusy,
    /// Share of a layer's transfers during which the CPU computes.
    #[serde(rename = "cpu beside transfers")]
    CpuBesideTransfers,
    /// Busy time of the CPU during the run, in s.
    #[serde(rename = "cpu time")]
    CpuTime,
    #[serde(rename = "gpu time")]
    GpuTime,
    #[serde(rename = "transfer time")]
    TransferTime,
    /// Size of weights and KV, in GB.
    #[serde(rename = "memory")]
    Memory,
    /// Size of the weights, in GB.
    #[serde(rename = "weights")]
    Weights,
    /// Size of the KV, in GB.
    #[serde(rename = "kv")]
    Kv,
    /// Share of the weights in weights and KV.
    #[serde(rename = "weights' share")]
    WeightsShare,
    /// Share of the layers that are resident in device memory.
    #[serde(rename = "resident share")]
    ResidentShare,
    /// Share of the weights in additional host memories in everything that the host stores.
    #[serde(rename = "far share")]
    FarShare,
    /// Maximum number of sequences of a batch that fit.
    #[serde(rename = "largest batch")]
    LargestBatch,
    /// LIA's offload vector in prefill.
    #[serde(rename = "prefill vector")]
    PrefillVector,
    #[serde(rename = "decode vector")]
    DecodeVector,
    /// Number of prompt tokens from which the vector is not all CPU.
    #[serde(rename = "prefill turn")]
    PrefillTurn,
    /// Number of sequences from which the vector is not all CPU.
    #[serde(rename = "decode turn")]
    DecodeTurn,
}

/// Selects or combines several answers into the value of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    #[default]
    Only,
    Min,
    Max,
    Mean,
}

/// Paper results that the planner was built to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// LIA on its own tables.
    Lia,
    /// FlexGen as LIA's baseline.
    Flexgen,
}

impl Goal {
    pub const ALL: [Goal; 2] = [Goal::Lia, Goal::Flexgen];

    /// Returns the maximum error that reaches the goal.
    pub const fn tolerance(self) -> f64 {
        match self {
            Goal::Lia => 0.15,
            Goal::Flexgen => 0.25,
        }
    }

    pub const fn title(self) -> &'static str {
        match self {
            Goal::Lia => "LIA's times in its tables 3 and 4",
            Goal::Flexgen => "FlexGen's in tables 4 (its policy) and 5",
        }
    }
}

/// A number of the paper, or an offload vector.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Number(f64),
    Vector(String),
}

/// Denominator of a ratio: the same run except for the fields given here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versus {
    policy: Option<String>,
    machine: Option<String>,
    scores: Option<u16>,
    nvme: Option<bool>,
}

/// Number format of weights and KV in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    #[default]
    None,
    W4,
    Kv4,
    W4kv4,
}

/// Order of a layer's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The model's order.
    #[default]
    Layer,
    /// The order of Activation Sequence Caching.
    Asc,
}

/// One number of a paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub id: String,
    /// Section, figure or table.
    pub place: String,
    /// Text in the paper; absent for an end of a range of multiples.
    pub printed: Option<String>,
    pub value: Value,
    pub quantity: Quantity,
    #[serde(default)]
    pub of: Of,
    pub versus: Option<Versus>,
    models: Vec<String>,
    machines: Vec<String>,
    /// N and B of NxB.
    batches: Vec<[u32; 2]>,
    /// Numbers of prompt tokens and of new tokens.
    lengths: Vec<[u32; 2]>,
    policy: String,
    #[serde(default)]
    compression: Compression,
    /// Number of chunks of Scores in decode.
    #[serde(default = "one")]
    scores: u16,
    #[serde(default)]
    nvme: bool,
    /// Layers may be resident in device memory.
    #[serde(default = "yes")]
    resident: bool,
    #[serde(default)]
    order: Order,
    /// Transfers may overlap with computing.
    #[serde(default = "yes")]
    overlap: bool,
    /// LIA's vectors of prefill and decode, if they are not the best ones.
    vectors: Option<[String; 2]>,
    /// Weights are stored in an additional host memory; otherwise the machine has none.
    #[serde(default)]
    far: bool,
    /// Host memory is unlimited, as in LIA's latency model.
    #[serde(default)]
    unbounded: bool,
    /// Details that the paper does not specify.
    pub note: Option<String>,
    /// Goal to which the cell contributes.
    pub goal: Option<Goal>,
    /// Names of causes.
    #[serde(default)]
    pub cause: Vec<String>,
}

fn one() -> u16 {
    1
}

fn yes() -> bool {
    true
}

/// A run to be predicted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scenario {
    pub model: String,
    pub machine: String,
    pub batches: u32,
    pub batch_size: u32,
    pub prompt: u32,
    pub new_tokens: u32,
    pub policy: String,
    pub compression: Compression,
    pub scores: u16,
    pub nvme: bool,
    pub resident: bool,
    pub overlap: bool,
    pub order: Order,
    pub vectors: Option<[String; 2]>,
    pub far: bool,
    pub unbounded: bool,
}

impl Scenario {
    /// Returns the scenario in the denominator of a cell's ratio.
    pub fn versus(&self, other: &Versus) -> Scenario {
        let mut scenario = self.clone();
        scenario.policy = other.policy.clone().unwrap_or(scenario.policy);
        scenario.machine = other.machine.clone().unwrap_or(scenario.machine);
        scenario.scores = other.scores.unwrap_or(scenario.scores);
        scenario.nvme = other.nvme.unwrap_or(scenario.nvme);
        scenario
    }
}

impl Cell {
    /// Returns every run to which the cell applies.
    pub fn scenarios(&self) -> Vec<Scenario> {
        let mut scenarios = Vec::new();
        for (model, machine) in pairs(&self.models, &self.machines) {
            for ([batches, batch_size], [prompt, new_tokens]) in pairs(&self.batches, &self.lengths)
            {
                scenarios.push(Scenario {
                    model: model.clone(),
                    machine: machine.clone(),
                    batches,
                    batch_size,
                    prompt,
                    new_tokens,
                    policy: self.policy.clone(),
                    compression: self.compression,
                    scores: self.scores,
                    nvme: self.nvme,
                    resident: self.resident,
                    overlap: self.overlap,
                    order: self.order,
                    vectors: self.vectors.clone(),
                    far: self.far,
                    unbounded: self.unbounded,
                });
            }
        }
        scenarios
    }
}

fn pairs<A: Clone, B: Clone>(left: &[A], right: &[B]) -> Vec<(A, B)> {
    left.iter().flat_map(|a| right.iter().map(move |b| (a.clone(), b.clone()))).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperFile {
    title: String,
    left_out: Vec<String>,
    #[serde(default)]
    causes: BTreeMap<String, String>,
    table: Vec<toml::Table>,
}

/// Parses one of [`FILES`].
///
/// # Errors
/// Returns a message with the file's name.
pub fn read((name, text): (&str, &str)) -> Result<Paper, String> {
    let file: PaperFile = toml::from_str(text).map_err(|error| format!("{name}: {error}"))?;
    let figure = |table| figure(table).map_err(|error| format!("{name}: {error}"));
    let tables = file.table.into_iter().map(figure).collect::<Result<Vec<_>, String>>()?;
    let paper = Paper { title: file.title, left_out: file.left_out, causes: file.causes, tables };
    for cell in paper.tables.iter().flat_map(|figure| &figure.cells) {
        if let Some(cause) = cell.cause.iter().find(|cause| !paper.causes.contains_key(*cause)) {
            return Err(format!("{name}: {} has the cause {cause}, which is not there", cell.id));
        }
    }
    Ok(paper)
}

fn figure(mut table: toml::Table) -> Result<Figure, String> {
    let [id, title, note] = ["id", "title", "note"].map(|key| table.remove(key));
    let text = |value: Option<toml::Value>, key: &str| match value {
        Some(toml::Value::String(text)) => Ok(text),
        _ => Err(format!("a table has no {key}")),
    };
    let (id, title) = (text(id, "id")?, text(title, "title")?);
    let Some(toml::Value::Array(cells)) = table.remove("cells") else {
        return Err(format!("{id} has no cells"));
    };
    let mut figure = Figure {
        id,
        title,
        note: note.map(|note| text(Some(note), "note")).transpose()?,
        cells: vec![],
    };
    for cell in cells {
        let toml::Value::Table(own) = cell else {
            return Err(format!("a cell of {} is no table", figure.id));
        };
        let mut whole = table.clone();
        whole.extend(own);
        for cell in ends(whole) {
            let cell: Result<Cell, toml::de::Error> = cell.try_into();
            figure.cells.push(cell.map_err(|error| format!("{}: {error}", figure.id))?);
        }
    }
    Ok(figure)
}

/// Returns the cell, or two of them for a range.
fn ends(cell: toml::Table) -> Vec<toml::Table> {
    let Some(toml::Value::Array(values)) = cell.get("value").cloned() else { return vec![cell] };
    let end = |index: usize, (value, (of, name)): (toml::Value, (&str, &str))| {
        let mut end = cell.clone();
        let id = end.get("id").and_then(toml::Value::as_str).unwrap_or_default();
        let id = format!("{id}, {name}");
        end.insert("id".to_owned(), id.into());
        end.insert("of".to_owned(), of.into());
        end.insert("value".to_owned(), value);
        let causes = end.get("cause").and_then(toml::Value::as_array);
        let own = causes.and_then(|causes| causes.get(index)).filter(|cause| cause.is_array());
        if let Some(own) = own.cloned() {
            end.insert("cause".to_owned(), own);
        }
        end
    };
    let ends = [("min", "least"), ("max", "most")];
    values.into_iter().zip(ends).enumerate().map(|(index, one)| end(index, one)).collect()
}
