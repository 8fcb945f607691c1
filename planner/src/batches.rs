//! `--batches auto`: the N x B with the highest predicted throughput that fits in memory.

/// Numbers of batches that are tried first.
const BATCH_COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Fractions of the largest batch that are tried first: throughput need not grow with the batch.
const BATCH_FRACTIONS: [(u32, u32); 4] = [(1, 1), (1, 2), (1, 4), (1, 8)];

/// Number of shapes that are evaluated closely in addition to the first choice: those with the
/// highest estimated throughput.
const FULL_EVALUATIONS_MAX: usize = 4;

/// Fraction of the maximum that counts as equally good: predictions are not more accurate, and
/// fewer sequences take less memory and end sooner.
const TIE_RATIO: f64 = 0.96;

/// A shape and its predicted throughput.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchShape {
    /// Number of batches, N.
    pub batches: u32,
    /// Sequences per batch, B.
    pub batch_size: u32,
    pub tokens_per_s: f64,
}

/// Chooses among shapes with batches of at most `size_max` sequences. `fits` returns true if a
/// shape fits in memory; if more sequences fit, fewer always do. `tokens_per_s` is a quick estimate
/// of throughput, and `full_estimate` an accurate one for the best of these; both return `None` if
/// they cannot predict a shape. Among equally good shapes the one with fewer sequences wins.
/// Returns `None` if nothing fits.
pub fn choose_batches(
    size_max: u32,
    mut fits: impl FnMut(u32, u32) -> bool,
    mut tokens_per_s: impl FnMut(u32, u32) -> Option<f64>,
    mut full_estimate: impl FnMut(u32, u32) -> Option<f64>,
) -> Option<BatchShape> {
    let mut evaluated: Vec<BatchShape> = Vec::new();
    let mut evaluate_shape = |tried: &mut Vec<BatchShape>, batches: u32, batch_size: u32| {
        let rate = tokens_per_s(batches, batch_size);
        tried.extend(rate.map(|tokens_per_s| BatchShape { batches, batch_size, tokens_per_s }));
    };
    for batches in BATCH_COUNTS {
        let largest = largest_fitting(size_max, |size| fits(batches, size));
        let mut sizes: Vec<u32> = BATCH_FRACTIONS
            .iter()
            .map(|(part, of)| largest * part / of)
            .filter(|size| *size > 0)
            .collect();
        sizes.dedup();
        sizes.into_iter().for_each(|size| evaluate_shape(&mut evaluated, batches, size));
    }
    // Shapes between the best one and its neighbours.
    if let Some(BatchShape { batches, batch_size, .. }) = smallest_tied(&evaluated) {
        let between = [
            (batches, batch_size * 3 / 4),
            (batches, (batch_size * 3 / 2).min(size_max)),
            (batches * 3 / 2, batch_size),
            (batches * 3 / 4, batch_size),
        ];
        for (count, size) in between {
            if count > 0 && size > 0 && (count, size) != (batches, batch_size) && fits(count, size)
            {
                evaluate_shape(&mut evaluated, count, size);
            }
        }
    }
    let quick_best = smallest_tied(&evaluated)?;
    evaluated.retain(|one| *one != quick_best);
    evaluated.sort_by(|a, b| b.tokens_per_s.total_cmp(&a.tokens_per_s));
    evaluated.truncate(FULL_EVALUATIONS_MAX);
    evaluated.push(quick_best);
    for one in &mut evaluated {
        let rate = full_estimate(one.batches, one.batch_size);
        one.tokens_per_s = rate.unwrap_or(one.tokens_per_s);
    }
    smallest_tied(&evaluated)
}

/// Returns the shape with the fewest sequences among those that are as good as the best.
fn smallest_tied(evaluated: &[BatchShape]) -> Option<BatchShape> {
    let best_rate = evaluated.iter().map(|one| one.tokens_per_s).fold(0.0, f64::max);
    let best = evaluated.iter().filter(|one| one.tokens_per_s >= best_rate * TIE_RATIO);
    let sequences = |one: &&BatchShape| one.batches * one.batch_size;
    best.min_by(|a, b| {
        sequences(a).cmp(&sequences(b)).then(b.tokens_per_s.total_cmp(&a.tokens_per_s))
    })
    .copied()
}

/// Returns the largest size of at most `max_size` that fits; 0 if none does.
fn largest_fitting(max_size: u32, mut fits: impl FnMut(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, max_size);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::choose_batches;

    #[test]
    fn the_edge_of_memory_wins_when_more_is_better() {
        let fits = |n: u32, b: u32| n * b <= 240;
        // Weights cost the same for all shapes: throughput grows with the number of sequences.
        let rate = |n: u32, b: u32| Some(f64::from(n * b) / (100.0 + f64::from(n * b)));
        let found = choose_batches(1000, fits, rate, rate).expect("something fits");
        assert_eq!(found.batches * found.batch_size, 240);
    }

    #[test]
    fn smaller_batches_win_when_larger_ones_cost() {
        let rate = |n: u32, b: u32| Some(if b > 30 { 1.0 } else { 2.0 + f64::from(n * b) });
        let found = choose_batches(100, |n, b| n * b <= 200, rate, rate).expect("something fits");
        assert!(found.batch_size <= 30, "{found:?}");
        assert!(choose_batches(100, |_, _| false, rate, rate).is_none());
        assert!(choose_batches(100, |_, _| true, |_, _| None, |_, _| None).is_none());
    }

    #[test]
    fn fewer_sequences_win_a_tie() {
        let found = choose_batches(64, |_, _| true, |_, _| Some(1.0), |_, _| Some(1.0))
            .expect("something fits");
        assert_eq!((found.batches, found.batch_size), (1, 6));
        // More sequences that gain a few percent are not worth their memory.
        let rate = |batches, size| Some(1.0 + 0.0001 * f64::from(batches) * f64::from(size));
        let chosen = choose_batches(64, |n, b| n * b <= 200, rate, rate).expect("something fits");
        assert!(chosen.batches * chosen.batch_size < 10, "{chosen:?}");
    }

    #[test]
    fn a_closer_look_decides_among_those_that_look_best() {
        // By the quick estimate small batches are best; by the accurate one, the larger ones among
        // them.
        let sight = |n: u32, b: u32| Some(100.0 - f64::from(n * b) / 100.0);
        let closely = |n: u32, b: u32| Some(f64::from(n * b));
        let found = choose_batches(64, |n, b| n * b <= 64, sight, closely).expect("something fits");
        let looked_at =
            choose_batches(64, |n, b| n * b <= 64, sight, sight).expect("something fits");
        assert!(found.batches * found.batch_size > looked_at.batches * looked_at.batch_size);
    }
}
