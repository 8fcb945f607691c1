//! A described machine's times as the integers that processes share.

use scheduler::hybrid::{LayerCosts, StepCosts};
use scheduler::{COST_POINTS, StepCostCurve};

use super::ServingCosts;

/// Numbers of rows whose linears are priced; others are interpolated linearly.
const ROWS: [u32; COST_POINTS] = [1, 8, 32, 128, 512, 1024, 2048, 4096];
/// Number of prompt tokens, and of positions, from which the cost of attention per unit is derived.
const PROMPT: u32 = 1000;
const POSITIONS: u64 = 1_000_000;

impl ServingCosts {
    /// Returns the times of all layers together: operations before and after the layers are
    /// included in the linears, for a sampled row, and the launch of an operation of attention is
    /// included in each position's time.
    pub fn step_costs(&self) -> StepCosts {
        let layers = f64::from(self.layers());
        let ps = |layer_ms: f64| (layer_ms * layers * 1e9).round() as u32;
        let us = |ms: f64| (ms * 1e3).round() as u32;
        let point = |rows| (rows, us(self.linear_ms(rows) * layers + self.ends_ms(rows, 1)));
        let pairs = f64::from(PROMPT) * f64::from(PROMPT + 1) / 2.0;
        let link = self.link();
        StepCosts {
            layers: self.layers(),
            device: StepCostCurve {
                points: ROWS.map(point),
                position_ps: ps(self.prefill_attention_ms(PROMPT) / pairs),
                logits_row_ns: 0,
                draft_row_ns: 0,
            },
            weights_us: us(link.weights_ms * layers),
            device_position_ps: ps(self.device_decode_ms(POSITIONS) / POSITIONS as f64),
            host_position_ps: ps(self.host_decode_ms(1, POSITIONS) / POSITIONS as f64),
            host_row_ps: ps(link.row_out_ms + link.row_back_ms),
            launch_us: us(self.launch_ms() * layers),
            deferred_rows_us: 0,
            position_out_ps: ps(link.position_out_ms),
            position_in_ps: ps(link.position_in_ms),
        }
    }
}
