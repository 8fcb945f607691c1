//! A cell's answers beside the paper's value.

use std::collections::HashMap;

use crate::answer::{Answer, answer};
use crate::cells::{Cell, Of, Quantity, Question, Value};

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

/// The planner, asked once for each run.
#[derive(Default)]
pub struct Answers {
    known: HashMap<Question, Result<Answer, String>>,
}

impl Answers {
    fn of(&mut self, question: &Question) -> Result<Answer, String> {
        self.known.entry(question.clone()).or_insert_with(|| answer(question)).clone()
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
        let question = &cell.questions()[0];
        match self.of(question).and_then(|answer| vector_of(cell.quantity, &answer)) {
            Ok(value) => Outcome::Vector { same: value == printed, value },
            Err(reason) => Outcome::None(reason),
        }
    }

    /// The cell's value, and which run it is of where there are several.
    fn number(&mut self, cell: &Cell) -> Result<(f64, String), String> {
        let questions = cell.questions();
        let mut values = Vec::new();
        let mut refusal = None;
        for question in &questions {
            match self.value(cell, question) {
                Ok((value, text)) => values.push((value, question, text)),
                Err(reason) => refusal = refusal.or(Some(reason)),
            }
        }
        let count = values.len();
        let detail = |question: &Question, text: &str| match cell.of {
            Of::Only => text.to_owned(),
            _ if text.is_empty() => shape(question),
            _ => format!("{}, {text}", shape(question)),
        };
        let by_value =
            |a: &&(f64, &Question, String), b: &&(f64, &Question, String)| a.0.total_cmp(&b.0);
        let chosen = match cell.of {
            Of::Only | Of::Min => values.iter().min_by(by_value),
            Of::Max => values.iter().max_by(by_value),
            Of::Mean => {
                let sum: f64 = values.iter().map(|(value, ..)| value).sum();
                return refusal.map_or(Ok((sum / count as f64, format!("{count} runs"))), Err);
            }
        };
        let Some((value, question, text)) = chosen else {
            return Err(refusal.unwrap_or_else(|| "no run is asked about".to_owned()));
        };
        let mut detail = detail(question, text);
        if count < questions.len() {
            detail += &format!("; {count} of {} runs have an answer", questions.len());
        }
        Ok((*value, detail))
    }

    /// The value of one run, or its ratio to another, and the placement.
    fn value(&mut self, cell: &Cell, question: &Question) -> Result<(f64, String), String> {
        match cell.quantity {
            Quantity::PrefillTurn => {
                let at = |prompt| Question { prompt, ..question.clone() };
                return Ok((self.turn(cell, at)?, String::new()));
            }
            Quantity::DecodeTurn => {
                let at = |batch_size| Question { batch_size, ..question.clone() };
                return Ok((self.turn(cell, at)?, String::new()));
            }
            Quantity::LargestBatch => return Ok((self.largest(question)?, String::new())),
            _ => {}
        }
        let answer = self.of(question)?;
        let value = measure(cell.quantity, &answer, question)?;
        let Some(versus) = &cell.versus else { return Ok((value, answer.policy_text)) };
        let other_question = question.versus(versus);
        let other = self.of(&other_question)?;
        Ok((value / measure(cell.quantity, &other, &other_question)?, answer.policy_text))
    }

    /// The first of `at(1)`, `at(2)`, .. whose vector is not all CPU.
    fn turn(&mut self, cell: &Cell, at: impl Fn(u32) -> Question) -> Result<f64, String> {
        let turn = first(TURN_MAX, |index| {
            let answer = self.of(&at(index))?;
            Ok(vector_of(cell.quantity, &answer)? != ALL_CPU)
        })?;
        turn.map(f64::from).ok_or_else(|| format!("no turn up to {TURN_MAX}"))
    }

    fn largest(&mut self, question: &Question) -> Result<f64, String> {
        let too_large = first(TURN_MAX, |batch_size| {
            let answer = self.of(&Question { batch_size, ..question.clone() })?;
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

fn measure(quantity: Quantity, answer: &Answer, question: &Question) -> Result<f64, String> {
    let steps = f64::from(question.new_tokens.saturating_sub(1));
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

fn shape(question: &Question) -> String {
    let Question { model, machine, batches, batch_size, prompt, new_tokens, .. } = question;
    format!("{model} on {machine}, {batches}x{batch_size}, {prompt} + {new_tokens}")
}
