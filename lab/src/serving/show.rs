//! Comparison of the serving policies, as text or JSON.

use std::fmt::Write;

use comfy_table::Table;
use planner::serving::{CacheCapacity, LatencyDistribution, ServingResults};
use scheduler::hybrid::{IterationShape, IterationTimes, SchedulingPolicy};
use serde_json::{Map, Value, json};

use crate::load::arrivals::Rate;
use crate::request::{LengthsChoice, LoadChoice};
use report::plain_table::{plain_table, right_aligned};

const NONE: &str = "-";

const COLUMNS: [&str; 13] = [
    "policy",
    "tokens/s",
    "TTFT p50",
    "p99 s",
    "TPOT mean",
    "p50",
    "p99 ms",
    "host rows",
    "GPU",
    "CPU",
    "gpu",
    "pipelined",
    "async",
];

/// Selects one of the times that a machine's lanes work.
type LaneTime = fn(&IterationTimes) -> f64;

/// Names of the lanes, and the time that each of them works.
const LANES: [(&str, LaneTime); 4] = [
    ("device", |times| times.device_ms),
    ("host", |times| times.host_ms),
    ("to_device", |times| times.to_device_ms),
    ("to_host", |times| times.to_host_ms),
];

/// Results of every policy.
pub(super) struct ServingComparison<'a> {
    pub(super) model: &'a str,
    /// The model has layers with a sliding window of attention.
    pub(super) has_windows: bool,
    pub(super) machine: &'a str,
    pub(super) load: &'a LoadChoice,
    pub(super) requests: usize,
    pub(super) capacity: &'a CacheCapacity,
    /// Maximum number of rows in an iteration.
    pub(super) rows: u32,
    pub(super) served: &'a [(SchedulingPolicy, ServingResults)],
}

impl ServingComparison<'_> {
    /// Returns the results as text.
    pub(super) fn text(&self) -> String {
        let CacheCapacity { device_positions, host_positions, streamed_bytes } = *self.capacity;
        let mut text = format!(
            "{} on {} · {} requests, {} · simulated\n",
            self.model,
            self.machine,
            self.requests,
            self.format_workload()
        );
        let _ = writeln!(
            text,
            "KV caches for {device_positions} positions in device memory and {host_positions} in \
             host memory; at most {} rows per iteration",
            self.rows
        );
        if streamed_bytes > 0 {
            let gb = streamed_bytes as f64 / 1e9;
            let _ = writeln!(text, "{gb:.2} GB of weights stream to the device in each iteration");
        }
        let _ = writeln!(text, "{}", self.table());
        text += "TPOT: mean time between the tokens of an answer; host rows: median time between \
                 two tokens of sequences whose attention runs on the CPU\n";
        text += "GPU, CPU: share of the time in which it computes; gpu, pipelined, async: share \
                 of the iterations with this shape\n";
        if self.has_windows {
            text += "Sliding windows are ignored: attention counts all positions in every layer.\n";
        }
        for (policy, served) in self.served.iter().filter(|(_, served)| served.rejected > 0) {
            let _ = writeln!(
                text,
                "{}: {} requests fit in no KV cache and were left out.",
                policy.name(),
                served.rejected
            );
        }
        text
    }

    fn format_workload(&self) -> String {
        let lengths = match &self.load.lengths {
            LengthsChoice::Fixed { prompt_tokens, answer_tokens } => {
                format!("{prompt_tokens} + {answer_tokens} tokens")
            }
            LengthsChoice::Rows(path) | LengthsChoice::Trace(path) => {
                format!("lengths of {}", path.display())
            }
        };
        let rate = match (self.load.rate, &self.load.lengths) {
            (Some(Rate::PerSecond(rate)), _) => format!("{rate} per second"),
            (None, LengthsChoice::Trace(_)) => "at the times of the trace".to_owned(),
            _ => "all at once".to_owned(),
        };
        format!("{lengths}, {rate}")
    }

    fn table(&self) -> Table {
        let mut table = plain_table();
        table.set_header(COLUMNS);
        for (policy, served) in self.served {
            table.add_row(cells(*policy, served));
        }
        right_aligned(&mut table, 1..COLUMNS.len());
        table
    }

    /// Returns all results as JSON.
    pub(super) fn json(&self) -> Value {
        let policies = self.served.iter().map(|(policy, served)| policy_json(*policy, served));
        json!({
            "model": self.model,
            "machine": self.machine,
            "workload": self.format_workload(),
            "requests": self.requests,
            "rows_max": self.rows,
            "device_positions": self.capacity.device_positions,
            "host_positions": self.capacity.host_positions,
            "streamed_bytes_per_iteration": self.capacity.streamed_bytes,
            "policies": policies.collect::<Vec<_>>(),
        })
    }
}

