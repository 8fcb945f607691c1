//! Bucket boundaries of histograms. They are those of vLLM, so that its dashboards can be used.

/// Boundaries for the time to the first token, in seconds.
pub const FIRST_TOKEN_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// Boundaries for the time between two tokens, in seconds.
pub const BETWEEN_TOKENS_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];

/// Boundaries for the time of a request or a part of it, in seconds.
pub const REQUEST_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Returns the boundaries 1, 2, 5, 10, 20, 50, ... up to `max` tokens.
pub fn token_buckets(max: u64) -> Vec<f64> {
    let mut edges = Vec::new();
    for power in 0..9 {
        for digit in [1, 2, 5] {
            let edge = digit * 10_u64.pow(power);
            if edge <= max {
                edges.push(edge as f64);
            }
        }
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_ascend() {
        assert_eq!(token_buckets(60), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        for edges in [&FIRST_TOKEN_S[..], &BETWEEN_TOKENS_S, &REQUEST_S, &token_buckets(1 << 20)] {
            assert!(edges.is_sorted_by(|a, b| a < b), "{edges:?}");
        }
    }
}
