//! Requests of a measurement, all of which are generated before the first is sent.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::arrivals::{Rate, poisson_arrivals, replayed_arrivals};
use super::lengths::TraceRow;

/// A request that will be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRequest {
    /// Arrival time, relative to the start of the measurement.
    pub at: Duration,
    pub prompt: Vec<u32>,
    pub answer_tokens: u32,
}

/// Arrival time of a request, relative to the start of the measurement, and its lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub at: Duration,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
}

/// Source of the lengths and arrival times.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkloadShape {
    /// All requests have the same lengths, and arrive at random times.
    Fixed { prompt_tokens: u32, answer_tokens: u32 },
    /// Rows are drawn at random, and arrive at random times.
    Rows(Vec<TraceRow>),
    /// Rows are replayed in order, at their recorded times. There is at least one row.
    Trace(Vec<TraceRow>),
}

/// Parameters of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkloadParams {
    /// Rate of arrivals. With `None`, requests arrive at once, and those of a trace at their
    /// recorded times.
    pub rate: Option<Rate>,
    /// Number of requests. A trace uses its first rows, and may have fewer.
    pub requests: usize,
    /// Exclusive upper bound of the token ids in prompts.
    pub vocab_size: u32,
    pub seed: u64,
}

/// Generates requests. Their prompts are random, so a prefix cache saves nothing.
pub fn workload(shape: &WorkloadShape, params: WorkloadParams) -> Vec<PlannedRequest> {
    let mut random = ChaCha8Rng::seed_from_u64(params.seed);
    let arrivals = draw_arrivals(shape, params, &mut random);
    let planned = arrivals.into_iter().map(|arrival| PlannedRequest {
        at: arrival.at,
        prompt: random_prompt(arrival.prompt_tokens, params.vocab_size, &mut random),
        answer_tokens: arrival.answer_tokens,
    });
    planned.collect()
}

/// Returns the arrivals of the requests that [`workload`] generates, without their prompts.
pub fn generate_arrivals(shape: &WorkloadShape, params: WorkloadParams) -> Vec<Arrival> {
    draw_arrivals(shape, params, &mut ChaCha8Rng::seed_from_u64(params.seed))
}

fn draw_arrivals(
    shape: &WorkloadShape,
    params: WorkloadParams,
    random: &mut ChaCha8Rng,
) -> Vec<Arrival> {
    let lengths: Vec<(u32, u32)> = match shape {
        WorkloadShape::Fixed { prompt_tokens, answer_tokens } => {
            vec![(*prompt_tokens, *answer_tokens); params.requests]
        }
        WorkloadShape::Rows(rows) => (0..params.requests)
            .map(|_| row_lengths(&rows[(random.next_u64() % rows.len() as u64) as usize]))
            .collect(),
        WorkloadShape::Trace(rows) => rows.iter().take(params.requests).map(row_lengths).collect(),
    };
    let times = match shape {
        WorkloadShape::Trace(rows) => {
            let rows = &rows[..lengths.len()];
            replayed_arrivals(&rows.iter().map(|row| row.at_s).collect::<Vec<_>>(), params.rate)
        }
        _ => poisson_arrivals(params.rate.unwrap_or(Rate::Infinite), lengths.len(), random),
    };
    let requests = times.into_iter().zip(lengths);
    let arrivals = requests.map(|(at, (prompt_tokens, answer_tokens))| Arrival {
        at,
        prompt_tokens,
        answer_tokens,
    });
    arrivals.collect()
}

/// Returns a request with the lengths of the first one and a prompt that has nothing in common with
/// the others, which tests that the server answers at all.
pub fn warmup_request(
    planned: &[PlannedRequest],
    params: WorkloadParams,
) -> Option<PlannedRequest> {
    // Uses another stream of the same seed.
    let mut random = ChaCha8Rng::seed_from_u64(params.seed);
    random.set_stream(1);
    planned.first().map(|first| PlannedRequest {
        at: Duration::ZERO,
        prompt: random_prompt(first.prompt.len() as u32, params.vocab_size, &mut random),
        answer_tokens: first.answer_tokens,
    })
}

fn row_lengths(row: &TraceRow) -> (u32, u32) {
    (row.prompt_tokens, row.answer_tokens)
}

fn random_prompt(tokens: u32, vocab_size: u32, random: &mut ChaCha8Rng) -> Vec<u32> {
    (0..tokens).map(|_| (random.next_u64() % u64::from(vocab_size)) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAW: WorkloadParams =
        WorkloadParams { rate: Some(Rate::PerSecond(5.0)), requests: 40, vocab_size: 100, seed: 3 };

    fn rows() -> Vec<TraceRow> {
        let row =
            |at: u32| TraceRow { at_s: at.into(), prompt_tokens: 10 + at, answer_tokens: 1 + at };
        (0..5).map(row).collect()
    }

    #[test]
    fn a_seed_draws_the_same_requests() {
        let alike = WorkloadShape::Fixed { prompt_tokens: 16, answer_tokens: 4 };
        let drawn = workload(&alike, DRAW);
        assert_eq!(drawn, workload(&alike, DRAW));
        assert_ne!(drawn, workload(&alike, WorkloadParams { seed: 4, ..DRAW }));
        assert_eq!(drawn.len(), 40);
        for request in &drawn {
            assert_eq!((request.prompt.len(), request.answer_tokens), (16, 4));
            assert!(request.prompt.iter().all(|token| *token < 100));
        }
        let times = generate_arrivals(&alike, DRAW).into_iter().map(|arrival| arrival.at);
        assert!(times.eq(drawn.iter().map(|request| request.at)), "prompts change nothing");
        let first = warmup_request(&drawn, DRAW).expect("one");
        assert_eq!(first.prompt.len(), 16);
        assert!(drawn.iter().all(|request| request.prompt != first.prompt));
    }

    #[test]
    fn rows_are_drawn_and_a_trace_is_not() {
        let drawn = workload(&WorkloadShape::Rows(rows()), DRAW);
        let mut lengths: Vec<usize> = drawn.iter().map(|request| request.prompt.len()).collect();
        assert_eq!(lengths.len(), 40);
        for request in &drawn {
            assert_eq!(request.prompt.len() as u32, request.answer_tokens + 9);
        }
        lengths.sort_unstable();
        lengths.dedup();
        assert_eq!(lengths, [10, 11, 12, 13, 14], "40 of 5 rows have each");

        let trace = workload(
            &WorkloadShape::Trace(rows()),
            WorkloadParams { rate: None, requests: 3, ..DRAW },
        );
        let at: Vec<u64> = trace.iter().map(|request| request.at.as_secs()).collect();
        assert_eq!(at, [0, 1, 2]);
        assert_eq!(workload(&WorkloadShape::Trace(rows()), DRAW).len(), 5, "a trace is no longer");
    }
}
