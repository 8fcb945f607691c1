//! Mixture of experts: feed-forward networks of which a router selects a few for each row.

use serde::{Deserialize, Serialize};

/// Experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Experts {
    pub count: usize,
    /// Number of experts that compute a row.
    pub per_token: usize,
    /// Width of an expert's network.
    pub ffn_size: usize,
    pub scoring: ExpertScoring,
    /// The router and the three linears of an expert have biases.
    pub bias: bool,
}

impl Experts {
    /// Returns the expected number of distinct experts that `rows` rows select if all experts are
    /// equally likely: if a row selects `k` of `E` experts, each expert is missed by all rows with
    /// probability `(1 - k/E)^rows`.
    pub fn expected_distinct(&self, rows: f64) -> f64 {
        let missed = 1.0 - self.per_token as f64 / self.count as f64;
        self.count as f64 * (1.0 - missed.powf(rows))
    }

    /// Returns the expected fraction of the experts that `rows` rows select, which is also the
    /// fraction of the experts' weights that is read.
    pub fn expected_share(&self, rows: f64) -> f64 {
        self.expected_distinct(rows) / self.count as f64
    }
}

/// Derivation of a row's experts and their weights from the router's logits. Among equal logits,
/// the expert with the lower index takes precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertScoring {
    /// Softmax over all experts in f32, of which the largest values are selected and, if
    /// `renormalise`, divided by their sum.
    SoftmaxTopK { renormalise: bool },
    /// The largest logits, with a softmax over these alone.
    TopKSoftmax,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize, per_token: usize) -> Experts {
        let scoring = ExpertScoring::TopKSoftmax;
        Experts { count, per_token, ffn_size: 1, scoring, bias: false }
    }

    #[test]
    fn few_rows_hit_few_experts() {
        let distinct = |experts: Experts| {
            [1.0, 8.0, 16.0, 60.0].map(|rows| experts.expected_distinct(rows).round() as usize)
        };
        // Qwen3-30B-A3B, gpt-oss-20b, OLMoE-1B-7B.
        assert_eq!(distinct(of(128, 8)), [8, 52, 82, 125]);
        assert_eq!(distinct(of(32, 4)), [4, 21, 28, 32]);
        assert_eq!(distinct(of(64, 8)), [8, 42, 56, 64]);
        assert_eq!(of(8, 8).expected_share(1.0), 1.0);
        assert_eq!(of(8, 2).expected_share(0.0), 0.0);
    }
}
