//! When requests arrive.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// How many requests arrive in a second, on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// All at once: what a server can do at most.
    Infinite,
    /// Above 0.
    PerSecond(f64),
}

/// Parses `inf` or a number.
///
/// # Errors
/// Anything else, 0 and less among it.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == f64::INFINITY => Ok(Rate::Infinite),
        Ok(rate) if rate > 0.0 => Ok(Rate::PerSecond(rate)),
        _ => Err("write a number of requests a second above 0, or inf for all at once".to_owned()),
    }
}

/// A number from 0 up to, but not, 1.
fn unit(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Arrivals of a Poisson process: independent gaps, exponential with the rate's mean.
pub fn poisson(rate: Rate, count: usize, random: &mut ChaCha8Rng) -> Vec<Duration> {
    let Rate::PerSecond(rate) = rate else { return vec![Duration::ZERO; count] };
    let mut at = 0.0;
    let gaps = (0..count).map(|_| {
        at += -(1.0 - unit(random)).ln() / rate;
        Duration::from_secs_f64(at)
    });
    gaps.collect()
}

/// Arrivals as they were written down, from the first one on; with a rate they are stretched or
/// pressed together until they have it on average.
pub fn replayed(at_s: &[f64], rate: Option<Rate>) -> Vec<Duration> {
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
        let draw =
            |seed| poisson(Rate::PerSecond(4.0), 20_000, &mut ChaCha8Rng::seed_from_u64(seed));
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
        // Of an exponential distribution the mean of squares is twice the square of the mean.
        assert!((mean - 0.25).abs() < 0.01, "{mean}");
        assert!((square / (mean * mean) - 2.0).abs() < 0.15, "{square}");
        let at_once = poisson(Rate::Infinite, 3, &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(at_once, [Duration::ZERO; 3]);
    }

    #[test]
    fn a_trace_is_replayed_at_its_own_rate_or_another() {
        let seconds = |values: &[f64]| -> Vec<Duration> {
            values.iter().map(|value| Duration::from_secs_f64(*value)).collect()
        };
        let trace = [10.0, 11.0, 14.0];
        assert_eq!(replayed(&trace, None), seconds(&[0.0, 1.0, 4.0]));
        assert_eq!(replayed(&trace, Some(Rate::PerSecond(1.0))), seconds(&[0.0, 0.5, 2.0]));
        assert_eq!(replayed(&trace, Some(Rate::Infinite)), seconds(&[0.0; 3]));
        assert_eq!(replayed(&[7.0], Some(Rate::PerSecond(1.0))), seconds(&[0.0]));
    }
}
