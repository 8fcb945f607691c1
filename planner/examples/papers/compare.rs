//! Comparison of the planner's answers with the paper's value of a cell.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::sync::Mutex;

use crate::answer::{Answer, answer, bytes, largest_batch, vectors};
use crate::asc;
use crate::cells::{Cell, Of, Order, Quantity, Scenario, Value};

/// Maximum error that requires no cause.
pub const TOLERANCE: f64 = 0.15;
/// Upper bound of the search for a turn or for the largest batch.
const TURN_MAX: u32 = 4096;
/// The vector with everything on the CPU.
const ALL_CPU: &str = "111111";

/// Result of comparing a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// `error` is relative to the recorded value; for a ratio, it is the error of the ratio.
    Number {
        value: f64,
        error: f64,
        detail: String,
    },
    Vector {
        value: String,
        same: bool,
    },
    /// The reason why there is no answer.
    None(String),
}

impl Outcome {
    /// Returns true if the answer is within [`TOLERANCE`]; `None` if there is no answer.
    pub fn is_within(&self) -> Option<bool> {
        match self {
            Outcome::Number { error, .. } => Some(error.abs() <= TOLERANCE),
            Outcome::Vector { same, .. } => Some(*same),
            Outcome::None(_) => None,
        }
    }
}

/// The planner's answers, each computed once.
#[derive(Default)]
pub struct Answers {
    known: HashMap<Scenario, Result<Answer, String>>,
}

