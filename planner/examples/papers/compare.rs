//! A cell's answers beside the paper's value.

use std::collections::HashMap;

use crate::answer::{Answer, answer};
use crate::cells::{Cell, Of, Quantity, Scenario, Value};

/// Errors up to here need no cause.
pub const TOLERANCE: f64 = 0.15;
/// Where a turn or a largest batch is looked for.
const TURN_MAX: u32 = 4096;
/// Vectors with everything on the CPU.
const ALL_CPU: &str = "111111";

/// What came of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// `error` is of the value as it is kept: of a ratio, the ratio's.
    Number {
        value: f64,
        error: f64,
        detail: String,
    },
    Vector {
        value: String,
        same: bool,
    },
    /// Why there is no answer.
    None(String),
}

impl Outcome {
    /// Whether the answer is within [`TOLERANCE`]; `None` where there is none.
    pub fn is_within(&self) -> Option<bool> {
        match self {
            Outcome::Number { error, .. } => Some(error.abs() <= TOLERANCE),
            Outcome::Vector { same, .. } => Some(*same),
            Outcome::None(_) => None,
        }
    }
}

/// The planner's answers, each worked out once.
#[derive(Default)]
pub struct Answers {
    known: HashMap<Scenario, Result<Answer, String>>,
}

impl Answers {
    fn of(&mut self, scenario: &Scenario) -> Result<Answer, String> {
        self.known.entry(scenario.clone()).or_insert_with(|| answer(scenario)).clone()
    }

    /// Compares a cell with its answers.
    pub fn compare(&mut self, cell: &Cell) -> Outcome {
        match &cell.value {
            Value::Vector(vector) => self.vector(cell, vector),
            Value::Number(number) => match self.number(cell) {
                Ok((value, detail)) => {
                    Outcome::Number { value, error: value / number - 1.0, detail }
                }
                Err(reason) => Outcome::None(reason),
            },
        }
    }

    fn vector(&mut self, cell: &Cell, printed: &str) -> Outcome {
        let scenario = &cell.scenarios()[0];
        match self.of(scenario).and_then(|answer| vector_of(cell.quantity, &answer)) {
            Ok(value) => Outcome::Vector { same: value == printed, value },
            Err(reason) => Outcome::None(reason),
        }
    }

    /// The cell's value, and which run it is of where there are several.
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

    /// The value of one run, or its ratio to another, and the placement.
    fn value(&mut self, cell: &Cell, scenario: &Scenario) -> Result<(f64, String), String> {
        match cell.quantity {
            Quantity::PrefillTurn => {
                let at = |prompt| Scenario { prompt, ..scenario.clone() };
                return Ok((self.turn(cell, at)?, String::new()));
            }
            Quantity::DecodeTurn => {
                let at = |batch_size| Scenario { batch_size, ..scenario.clone() };
                return Ok((self.turn(cell, at)?, String::new()));
            }
            Quantity::LargestBatch => return Ok((self.largest(scenario)?, String::new())),
            _ => {}
        }
        let answer = self.of(scenario)?;
        let value = measure(cell.quantity, &answer, scenario)?;
        let Some(versus) = &cell.versus else { return Ok((value, answer.policy_text)) };
        let other_scenario = scenario.versus(versus);
        let other = self.of(&other_scenario)?;
        Ok((value / measure(cell.quantity, &other, &other_scenario)?, answer.policy_text))
    }

    /// The first of `at(1)`, `at(2)`, .. whose vector is not all CPU.
    fn turn(&mut self, cell: &Cell, at: impl Fn(u32) -> Scenario) -> Result<f64, String> {
        let turn = first(TURN_MAX, |index| {
            let answer = self.of(&at(index))?;
            Ok(vector_of(cell.quantity, &answer)? != ALL_CPU)
        })?;
        turn.map(f64::from).ok_or_else(|| format!("no turn up to {TURN_MAX}"))
    }

    fn largest(&mut self, scenario: &Scenario) -> Result<f64, String> {
        let too_large = first(TURN_MAX, |batch_size| {
            let answer = self.of(&Scenario { batch_size, ..scenario.clone() })?;
            answer.fits.map(|fits| !fits).ok_or_else(|| "the planner looks at no memory".to_owned())
        })?;
        Ok(f64::from(too_large.map_or(TURN_MAX, |size| size - 1)))
    }
}

/// The first of 1 to `most` for which `holds`, which then holds for all that follow.
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

fn vector_of(quantity: Quantity, answer: &Answer) -> Result<String, String> {
    let vectors = answer.vectors.clone().ok_or("the policy has no offload vector")?;
    let [prefill, decode] = vectors;
    Ok(match quantity {
        Quantity::PrefillVector | Quantity::PrefillTurn => prefill,
        _ => decode,
    })
}

fn measure(quantity: Quantity, answer: &Answer, scenario: &Scenario) -> Result<f64, String> {
    let steps = f64::from(scenario.new_tokens.saturating_sub(1));
    let generation_ms = steps * answer.decode_step_ms;
    let total_ms = answer.prefill_ms + generation_ms;
    let weights = answer.weights_bytes;
    let memory = weights + answer.kv_bytes;
    let value = match quantity {
        Quantity::Throughput => Some(answer.tokens_per_s),
        Quantity::Latency => Some(total_ms / 1e3),
        Quantity::Generation => Some(generation_ms / 1e3),
        Quantity::Prefill => Some(answer.prefill_ms / 1e3),
        Quantity::PrefillShare => Some(answer.prefill_ms / total_ms),
        Quantity::Layer => Some(answer.layer_ms),
        Quantity::CpuBusy => answer.cpu_busy,
        Quantity::CpuBesideTransfers => answer.cpu_beside_transfers,
        Quantity::CpuTime => answer.busy.map(|busy| busy.cpu_ms / 1e3),
        Quantity::GpuTime => answer.busy.map(|busy| busy.gpu_ms / 1e3),
        Quantity::TransferTime => answer.busy.map(|busy| busy.transfers_ms / 1e3),
        Quantity::Memory => Some(memory / 1e9),
        Quantity::WeightsShare => Some(weights / memory),
        Quantity::ResidentShare => answer.resident_share,
        Quantity::LargestBatch
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
