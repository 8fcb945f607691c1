//! Deviations of the iterations of a replay from the simulated ones, as text or JSON.

use std::fmt::Write;

use comfy_table::Table;
use planner::serving::ExecutedIteration;
use scheduler::hybrid::{IterationShape, SchedulingPolicy};
use serde_json::{Value, json};

use report::plain_table::{plain_table, right_aligned};

/// Maximum relative error of an iteration that counts as near its simulated time.
const MAX_NEAR_ERROR: f64 = 0.05;
/// Maximum number of deviating iterations that are listed.
const MAX_LISTED_DEVIATIONS: usize = 10;

const COLUMNS: [&str; 8] =
    ["shape", "iterations", "simulated", "measured", "error", "median", "largest", "within 5%"];

/// A simulated iteration and its measured counterpart, at the speed of the emulated machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct IterationComparison {
    pub(super) simulated: ExecutedIteration,
    /// Measured shape, and the number of rows that passed the last layer.
    pub(super) shape: IterationShape,
    pub(super) rows: u32,
    pub(super) measured_ms: f64,
}

/// Result of a replay.
#[derive(Debug)]
pub(in super::super) struct TimedReplayOutput {
    pub(super) policy: SchedulingPolicy,
    pub(super) requests: usize,
    pub(super) device_slots: u16,
    pub(super) slow_motion: u32,
    /// Number of measured iterations.
    pub(super) ran: usize,
    pub(super) iterations: Vec<IterationComparison>,
}

impl IterationComparison {
    fn error(&self) -> f64 {
        self.measured_ms / self.simulated.times.total_ms - 1.0
    }

    fn matches_simulation(&self) -> bool {
        (self.shape, self.rows) == (self.simulated.shape, self.simulated.rows)
    }

    fn is_near(&self) -> bool {
        self.error().abs() <= MAX_NEAR_ERROR
    }
}

impl TimedReplayOutput {
    /// Returns true if as many iterations ran as were simulated, each with its simulated shape and
    /// rows.
    fn all_match_simulation(&self) -> bool {
        let all = self.iterations.iter().all(IterationComparison::matches_simulation);
        all && self.ran == self.iterations.len()
    }

    fn near_count(&self) -> usize {
        self.iterations.iter().filter(|iteration| iteration.is_near()).count()
    }

    /// Returns the result as text.
    pub(in super::super) fn text(&self) -> String {
        let mut text = format!(
            "{} in timed emulation · {} requests, {} with caches on the device · the real \
             processes, {} times slower\n",
            self.policy.name(),
            self.requests,
            self.device_slots,
            self.slow_motion
        );
        let _ = writeln!(text, "{}", self.table());
        let _ = writeln!(
            text,
            "{} of {} iterations within 5% of the simulated time; their shapes and rows are {}",
            self.near_count(),
            self.iterations.len(),
            if self.all_match_simulation() {
                "as simulated"
            } else {
                "NOT as simulated, which is a bug"
            },
        );
        let deviating =
            self.iterations.iter().enumerate().filter(|(_, iteration)| !iteration.is_near());
        for (number, iteration) in deviating.take(MAX_LISTED_DEVIATIONS) {
            let _ = writeln!(
                text,
                "iteration {}: {}, {} rows, {:.2} ms instead of {:.2} ({:+.1}%)",
                number + 1,
                iteration.simulated.shape.name(),
                iteration.simulated.rows,
                iteration.measured_ms,
                iteration.simulated.times.total_ms,
                100.0 * iteration.error()
            );
        }
        text += "No data was computed or copied: each instruction waited for its time in the \
                 description.\n";
        text
    }

    fn table(&self) -> Table {
        let mut table = plain_table();
        table.set_header(COLUMNS);
        for shape in IterationShape::ALL {
            let with_shape =
                self.iterations.iter().filter(|iteration| iteration.simulated.shape == shape);
            let with_shape: Vec<IterationComparison> = with_shape.copied().collect();
            if let Some(cells) = cells(shape.name(), &with_shape) {
                table.add_row(cells);
            }
        }
        table.add_row(cells("all", &self.iterations).unwrap_or_default());
        right_aligned(&mut table, 1..COLUMNS.len());
        table
    }

    /// Returns the result as JSON.
    pub(in super::super) fn json(&self) -> Value {
        let iterations = self.iterations.iter().map(|iteration| {
            json!({
                "shape": iteration.simulated.shape.name(),
                "rows": iteration.simulated.rows,
                "device_ms": iteration.simulated.times.device_ms,
                "host_ms": iteration.simulated.times.host_ms,
                "to_device_ms": iteration.simulated.times.to_device_ms,
                "to_host_ms": iteration.simulated.times.to_host_ms,
                "simulated_ms": iteration.simulated.times.total_ms,
                "measured_shape": iteration.shape.name(),
                "measured_rows": iteration.rows,
                "measured_ms": iteration.measured_ms,
            })
        });
        json!({
            "policy": self.policy.name(),
            "requests": self.requests,
            "device_slots": self.device_slots,
            "slow_motion": self.slow_motion,
            "same_iterations": self.all_match_simulation(),
            "within_5_percent": self.near_count(),
            "iterations": iterations.collect::<Vec<_>>(),
        })
    }
}

/// Returns a row of the table; `None` if there are no iterations.
fn cells(name: &str, all: &[IterationComparison]) -> Option<Vec<String>> {
    let mut errors: Vec<f64> = all.iter().map(IterationComparison::error).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors.get(errors.len() / 2)?;
    let largest = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()))?;
    let simulated: f64 = all.iter().map(|iteration| iteration.simulated.times.total_ms).sum();
    let measured: f64 = all.iter().map(|iteration| iteration.measured_ms).sum();
    let percent = |share: f64| format!("{:+.2}%", 100.0 * share);
    Some(vec![
        name.to_owned(),
        all.len().to_string(),
        format!("{simulated:.1} ms"),
        format!("{measured:.1} ms"),
        percent(measured / simulated - 1.0),
        percent(*median),
        percent(largest),
        all.iter().filter(|iteration| iteration.is_near()).count().to_string(),
    ])
}
