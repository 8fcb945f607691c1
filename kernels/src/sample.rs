//! Selection of a token from logits: greedy, or drawn from the likely ones with a counter-based
//! random number, so that a token depends only on its request's key and position.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::Kernels;
use crate::penalties::{LogitChange, Penalties, apply_changes};
use crate::scratch::SharedPointer;

/// Number of logits scanned together: their largest is found with vector instructions, its index
/// only in the block that holds it.
const BLOCK: usize = 512;
/// Independent maxima within a block, so that one comparison does not wait for the last.
const LANES: usize = 32;

/// Result if the largest logit is infinite or NaN: no token is drawn.
pub const NO_TOKEN: u32 = u32::MAX;

/// Returns the index of the largest logit, the lowest one on ties. NaN never wins; 0 if there is
/// nothing else.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let largest = largest(block);
        if largest > best.1 {
            best = (index * BLOCK, largest);
        }
    }
    // Nothing is above minus infinity: takes the first logit that is not NaN.
    let is_best = |logit: &f32| *logit == best.1;
    let place = logits[best.0..].iter().position(is_best).unwrap_or(0);
    (best.0 + place) as u32
}

/// Returns the largest number of a block; minus infinity if it has none. Plain code, written so
/// that it compiles to a vector maximum: NaN compares as not larger.
pub(crate) fn largest(block: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = block.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*logit, *lane);
        }
    }
    let rest = rest.iter().fold(f32::NEG_INFINITY, |best, logit| larger(*logit, best));
    lanes.iter().fold(rest, |best, lane| larger(*lane, best))
}

/// Limits on the tokens that can follow, and their probabilities: `softmax(logits / temperature)`
/// over the tokens that the other four limits keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Temperature; 0 is greedy.
    pub temperature: f32,
    /// Keeps the smallest set of most likely tokens whose probability, among those that the next
    /// three limits keep, reaches this; 1 or more keeps every token.
    pub top_p: f32,
    /// Number of most likely tokens to keep; 0 keeps every token.
    pub top_k: u32,
    /// Minimum probability of a token relative to the most likely one; 0 keeps every token.
    pub min_p: f32,
    /// Keeps only tokens whose logits are at most this many standard deviations of all logits below
    /// the largest (top-nσ, Tang et al. 2024); 0 keeps every token.
    pub top_n_sigma: f32,
    /// Penalties for tokens that occurred before, applied before all of these.
    pub penalties: Penalties,
    /// Minimum number of tokens of the answer before one can end it.
    pub min_tokens: u32,
}

impl Sampling {
    /// Selects the most likely token.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        top_n_sigma: 0.0,
        penalties: Penalties::NONE,
        min_tokens: 0,
    };
}

/// Parameters for drawing the token of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleDraw {
    /// Sampling parameters, except for those that depend on previous tokens: see `changes`.
    pub sampling: Sampling,
    /// Random number in `[0, 1)`; see [`random_unit`].
    pub random: f32,
    /// True if only tokens of the row's mask can follow.
    pub masked: bool,
    /// Range of the logit changes applied before, among those of all rows.
    pub changes: (u32, u32),
}

impl SampleDraw {
    /// Selects the most likely token.
    pub const GREEDY: SampleDraw =
        SampleDraw { sampling: Sampling::GREEDY, random: 0.0, masked: false, changes: (0, 0) };
}

/// Space for one row's weights, allocated once.
#[derive(Debug)]
pub struct SampleScratch {
    /// Logits of a row with a mask, minus infinity for tokens that cannot follow.
    masked: Vec<f32>,
    /// Logits of a row with changes applied.
    changed: Vec<f32>,
    weights: Vec<f32>,
    /// Tokens of the bucket that contains the end of a set of most likely ones.
    edge: Vec<u32>,
}

impl SampleScratch {
    /// Allocates scratch for logits of up to `vocab` entries.
    pub fn new(vocab: usize) -> Self {
        SampleScratch {
            masked: Vec::with_capacity(vocab),
            changed: Vec::with_capacity(vocab),
            weights: Vec::with_capacity(vocab),
            edge: Vec::with_capacity(vocab),
        }
    }
}