fn cells(policy: SchedulingPolicy, served: &ServingResults) -> Vec<String> {
    let format = |spread: Option<LatencyDistribution>,
                  statistic: fn(LatencyDistribution) -> f64,
                  per: f64,
                  digits: usize| match spread {
        Some(spread) => format!("{:.digits$}", statistic(spread) / per),
        None => NONE.to_owned(),
    };
    let percent = |share: f64| format!("{:.0}%", 100.0 * share);
    let iterations = IterationShape::ALL.map(|shape| served.shape_stats(shape).iterations);
    let all = iterations.iter().sum::<u64>().max(1) as f64;
    let mut cells = vec![
        policy.name().to_owned(),
        format!("{:.1}", served.tokens_per_s()),
        format(served.first_token, |spread| spread.p50_ms, 1e3, 2),
        format(served.first_token, |spread| spread.p99_ms, 1e3, 2),
        format(served.per_token, |spread| spread.mean_ms, 1.0, 0),
        format(served.per_token, |spread| spread.p50_ms, 1.0, 0),
        format(served.per_token, |spread| spread.p99_ms, 1.0, 0),
        format(served.host_gaps, |spread| spread.p50_ms, 1.0, 0),
        percent(served.utilisation(|times| times.device_ms)),
        percent(served.utilisation(|times| times.host_ms)),
    ];
    cells.extend(iterations.map(|count| percent(count as f64 / all)));
    cells
}

fn policy_json(policy: SchedulingPolicy, served: &ServingResults) -> Value {
    let spread = |spread: Option<LatencyDistribution>| match spread {
        Some(LatencyDistribution { mean_ms, p50_ms, p99_ms }) => {
            json!({ "mean": mean_ms, "p50": p50_ms, "p99": p99_ms })
        }
        None => Value::Null,
    };
    let lanes =
        LANES.map(|(name, lane_time)| (name.to_owned(), json!(served.utilisation(lane_time))));
    let shapes = IterationShape::ALL.map(|shape| {
        let by_shape = served.shape_stats(shape);
        (shape.name().to_owned(), json!({ "iterations": by_shape.iterations, "ms": by_shape.ms }))
    });
    json!({
        "policy": policy.name(),
        "requests": served.requests,
        "refused": served.rejected,
        "prompt_tokens": served.prompt_tokens,
        "answer_tokens": served.answer_tokens,
        "host_tokens": served.host_tokens,
        "makespan_ms": served.makespan_ms,
        "tokens_per_s": served.tokens_per_s(),
        "requests_per_s": served.requests_per_s(),
        "window_requests_per_s": served.window_requests_per_s,
        "ttft_ms": spread(served.first_token),
        "tpot_ms": spread(served.per_token),
        "device_gap_ms": spread(served.device_gaps),
        "host_gap_ms": spread(served.host_gaps),
        "latency_per_token_ms": served.latency_per_token_ms,
        "lane_use": lanes.into_iter().collect::<Map<_, _>>(),
        "shapes": shapes.into_iter().collect::<Map<_, _>>(),
        "moves_in": served.moves_in,
        "moves_out": served.moves_out,
        "evictions": served.evictions,
    })
}
