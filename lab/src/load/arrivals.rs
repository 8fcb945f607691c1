//! Arrival times of requests.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// Average number of requests that arrive per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// All requests arrive at once, which measures the maximum throughput of a server.
    Infinite,
    /// Requests per second, greater than 0.
    PerSecond(f64),
}

/// Parses `inf` or a positive number.
///
/// # Errors
/// The text is anything else, including 0 and negative numbers.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == f64::INFINITY => Ok(Rate::Infinite),
        Ok(rate) if rate > 0.0 => Ok(Rate::PerSecond(rate)),
        _ => Err("expected requests per second above 0, or inf for all at once".to_owned()),
    }
}

/// Returns a random number from 0 (inclusive) to 1 (exclusive).
fn uniform(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns arrivals of a Poisson process: independent, exponentially distributed gaps with mean `1
/// / rate`.
pub fn poisson_arrivals(rate: Rate, count: usize, random: &mut ChaCha8Rng) -> Vec<Duration> {
    let Rate::PerSecond(rate) = rate else { return vec![Duration::ZERO; count] };
    let mut at = 0.0;
    let gaps = (0..count).map(|_| {
        at += -(1.0 - uniform(random)).ln() / rate;
        Duration::from_secs_f64(at)
    });
    gaps.collect()
}

/// Returns recorded arrivals relative to the first one. With a rate, their gaps are scaled so that
/// the average rate is as given.
pub fn replayed_arrivals(at_s: &[f64], rate: Option<Rate>) -> Vec<Duration> {
    let first = at_s.first().copied().unwrap_or(0.0);
    let last = at_s.last().copied().unwrap_or(0.0);
    let scale = match rate {
        None => 1.0,
        Some(Rate::Infinite) => 0.0,
        Some(Rate::PerSecond(_)) if last <= first => 0.0,
        Some(Rate::PerSecond(rate)) => (at_s.len() - 1) as f64 / rate / (last - first),
    };
    at_s.iter().map(|at| Duration::from_secs_f64(((at - first) * scale).max(0.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    #[test]
    fn rates_are_numbers_or_inf() {
        assert_eq!(parse_rate("inf"), Ok(Rate::Infinite));
        assert_eq!(parse_rate("2.5"), Ok(Rate::PerSecond(2.5)));
        for wrong in ["0", "-1", "nan", "-inf", "fast", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn gaps_are_exponential_and_of_the_seed() {
        let draw = |seed| {
            poisson_arrivals(Rate::PerSecond(4.0), 20_000, &mut ChaCha8Rng::seed_from_u64(seed))
        };
        let arrivals = draw(1);
        assert_eq!(arrivals, draw(1));
        assert_ne!(arrivals, draw(2));
        assert!(arrivals.is_sorted());
        let mut before = 0.0;
        let gaps: Vec<f64> = arrivals
            .iter()
            .map(|at| at.as_secs_f64() - std::mem::replace(&mut before, at.as_secs_f64()))
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| gap * gap).sum::<f64>() / gaps.len() as f64;
        // For an exponential distribution, the mean of the squares is twice the square of the mean.
        assert!((mean - 0.25).abs() < 0.01, "{mean}");
        assert!((square / (mean * mean) - 2.0).abs() < 0.15, "{square}");
        let at_once = poisson_arrivals(Rate::Infinite, 3, &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(at_once, [Duration::ZERO; 3]);
    }

    #[test]
    fn a_trace_is_replayed_at_its_own_rate_or_another() {
        let seconds = |values: &[f64]| -> Vec<Duration> {
            values.iter().map(|value| Duration::from_secs_f64(*value)).collect()
        };
        let trace = [10.0, 11.0, 14.0];
        assert_eq!(replayed_arrivals(&trace, None), seconds(&[0.0, 1.0, 4.0]));
        assert_eq!(
            replayed_arrivals(&trace, Some(Rate::PerSecond(1.0))),
            seconds(&[0.0, 0.5, 2.0])
        );
        assert_eq!(replayed_arrivals(&trace, Some(Rate::Infinite)), seconds(&[0.0; 3]));
        assert_eq!(replayed_arrivals(&[7.0], Some(Rate::PerSecond(1.0))), seconds(&[0.0]));
    }
}
