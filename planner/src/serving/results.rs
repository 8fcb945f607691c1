//! Results of a simulation of serving.

use scheduler::hybrid::{IterationShape, IterationTimes};

/// A distribution, in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyDistribution {
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl LatencyDistribution {
    /// Returns the distribution of values, or `None` if there are none.
    pub fn from_samples(mut ms: Vec<f64>) -> Option<LatencyDistribution> {
        ms.sort_unstable_by(f64::total_cmp);
        let last = ms.len().checked_sub(1)?;
        // Interpolated linearly between the two nearest values.
        let quantile = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (ms[place as usize], ms[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let mean_ms = ms.iter().sum::<f64>() / ms.len() as f64;
        Some(LatencyDistribution { mean_ms, p50_ms: quantile(0.5), p99_ms: quantile(0.99) })
    }
}

/// Statistics of iterations of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ShapeStats {
    pub iterations: u64,
    pub ms: f64,
}

/// An executed iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExecutedIteration {
    pub shape: IterationShape,
    /// Number of rows that pass the last layer.
    pub rows: u32,
    pub times: IterationTimes,
}

/// Results of serving.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ServingResults {
    /// Number of completed requests, and all tokens of their prompts and of their answers.
    pub requests: usize,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
    /// Number of these tokens for which the host computed attention.
    pub host_tokens: u64,
    /// Number of requests that can never be answered: longer than an iteration's rows or than any
    /// cache.
    pub rejected: usize,
    /// Time from the first arrival to the last token.
    pub makespan_ms: f64,
    /// Requests per second in NEO's window, from 30% to 70% of the completions.
    pub window_requests_per_s: Option<f64>,
    /// Time from arrival to the first token.
    pub first_token: Option<LatencyDistribution>,
    /// Mean time between the tokens of a request, over requests.
    pub per_token: Option<LatencyDistribution>,
    /// Times between consecutive tokens, by the side that computed attention.
    pub device_gaps: Option<LatencyDistribution>,
    pub host_gaps: Option<LatencyDistribution>,
    /// Mean over requests of the time from arrival to end divided by the answer's tokens, as in
    /// NEO's figure 6.
    pub latency_per_token_ms: f64,
    /// Statistics in the order of [`IterationShape::ALL`].
    pub shapes: [ShapeStats; 3],
    /// Busy times; `total_ms` is the duration of all iterations.
    pub busy: IterationTimes,
    pub iterations: Vec<ExecutedIteration>,
    pub moves_in: u64,
    pub moves_out: u64,
    pub evictions: u64,
}

impl ServingResults {
    /// Returns the answers' tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        per_s(self.answer_tokens as f64, self.makespan_ms)
    }

    pub fn requests_per_s(&self) -> f64 {
        per_s(self.requests as f64, self.makespan_ms)
    }

    pub fn shape_stats(&self, shape: IterationShape) -> ShapeStats {
        self.shapes[shape as usize]
    }

    /// Returns the fraction of the time in which a resource of the machine is busy.
    pub fn utilisation(&self, busy_ms: fn(&IterationTimes) -> f64) -> f64 {
        if self.makespan_ms > 0.0 { busy_ms(&self.busy) / self.makespan_ms } else { 0.0 }
    }
}

fn per_s(count: f64, ms: f64) -> f64 {
    if ms > 0.0 { count / ms * 1e3 } else { 0.0 }
}

/// Returns the requests per second between 30% and 70% of the completions, as in NEO's evaluation;
/// `None` if too few completed.
pub(super) fn window_requests_per_s(mut ended_ms: Vec<f64>) -> Option<f64> {
    ended_ms.sort_unstable_by(f64::total_cmp);
    let at = |share: usize| ended_ms.len() * share / 10;
    let (from, to) = (at(3), at(7));
    let ms = ended_ms.get(to)? - ended_ms.get(from)?;
    (ms > 0.0).then(|| per_s((to - from) as f64, ms))
}
