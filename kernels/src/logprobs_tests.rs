use super::*;
use crate::random_unit;

/// Computes log-probabilities by definition: everything in f64, everything sorted.
fn sorted(logits: &[f32], token: u32, entries: usize) -> Vec<Logprob> {
    let number = |logit: f32| if logit.is_nan() { f64::NEG_INFINITY } else { f64::from(logit) };
    let sum: f64 = logits.iter().map(|logit| number(*logit).exp()).sum();
    let of =
        |token: u32| Logprob { token, logprob: (number(logits[token as usize]) - sum.ln()) as f32 };
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let key = |token: &u32| number(logits[*token as usize]);
    order.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.cmp(b)));
    std::iter::once(token).chain(order).take(entries).map(of).collect()
}

fn check(logits: &[f32], token: u32, entries: usize) {
    let expected = sorted(logits, token, entries);
    let mut actual = vec![Logprob { token: 7, logprob: 7.0 }; entries];
    logprobs(logits, token, &mut actual);
    for (actual, expected) in actual.iter().zip(&expected) {
        assert_eq!(actual.token, expected.token, "{} logits, {entries} entries", logits.len());
        let error = (actual.logprob - expected.logprob).abs();
        let equal =
            actual.logprob == expected.logprob || error < 2e-6 * (1.0 + actual.logprob.abs());
        assert!(equal, "{actual:?} {expected:?}");
    }
    assert!(actual[expected.len().min(entries)..].iter().all(|entry| *entry == Logprob::NONE));
}

#[test]
fn they_are_those_of_the_sorted_vocabulary() {
    for vocab in [1usize, 2, 20, 511, 512, 513, 1_500] {
        for levels in [3.0, 50.0, 1e6] {
            // Few distinct levels make many ties.
            let mut logits: Vec<f32> = (0..vocab)
                .map(|i| (random_unit(5, vocab as u64, i as u32) * levels).floor() / levels * 20.0)
                .collect();
            for token in [0, vocab / 2, vocab - 1] {
                for entries in [1, 2, 6, 21, 40, 600] {
                    check(&logits, token as u32, entries);
                }
            }
            logits[vocab / 3] = f32::NAN;
            logits[vocab / 4] = f32::NEG_INFINITY;
            if vocab > 2 {
                check(&logits, (vocab / 3) as u32, 6);
                check(&logits, (vocab / 4) as u32, 21);
                check(&logits, (vocab / 4) as u32, 300);
            }
        }
    }
}

#[test]
fn probabilities_of_all_tokens_add_up_to_one() {
    let logits: Vec<f32> = (0..900).map(|i| random_unit(1, 1, i) * 30.0 - 500.0).collect();
    let mut actual = vec![Logprob::NONE; 901];
    logprobs(&logits, 3, &mut actual);
    let sum: f64 = actual[1..].iter().map(|entry| f64::from(entry.logprob).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    assert_eq!(actual[0], *actual[1..].iter().find(|entry| entry.token == 3).unwrap());
}

#[test]
fn rows_take_what_each_wants() {
    let limits =
        crate::ScratchLimits { rows: 1, linear_inputs: 1, positions: 1, group: 1, head_dim: 2 };
    let (rows, vocab, most) = (9usize, 700, 5);
    let logits: Vec<f32> = (0..rows * vocab).map(|i| random_unit(3, 4, i as u32) * 9.0).collect();
    let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 7).collect();
    let wanted: Vec<u32> = (0..rows as u32).map(|row| row % 6).collect();
    for threads in [1, 3] {
        let kernels = Kernels::new(crate::Variant::Scalar, threads, limits).unwrap();
        let mut actual = vec![Logprob::NONE; rows * most];
        kernels.logprob_rows(&logits, &tokens, &wanted, &mut actual);
        for row in 0..rows {
            let mut alone = vec![Logprob::NONE; most];
            logprobs(
                &logits[row * vocab..][..vocab],
                tokens[row],
                &mut alone[..wanted[row] as usize],
            );
            assert_eq!(actual[row * most..][..most], alone, "row {row} of {threads} threads");
        }
    }
}
