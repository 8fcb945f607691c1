//! Costs from a few measured iterations, as integers that fit in words shared by processes.

use super::costs::{LayerCosts, LinkCosts};
use crate::costs::{COST_POINTS, StepCostCurve};

/// ms per picosecond.
const MS_PER_PS: f64 = 1e-9;
/// ms per microsecond.
const MS_PER_US: f64 = 1e-3;

/// Durations of a model's iteration, for all layers together, including the operations around them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCosts {
    pub layers: u32,
    /// Rows without attention, on the device, and the cost of a prompt's row there per position
    /// before it.
    pub device: StepCostCurve,
    /// Streaming in each iteration, independent of the number of rows, in µs.
    pub weights_us: u32,
    /// Cost on the device per position that a decode row attends to, in picoseconds.
    pub device_position_ps: u32,
    /// Cost on the host per position that a decode row attends to, in picoseconds.
    pub host_position_ps: u32,
    /// Additional cost on the host per decode row, including its transfers, in picoseconds.
    pub host_row_ps: u32,
    /// Cost of handing attention over to the host and back, in µs.
    pub launch_us: u32,
    /// Cost of the transfers of deferred rows in all layers, independent of their number, in µs.
    pub deferred_rows_us: u32,
    /// Migration of a position's caches to the host, and to the device, in picoseconds.
    pub position_out_ps: u32,
    pub position_in_ps: u32,
}

/// Number of words before those of the points.
const BEFORE_POINTS: usize = 10;

impl StepCosts {
    /// Number of words of [`StepCosts::words`].
    pub const WORDS: usize = BEFORE_POINTS + 2 * COST_POINTS;
    /// No costs are known: everything is free.
    pub const NONE: StepCosts = StepCosts {
        layers: 1,
        device: StepCostCurve::NONE,
        weights_us: 0,
        device_position_ps: 0,
        host_position_ps: 0,
        host_row_ps: 0,
        launch_us: 0,
        deferred_rows_us: 0,
        position_out_ps: 0,
        position_in_ps: 0,
    };

    /// Serialises the costs.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let alone = [
            self.layers,
            self.weights_us,
            self.device_position_ps,
            self.host_position_ps,
            self.host_row_ps,
            self.launch_us,
            self.position_out_ps,
            self.position_in_ps,
            self.device.position_ps,
            self.deferred_rows_us,
        ];
        let points = self.device.points.into_iter().flat_map(|(rows, us)| [rows, us]);
        words.iter_mut().zip(alone.into_iter().chain(points)).for_each(|(to, word)| *to = word);
        words
    }

    /// Deserialises costs from [`StepCosts::words`].
    pub fn from_words(words: &[u32; Self::WORDS]) -> StepCosts {
        let point = |point: usize| {
            let first = BEFORE_POINTS + 2 * point;
            (words[first], words[first + 1])
        };
        StepCosts {
            layers: words[0],
            weights_us: words[1],
            device_position_ps: words[2],
            host_position_ps: words[3],
            host_row_ps: words[4],
            launch_us: words[5],
            position_out_ps: words[6],
            position_in_ps: words[7],
            deferred_rows_us: words[9],
            device: StepCostCurve {
                points: std::array::from_fn(point),
                position_ps: words[8],
                logits_row_ns: 0,
                draft_row_ns: 0,
            },
        }
    }

    fn per_layer(&self, all_ms: f64) -> f64 {
        all_ms / f64::from(self.layers.max(1))
    }

    fn ps(&self, ps: u32, times: f64) -> f64 {
        self.per_layer(f64::from(ps) * times * MS_PER_PS)
    }
}

impl LayerCosts for StepCosts {
    fn layers(&self) -> u32 {
        self.layers
    }

    fn linear_ms(&self, rows: u32) -> f64 {
        match rows {
            0 => 0.0,
            rows => self.per_layer(self.device.step_ns(rows, 0) as f64 * 1e-6),
        }
    }

    fn prefill_attention_ms(&self, tokens: u32) -> f64 {
        let tokens = f64::from(tokens);
        self.ps(self.device.position_ps, tokens * (tokens + 1.0) / 2.0)
    }

    fn device_decode_ms(&self, positions: u64) -> f64 {
        self.ps(self.device_position_ps, positions as f64)
    }

    fn host_decode_ms(&self, sequences: u32, positions: u64) -> f64 {
        self.ps(self.host_row_ps, f64::from(sequences))
            + self.ps(self.host_position_ps, positions as f64)
    }

    fn launch_ms(&self) -> f64 {
        self.per_layer(f64::from(self.launch_us) * MS_PER_US)
    }

    fn deferred_rows_ms(&self) -> f64 {
        self.per_layer(f64::from(self.deferred_rows_us) * MS_PER_US)
    }

    /// They were measured together with the linears.
    fn ends_ms(&self, _rows: u32, _samples: u32) -> f64 {
        0.0
    }

    fn link(&self) -> LinkCosts {
        LinkCosts {
            weights_ms: self.per_layer(f64::from(self.weights_us) * MS_PER_US),
            position_out_ms: self.ps(self.position_out_ps, 1.0),
            position_in_ms: self.ps(self.position_in_ps, 1.0),
            ..LinkCosts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> StepCosts {
        let mut device = StepCostCurve { position_ps: 2_000, ..StepCostCurve::NONE };
        device.points[0] = (1, 4_000);
        device.points[1] = (9, 8_000);
        StepCosts {
            layers: 4,
            device,
            weights_us: 3_000,
            device_position_ps: 1_000_000,
            host_position_ps: 8_000_000,
            host_row_ps: 40_000_000,
            launch_us: 200,
            deferred_rows_us: 60,
            position_out_ps: 12_000_000,
            position_in_ps: 16_000_000,
        }
    }

    #[test]
    fn words_say_all_of_it() {
        assert_eq!(StepCosts::from_words(&costs().words()), costs());
        assert_eq!(StepCosts::from_words(&StepCosts::NONE.words()), StepCosts::NONE);
    }

    #[test]
    fn a_layer_has_its_share() {
        let costs = costs();
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        near(costs.linear_ms(0), 0.0);
        near(costs.linear_ms(1), 1.0);
        near(costs.linear_ms(5), 1.5);
        near(costs.prefill_attention_ms(1000), 1000.0 * 1001.0 / 2.0 * 2e-6 / 4.0);
        near(costs.device_decode_ms(1000), 0.25);
        near(costs.host_decode_ms(10, 1000), 0.1 + 2.0);
        near(costs.launch_ms(), 0.05);
        near(costs.deferred_rows_ms(), 0.015);
        near(costs.link().weights_ms, 0.75);
        near(costs.link().position_in_ms, 0.004);
    }
}