impl Kernels {
    /// [`sample`]s `tokens[i]` from row `i` of `logits` `[rows, vocab]` according to `draws[i]`;
    /// rows are distributed over the threads, each of which uses its own entry of `scratch`.
    /// `masks` is `[rows, vocab / 32]`, rounded up, with a bit for each token, the lowest first; it
    /// may be empty if no row has a mask. `changes` are those of all rows, applied in order.
    ///
    /// # Panics
    /// If there are fewer scratches than threads, scratch is for a smaller vocabulary, or a row's
    /// mask or changes are missing.
    pub fn sample_rows(
        &self,
        logits: &[f32],
        draws: &[SampleDraw],
        masks: &[u32],
        changes: &[LogitChange],
        scratch: &mut [SampleScratch],
        tokens: &mut [u32],
    ) {
        let rows = draws.len();
        assert_eq!(tokens.len(), rows, "tokens has an entry per row");
        assert!(scratch.len() >= self.threads(), "every thread has its scratch");
        if rows == 0 {
            return;
        }
        let vocab = logits.len() / rows;
        assert_eq!(logits.len(), rows * vocab, "logits is [rows, vocab]");
        assert!(scratch.iter().all(|scratch| vocab <= scratch.weights.capacity()), "scratch fits");
        let (scratch, tokens) =
            (SharedPointer(scratch.as_mut_ptr()), SharedPointer(tokens.as_mut_ptr()));
        self.run_sized(rows, size_of_val(logits), &|row, thread| {
            // SAFETY: there is a scratch for every thread, and a thread has one task at a time.
            let scratch = unsafe { &mut *scratch.pointer().add(thread) };
            let (logits, draw) = (&logits[row * vocab..][..vocab], draws[row]);
            let changes = &changes[draw.changes.0 as usize..draw.changes.1 as usize];
            let mut changed = std::mem::take(&mut scratch.changed);
            let logits = if changes.is_empty() {
                logits
            } else {
                apply_changes(logits, changes, &mut changed);
                &changed
            };
            let token = if draw.masked {
                let words = vocab.div_ceil(32);
                sample_masked(logits, &masks[row * words..][..words], draw, scratch)
            } else {
                sample(logits, draw, scratch)
            };
            scratch.changed = changed;
            // SAFETY: `tokens` has an entry per row, and no other task writes this one.
            unsafe { *tokens.pointer().add(row) = token };
        });
    }
}

/// Draws a token according to [`Sampling`]; among equally likely ones a set prefers those with
/// lower numbers.
///
/// NaN logits are never drawn; returns [`NO_TOKEN`] if the largest logit is not finite.
pub fn sample(logits: &[f32], draw: SampleDraw, scratch: &mut SampleScratch) -> u32 {
    let SampleDraw { sampling, random, .. } = draw;
    let Sampling { temperature, min_p, top_n_sigma, .. } = sampling;
    let greedy = argmax(logits);
    let largest = logits.get(greedy as usize).copied().unwrap_or(f32::NAN);
    if !largest.is_finite() {
        return NO_TOKEN;
    }
    if temperature <= 0.0 || temperature.is_nan() {
        return greedy;
    }
    let SampleScratch { weights, edge, .. } = scratch;
    assert!(logits.len() <= weights.capacity(), "scratch is as long as the logits");
    weights.clear();
    let smallest = match top_n_sigma > 0.0 {
        true => largest - top_n_sigma * standard_deviation(logits),
        false => f32::NEG_INFINITY,
    };
    // The largest weight is 1. Comparisons with NaN are false.
    weights.extend(logits.iter().map(|&logit| {
        let weight = ((logit - largest) / temperature).exp();
        if weight >= min_p && logit >= smallest { weight } else { 0.0 }
    }));
    let last = last_kept(weights, sampling, edge);
    let kept =
        || (0u32..).zip(weights.iter()).filter(|(token, weight)| last.keeps(*token, **weight));
    let total: f64 = kept().map(|(_, weight)| f64::from(*weight)).sum();
    let mut remaining = f64::from(random) * total;
    let mut drawn = greedy;
    for (token, weight) in kept() {
        drawn = token;
        remaining -= f64::from(*weight);
        if remaining < 0.0 {
            break;
        }
    }
    // Rounding may leave a remainder after the last token, which is then drawn.
    drawn
}

/// Returns the standard deviation of the finite logits.
fn standard_deviation(logits: &[f32]) -> f32 {
    let finite = || logits.iter().filter(|logit| logit.is_finite()).map(|logit| f64::from(*logit));
    let (count, sum) = finite().fold((0.0, 0.0), |(count, sum), logit| (count + 1.0, sum + logit));
    let mean = sum / count;
    let squares: f64 = finite().map(|logit| (logit - mean).powi(2)).sum();
    (squares / count).sqrt() as f32
}

