//! What a simulation of serving counts.

use schedule::hybrid::{Shape, Times};

/// A distribution, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(mut ms: Vec<f64>) -> Option<Spread> {
        ms.sort_by(f64::total_cmp);
        let last = ms.len().checked_sub(1)?;
        // Between the two nearest values, on a line.
        let quantile = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (ms[place as usize], ms[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let mean_ms = ms.iter().sum::<f64>() / ms.len() as f64;
        Some(Spread { mean_ms, p50_ms: quantile(0.5), p99_ms: quantile(0.99) })
    }
}

/// Iterations of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OfShape {
    pub iterations: u64,
    pub ms: f64,
}

/// An iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    pub shape: Shape,
    /// Rows that pass the last layer.
    pub rows: u32,
    pub times: Times,
}

/// What serving took.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Served {
    /// Requests that were answered, all tokens of their prompts and of their answers.
    pub requests: usize,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
    /// Of these, those for which the host attended.
    pub host_tokens: u64,
    /// Requests that can never be answered: longer than an iteration's rows or than any cache.
    pub refused: usize,
    /// From the first arrival to the last token.
    pub makespan_ms: f64,
    /// Requests a second in NEO's window, from 30% to 70% of the completions.
    pub window_requests_per_s: Option<f64>,
    /// From arrival to the first token.
    pub first_token: Option<Spread>,
    /// Mean time between the tokens of a request, over requests.
    pub per_token: Option<Spread>,
    /// Times between a token and the one before it, by who attended for it.
    pub device_gaps: Option<Spread>,
    pub host_gaps: Option<Spread>,
    /// Mean time from arrival to the end over the tokens of the answer, as NEO's figure 6 has it.
    pub latency_per_token_ms: f64,
    /// In the order of [`Shape::ALL`].
    pub shapes: [OfShape; 3],
    /// Busy times, and in `total_ms` that of all iterations.
    pub busy: Times,
    pub iterations: Vec<Ran>,
    pub moves_in: u64,
    pub moves_out: u64,
    pub evictions: u64,
}

impl Served {
    /// Tokens of answers in a second.
    pub fn tokens_per_s(&self) -> f64 {
        per_s(self.answer_tokens as f64, self.makespan_ms)
    }

    pub fn requests_per_s(&self) -> f64 {
        per_s(self.requests as f64, self.makespan_ms)
    }

    pub fn of_shape(&self, shape: Shape) -> OfShape {
        self.shapes[shape as usize]
    }

    /// The part of the time in which something of the machine works.
    pub fn use_of(&self, of: fn(&Times) -> f64) -> f64 {
        if self.makespan_ms > 0.0 { of(&self.busy) / self.makespan_ms } else { 0.0 }
    }
}

fn per_s(count: f64, ms: f64) -> f64 {
    if ms > 0.0 { count / ms * 1e3 } else { 0.0 }
}

/// Requests a second between 30% and 70% of the completions, as NEO's evaluation counts; `None`
/// where too few ended.
pub(super) fn window_requests_per_s(mut ended_ms: Vec<f64>) -> Option<f64> {
    ended_ms.sort_by(f64::total_cmp);
    let at = |share: usize| ended_ms.len() * share / 10;
    let (from, to) = (at(3), at(7));
    let ms = ended_ms.get(to)? - ended_ms.get(from)?;
    (ms > 0.0).then(|| per_s((to - from) as f64, ms))
}
