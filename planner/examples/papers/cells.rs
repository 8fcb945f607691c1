//! The records of `planner/papers`: what a paper prints, and the runs that it is about.
//!
//! A file has a `title`, what was `left_out` and why, `causes` by name, and tables. What stands in
//! a table beside `id`, `title` and `note` holds for each of its cells. A cell whose value is a
//! pair is two cells: the least and the greatest of a range; their causes may be a pair too.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Texts of the records, in the order of the tables.
pub const FILES: [(&str, &str); 2] = [
    ("park-egger.toml", include_str!("../../papers/park-egger.toml")),
    ("lia.toml", include_str!("../../papers/lia.toml")),
];

/// One paper.
#[derive(Debug)]
pub struct Paper {
    pub title: String,
    /// What it prints and no cell has, each with the reason.
    pub left_out: Vec<String>,
    /// Why an answer differs, by the name that cells use.
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

/// What a cell is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Quantity {
    /// New tokens per second of the whole run; as a ratio also how many times lower a latency is.
    #[serde(rename = "throughput")]
    Throughput,
    /// The whole run, s.
    #[serde(rename = "latency")]
    Latency,
    /// All decode steps, s.
    #[serde(rename = "generation")]
    Generation,
    /// s.
    #[serde(rename = "prefill")]
    Prefill,
    /// Share of prefill in the whole run.
    #[serde(rename = "prefill share")]
    PrefillShare,
    /// A decoder layer of a decode step, ms.
    #[serde(rename = "layer")]
    Layer,
    /// Share of a decoder layer in which the CPU computes.
    #[serde(rename = "cpu busy")]
    CpuBusy,
    /// Share of the transfers of a layer beside which the CPU computes.
    #[serde(rename = "cpu beside transfers")]
    CpuBesideTransfers,
    /// Busy time of the run, s.
    #[serde(rename = "cpu time")]
    CpuTime,
    #[serde(rename = "gpu time")]
    GpuTime,
    #[serde(rename = "transfer time")]
    TransferTime,
    /// Weights and KV, GB.
    #[serde(rename = "memory")]
    Memory,
    /// Share of the weights in weights and KV.
    #[serde(rename = "weights' share")]
    WeightsShare,
    /// Share of the layers that stay in device memory.
    #[serde(rename = "resident share")]
    ResidentShare,
    /// Share of the weights in further memories of the host in all that the host holds.
    #[serde(rename = "far share")]
    FarShare,
    /// Sequences of a batch, as many as fit.
    #[serde(rename = "largest batch")]
    LargestBatch,
    /// LIA's offload vector.
    #[serde(rename = "prefill vector")]
    PrefillVector,
    #[serde(rename = "decode vector")]
    DecodeVector,
    /// Tokens of a prompt from which the vector is not all CPU.
    #[serde(rename = "prefill turn")]
    PrefillTurn,
    /// Sequences from which the vector is not all CPU.
    #[serde(rename = "decode turn")]
    DecodeTurn,
}

/// Which of several answers a cell is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    #[default]
    Only,
    Min,
    Max,
    Mean,
}

/// What the planner was built to reach.
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

    /// The greatest error that reaches it.
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

/// What a ratio is against: the same run but for what is here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Versus {
    policy: Option<String>,
    machine: Option<String>,
    scores: Option<u16>,
    nvme: Option<bool>,
}

/// Form of weights and KV in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    #[default]
    None,
    W4,
    Kv4,
    W4kv4,
}

/// The order of a layer's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The model's own.
    #[default]
    Layer,
    /// Activation Sequence Caching's.
    Asc,
}

/// One number of a paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub id: String,
    /// Section, figure or table.
    pub place: String,
    /// As the paper has it; absent for an end of a range of multiples.
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
    /// Tokens of a prompt, and new ones.
    lengths: Vec<[u32; 2]>,
    policy: String,
    #[serde(default)]
    compression: Compression,
    /// Parts of Scores in decode.
    #[serde(default = "one")]
    scores: u16,
    #[serde(default)]
    nvme: bool,
    /// Layers may stay in device memory.
    #[serde(default = "yes")]
    resident: bool,
    #[serde(default)]
    order: Order,
    /// Transfers may overlap with computing.
    #[serde(default = "yes")]
    overlap: bool,
    /// LIA's vectors of prefill and decode, where they are not the best ones.
    vectors: Option<[String; 2]>,
    /// Weights live in the further memory of the host; else the machine has none.
    #[serde(default)]
    far: bool,
    /// Host memory holds every run, as in LIA's latency model.
    #[serde(default)]
    unbounded: bool,
    /// What the paper leaves open.
    pub note: Option<String>,
    /// The goal that it is a line of.
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

/// A run to predict.
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
    /// What the ratio of a cell is against.
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
    /// Every run that the cell is about.
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

/// Reads one of [`FILES`].
///
/// # Errors
/// What is wrong with it, with the file's name.
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

/// The cell, or two of them for a range.
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