impl Answers {
    /// Computes the answers that the cells need, on all processors.
    pub fn of_all<'a>(cells: impl Iterator<Item = &'a Cell>) -> Answers {
        let mut open: Vec<Scenario> = Vec::new();
        for cell in cells.filter(|cell| needs_plan(cell.quantity)) {
            for scenario in cell.scenarios() {
                open.extend(cell.versus.as_ref().map(|versus| scenario.versus(versus)));
                open.push(scenario);
            }
        }
        let unique: HashSet<Scenario> = open.into_iter().collect();
        let (open, known) = (Mutex::new(unique.into_iter()), Mutex::new(HashMap::new()));
        let next = || open.lock().ok().and_then(|mut open| open.next());
        let work = || {
            while let Some(scenario) = next() {
                let answer = answer_of(&scenario);
                if let Ok(mut known) = known.lock() {
                    known.insert(scenario, answer);
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        Answers { known: known.into_inner().unwrap_or_default() }
    }

    fn of(&mut self, scenario: &Scenario) -> Result<Answer, String> {
        self.known.entry(scenario.clone()).or_insert_with(|| answer_of(scenario)).clone()
    }

    /// Compares a cell with its answers.
    pub fn compare(&mut self, cell: &Cell) -> Outcome {
        match &cell.value {
            Value::Vector(vector) => Answers::vector(cell, vector),
            Value::Number(number) => match self.number(cell) {
                Ok((value, detail)) => {
                    Outcome::Number { value, error: value / number - 1.0, detail }
                }
                Err(reason) => Outcome::None(reason),
            },
        }
    }

    fn vector(cell: &Cell, printed: &str) -> Outcome {
        let scenario = &cell.scenarios()[0];
        match vector_of(cell.quantity, scenario) {
            Ok(value) => Outcome::Vector { same: value == printed, value },
            Err(reason) => Outcome::None(reason),
        }
    }

    /// Returns the cell's value, and the run to which it belongs if there are several.
    fn number(&mut self, cell: &Cell) -> Result<(f64, String), String> {
        let scenarios = cell.scenarios();
        let mut values = Vec::new();
        let mut refusal = None;
        for scenario in &scenarios {
            match self.value(cell, scenario) {
                Ok((value, text)) => values.push((value, scenario, text)),
                Err(reason) => refusal = refusal.or(Some(reason)),
            }
        }
        let count = values.len();
        let detail = |scenario: &Scenario, text: &str| match cell.of {
            Of::Only => text.to_owned(),
            _ if text.is_empty() => shape(scenario),
            _ => format!("{}, {text}", shape(scenario)),
        };
        let by_value =
            |a: &&(f64, &Scenario, String), b: &&(f64, &Scenario, String)| a.0.total_cmp(&b.0);
        let chosen = match cell.of {
            Of::Only | Of::Min => values.iter().min_by(by_value),
            Of::Max => values.iter().max_by(by_value),
            Of::Mean => {
                let sum: f64 = values.iter().map(|(value, ..)| value).sum();
                let mean = || Ok((sum / count as f64, format!("{count} runs")));
                return refusal.map_or_else(mean, Err);
            }
        };
        let Some((value, scenario, text)) = chosen else {
            return Err(refusal.unwrap_or_else(|| "the cell has no run".to_owned()));
        };
        let mut detail = detail(scenario, text);
        if count < scenarios.len() {
            detail += &format!("; {count} of {} runs have an answer", scenarios.len());
        }
        Ok((*value, detail))
    }

    /// Returns the value of one run, or its ratio to another, and the placement.
    fn value(&mut self, cell: &Cell, scenario: &Scenario) -> Result<(f64, String), String> {
        if let Some(value) = without_plan(cell.quantity, scenario) {
            return Ok((value?, String::new()));
        }
        let answer = self.of(scenario)?;
        let value = measure(cell.quantity, &answer, scenario)?;
        let Some(versus) = &cell.versus else { return Ok((value, answer.placement)) };
        let other_scenario = scenario.versus(versus);
        let other = self.of(&other_scenario)?;
        Ok((value / measure(cell.quantity, &other, &other_scenario)?, answer.placement))
    }
}

/// Returns the answer in the order of operations that the scenario specifies.
fn answer_of(scenario: &Scenario) -> Result<Answer, String> {
    match scenario.order {
        Order::Layer => answer(scenario),
        Order::Asc => asc::answer(scenario),
    }
}

/// Returns true if the quantity requires a plan.
const fn needs_plan(quantity: Quantity) -> bool {
    !matches!(
        quantity,
        Quantity::PrefillTurn
            | Quantity::DecodeTurn
            | Quantity::PrefillVector
            | Quantity::DecodeVector
            | Quantity::LargestBatch
            | Quantity::Memory
            | Quantity::Weights
            | Quantity::Kv
            | Quantity::WeightsShare
    )
}

/// Returns a quantity that requires no plan; `None` for the others.
fn without_plan(quantity: Quantity, scenario: &Scenario) -> Option<Result<f64, String>> {
    let bytes = || bytes(scenario);
    Some(match quantity {
        Quantity::PrefillTurn => turn(quantity, |prompt| Scenario { prompt, ..scenario.clone() }),
        Quantity::DecodeTurn => {
            turn(quantity, |batch_size| Scenario { batch_size, ..scenario.clone() })
        }
        Quantity::LargestBatch => largest_batch(scenario).map(f64::from),
        Quantity::Memory => bytes().map(|bytes| (bytes.weights + bytes.kv) / 1e9),
        Quantity::Weights => bytes().map(|bytes| bytes.weights / 1e9),
        Quantity::Kv => bytes().map(|bytes| bytes.kv / 1e9),
        Quantity::WeightsShare => bytes().map(|bytes| bytes.weights / (bytes.weights + bytes.kv)),
        _ => return None,
    })
}

/// Returns the smallest argument of `at` whose vector is not all CPU.
fn turn(quantity: Quantity, at: impl Fn(u32) -> Scenario) -> Result<f64, String> {
    let turn = first(TURN_MAX, |index| Ok(vector_of(quantity, &at(index))? != ALL_CPU))?;
    turn.map(f64::from).ok_or_else(|| format!("no turn up to {TURN_MAX}"))
}

/// Returns the smallest number from 1 to `most` for which `holds` is true, assuming that it is then
/// true for all larger ones.
fn first(
    most: u32,
    mut holds: impl FnMut(u32) -> Result<bool, String>,
) -> Result<Option<u32>, String> {
    let (mut low, mut high) = (1, most + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok((low <= most).then_some(low))
}

fn vector_of(quantity: Quantity, scenario: &Scenario) -> Result<String, String> {
    let [prefill, decode] = vectors(scenario)?;
    Ok(match quantity {
        Quantity::PrefillVector | Quantity::PrefillTurn => prefill,
        _ => decode,
    })
}

fn measure(quantity: Quantity, answer: &Answer, scenario: &Scenario) -> Result<f64, String> {
    let steps = f64::from(scenario.new_tokens.saturating_sub(1));
    let generation_ms = steps * answer.decode_step_ms;
    let total_ms = answer.prefill_ms + generation_ms;
    let value = match quantity {
        Quantity::Throughput => Some(answer.tokens_per_s),
        Quantity::Latency => Some(total_ms / 1e3),
        Quantity::Generation => Some(generation_ms / 1e3),
        Quantity::Prefill => Some(answer.prefill_ms / 1e3),
        Quantity::PrefillShare => Some(answer.prefill_ms / total_ms),
        Quantity::Layer => answer.layer_ms,
        Quantity::CpuBusy => Some(answer.cpu_busy),
        Quantity::CpuBesideTransfers => answer.cpu_beside_transfers,
        Quantity::CpuTime => Some(answer.busy.cpu_ms / 1e3),
        Quantity::GpuTime => Some(answer.busy.gpu_ms / 1e3),
        Quantity::TransferTime => Some(answer.busy.transfers_ms / 1e3),
        Quantity::ResidentShare => Some(answer.resident_share),
        Quantity::FarShare => Some(answer.far_share),
        Quantity::Memory
        | Quantity::Weights
        | Quantity::Kv
        | Quantity::WeightsShare
        | Quantity::LargestBatch
        | Quantity::PrefillVector
        | Quantity::DecodeVector
        | Quantity::PrefillTurn
        | Quantity::DecodeTurn => None,
    };
    value.ok_or_else(|| "the planner does not say it for this policy".to_owned())
}

fn shape(scenario: &Scenario) -> String {
    let Scenario { model, machine, batches, batch_size, prompt, new_tokens, .. } = scenario;
    format!("{model} on {machine}, {batches}x{batch_size}, {prompt} + {new_tokens}")
}