/// [`sample`]s from the tokens whose bits are set.
fn sample_masked(
    logits: &[f32],
    mask: &[u32],
    draw: SampleDraw,
    scratch: &mut SampleScratch,
) -> u32 {
    let mut masked = std::mem::take(&mut scratch.masked);
    masked.clear();
    for (logits, word) in logits.chunks(32).zip(mask) {
        let kept =
            |(i, logit): (usize, &f32)| if word >> i & 1 == 1 { *logit } else { f32::NEG_INFINITY };
        masked.extend(logits.iter().enumerate().map(kept));
    }
    let token = sample(&masked, draw, scratch);
    scratch.masked = masked;
    token
}

/// Returns the last token that `top_k` and `top_p` keep.
fn last_kept(weights: &[f32], sampling: Sampling, edge: &mut Vec<u32>) -> Place {
    let Sampling { top_p, top_k, .. } = sampling;
    let most = match top_k {
        0 => Place::NOWHERE,
        _ => reaching(
            weights,
            |weight| f64::from(u8::from(weight > 0.0)),
            |_| f64::from(top_k),
            edge,
        ),
    };
    if top_p >= 1.0 {
        return most;
    }
    // The kept tokens add up to less than all, so their nucleus ends no later.
    let left = (top_k > 0).then(|| {
        let left = (0u32..).zip(weights).filter(|(token, weight)| most.keeps(*token, **weight));
        left.map(|(_, weight)| f64::from(*weight)).sum::<f64>()
    });
    let target = |total: f64| f64::from(top_p) * left.unwrap_or(total);
    reaching(weights, f64::from, target, edge).or_before(most)
}

/// A place in the order of tokens by weight, equal weights by number.
#[derive(Debug, Clone, Copy)]
struct Place {
    weight: f32,
    token: u32,
}

impl Place {
    /// Place after every token that can be drawn.
    const NOWHERE: Place = Place { weight: 0.0, token: 0 };

    /// Returns true if a token is at this place or before it.
    fn keeps(self, token: u32, weight: f32) -> bool {
        weight > self.weight || (weight == self.weight && weight > 0.0 && token <= self.token)
    }

    /// Returns the first of two places.
    fn or_before(self, other: Place) -> Place {
        if other.keeps(self.token, self.weight) { self } else { other }
    }
}

/// Weights, none above 1, are assigned to buckets by their exponent and first three bits of
/// mantissa.
const BUCKET_SHIFT: u32 = 20;
const BUCKETS: usize = (1f32.to_bits() >> BUCKET_SHIFT) as usize + 1;

/// Returns the last token of the smallest set of largest `weights` whose `amount`s add up to at
/// least `target(total)`. Sums per bucket determine the bucket that contains it, so that only that
/// one is sorted.
fn reaching(
    weights: &[f32],
    amount: impl Fn(f32) -> f64,
    target: impl Fn(f64) -> f64,
    edge: &mut Vec<u32>,
) -> Place {
    let bucket_of = |weight: f32| (weight.to_bits() >> BUCKET_SHIFT) as usize;
    let mut sums = [0f64; BUCKETS];
    for &weight in weights {
        sums[bucket_of(weight)] += amount(weight);
    }
    let target = target(sums.iter().sum());
    let mut reached = 0.0;
    let Some(bucket) = (0..BUCKETS).rev().find(|bucket| {
        let ends_here = reached + sums[*bucket] >= target;
        reached += if ends_here { 0.0 } else { sums[*bucket] };
        ends_here
    }) else {
        // The target exceeds the total, or rounding left the sum below it: all tokens are needed.
        return Place::NOWHERE;
    };
    edge.clear();
    let numbered = (0u32..).zip(weights);
    edge.extend(
        numbered.filter(|(_, weight)| bucket_of(**weight) == bucket).map(|(token, _)| token),
    );
    sort_by_weight(edge, weights);
    let mut last = Place::NOWHERE;
    for &token in edge.iter() {
        last = Place { weight: weights[token as usize], token };
        reached += amount(last.weight);
        if reached >= target {
            break;
        }
    }
    last
}

/// Sorts tokens by weight, largest first, and equal weights by number. Compiled once for all kinds
/// of amounts.
fn sort_by_weight(tokens: &mut [u32], weights: &[f32]) {
    tokens.sort_unstable_by(|&a, &b| {
        weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b))
    });
}

/// Returns the random number in `[0, 1)` of one token: keyed by the run's seed and a hash of the
/// request's id, counted by position. Equal arguments give equal numbers on every machine.
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
#[path = "sample_tests.rs"]
mod tests;
