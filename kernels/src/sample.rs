//! From logits to a token: greedy, or temperature and nucleus sampling with a counter-based random
//! number, so that a token depends on its request's key and position and on nothing else.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Index of the largest logit, the lowest one on ties. NaN never wins; 0 if nothing else is there.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    let mut found = false;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > best.1 || (!found && !logit.is_nan()) {
            best = (index, logit);
            found = true;
        }
    }
    best.0 as u32
}

/// Room to order a vocabulary, allocated once.
#[derive(Debug)]
pub struct SampleScratch {
    order: Vec<u32>,
    weights: Vec<f32>,
}

impl SampleScratch {
    /// Scratch for logits of up to `vocab` entries.
    pub fn new(vocab: usize) -> Self {
        SampleScratch { order: Vec::with_capacity(vocab), weights: Vec::with_capacity(vocab) }
    }
}

/// Draws a token from `softmax(logits / temperature)`, restricted to the smallest set of most likely
/// tokens whose probability reaches `top_p`. `random` lies in `[0, 1)`.
///
/// A temperature of 0 is [`argmax`]. A `top_p` of 1 or more keeps everything. NaN logits are never
/// drawn.
pub fn sample(
    logits: &[f32],
    temperature: f32,
    top_p: f32,
    random: f32,
    scratch: &mut SampleScratch,
) -> u32 {
    let greedy = argmax(logits);
    let largest = logits.get(greedy as usize).copied().unwrap_or(f32::NAN);
    if temperature <= 0.0 || temperature.is_nan() || !largest.is_finite() {
        return greedy;
    }
    assert!(logits.len() <= scratch.order.capacity(), "scratch is as long as the logits");
    let SampleScratch { order, weights } = scratch;
    weights.clear();
    weights.extend(logits.iter().map(|&logit| {
        let weight = ((logit - largest) / temperature).exp();
        if weight.is_nan() { 0.0 } else { weight }
    }));
    order.clear();
    order.extend((0..logits.len() as u32).filter(|&token| weights[token as usize] > 0.0));
    let total: f64 = order.iter().map(|&token| f64::from(weights[token as usize])).sum();
    let mut kept_total = total;
    if top_p < 1.0 {
        // Ties in the order of the vocabulary, so that the set is well defined.
        order.sort_unstable_by(|&a, &b| {
            weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b))
        });
        let target = f64::from(top_p) * total;
        let mut kept = 0;
        kept_total = 0.0;
        while kept < order.len() && (kept == 0 || kept_total < target) {
            kept_total += f64::from(weights[order[kept] as usize]);
            kept += 1;
        }
        order.truncate(kept);
    }
    let mut remaining = f64::from(random) * kept_total;
    for &token in order.iter() {
        remaining -= f64::from(weights[token as usize]);
        if remaining < 0.0 {
            return token;
        }
    }
    // Rounding may leave a crumb behind the last token.
    order.last().copied().unwrap_or(greedy)
}

/// The random number in `[0, 1)` of one token: keyed by the run's seed and a hash of the request's
/// id, counted by position. Equal arguments give equal numbers on every machine.
pub fn random_unit(seed: u64, id_hash: u64, position: u32) -> f32 {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&id_hash.to_le_bytes());
    let mut random = ChaCha8Rng::from_seed(key);
    random.set_stream(u64::from(position));
    // The upper 24 bits are exactly the f32 in [0, 1) that are multiples of 2^-24.
    (random.next_u32() >> 8) as f32 / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_takes_the_first_of_equals_and_skips_nan() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(argmax(&[f32::NAN, -2.0, -1.0, f32::NAN]), 2);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(argmax(&[f32::NAN]), 0);
        assert_eq!(argmax(&[]), 0);
    }

    #[test]
    fn temperature_zero_and_a_tiny_nucleus_are_greedy() {
        let logits = [0.5, 2.0, 1.9, -4.0];
        let mut scratch = SampleScratch::new(4);
        for random in [0.0, 0.3, 0.999_999] {
            assert_eq!(sample(&logits, 0.0, 1.0, random, &mut scratch), 1);
            assert_eq!(sample(&logits, 1.0, 1e-6, random, &mut scratch), 1);
            assert_eq!(sample(&logits, 1.0, 0.0, random, &mut scratch), 1);
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let probabilities = [0.1f32, 0.4, 0.2, 0.3];
        let logits = probabilities.map(f32::ln);
        let mut scratch = SampleScratch::new(4);
        let draw = |top_p: f32, scratch: &mut SampleScratch| {
            let mut counts = [0usize; 4];
            for position in 0..20_000 {
                let random = random_unit(7, 11, position);
                assert!((0.0..1.0).contains(&random));
                counts[sample(&logits, 1.0, top_p, random, scratch) as usize] += 1;
            }
            counts.map(|count| count as f32 / 20_000.0)
        };
        for (seen, expected) in draw(1.0, &mut scratch).into_iter().zip(probabilities) {
            assert!((seen - expected).abs() < 0.015, "{seen} {expected}");
        }
        // 0.4 + 0.3 reaches 0.65, so only those two remain.
        let nucleus = draw(0.65, &mut scratch);
        assert_eq!((nucleus[0], nucleus[2]), (0.0, 0.0));
        assert!((nucleus[1] - 4.0 / 7.0).abs() < 0.015, "{}", nucleus[1]);
    }

    #[test]
    fn nan_is_never_drawn_and_infinity_always_wins() {
        let mut scratch = SampleScratch::new(3);
        for step in 0..50 {
            let random = step as f32 / 50.0;
            assert_ne!(sample(&[1.0, f32::NAN, 1.0], 1.0, 1.0, random, &mut scratch), 1);
            assert_eq!(sample(&[1.0, f32::INFINITY, 1.0], 1.0, 0.9, random, &mut scratch), 1);
        }
    }

    #[test]
    fn random_numbers_depend_on_every_part_of_the_key_and_stay_what_they_are() {
        let base = random_unit(0, 0, 0);
        assert_ne!(base, random_unit(1, 0, 0));
        assert_ne!(base, random_unit(0, 1, 0));
        assert_ne!(base, random_unit(0, 0, 1));
        // Printed answers depend on these: a new generator would change every sampled run.
        let pinned = [(0, 0, 0), (7, 11, 13), (u64::MAX, 1, u32::MAX)];
        let seen = pinned.map(|(seed, id, position)| random_unit(seed, id, position).to_bits());
        assert_eq!(seen, [1_044_364_288, 1_064_022_937, 1_063_980_678]);
    }
}
