use super::*;

fn draw(temperature: f32, top_p: f32, random: f32) -> SampleDraw {
    let sampling = Sampling { temperature, top_p, ..Sampling::GREEDY };
    SampleDraw { sampling, random, ..SampleDraw::GREEDY }
}

#[test]
fn argmax_takes_the_first_of_equals_and_skips_nan() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), 1);
    assert_eq!(argmax(&[f32::NAN, -2.0, -1.0, f32::NAN]), 2);
    assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
    assert_eq!(argmax(&[f32::NAN]), 0);
    assert_eq!(argmax(&[]), 0);
}

#[test]
fn argmax_finds_every_place_across_block_and_lane_edges() {
    for len in [1, 2, 31, 32, 33, 511, 512, 513, 1024, 1537] {
        for place in [0, 1, 30, 31, 32, 510, 511, 512, 513, 1024, 1536] {
            if place >= len {
                continue;
            }
            let mut logits: Vec<f32> = (0..len).map(|i| -1.0 - (i % 7) as f32).collect();
            logits[place] = 2.5;
            assert_eq!(argmax(&logits) as usize, place, "{len}");
            // The same value at a later index does not win, and NaN changes nothing at any index.
            *logits.last_mut().unwrap() = 2.5;
            logits[0] = if place == 0 { 2.5 } else { f32::NAN };
            assert_eq!(argmax(&logits) as usize, place, "{len}");
        }
    }
    let mut lowest = vec![f32::NEG_INFINITY; 2_000];
    lowest[..600].fill(f32::NAN);
    assert_eq!(argmax(&lowest), 600);
}

#[test]
fn temperature_zero_and_a_tiny_nucleus_are_greedy() {
    let logits = [0.5, 2.0, 1.9, -4.0];
    let mut scratch = SampleScratch::new(4);
    for random in [0.0, 0.3, 0.999_999] {
        assert_eq!(sample(&logits, draw(0.0, 1.0, random), &mut scratch), 1);
        assert_eq!(sample(&logits, draw(1.0, 1e-6, random), &mut scratch), 1);
        assert_eq!(sample(&logits, draw(1.0, 0.0, random), &mut scratch), 1);
    }
}

#[test]
fn draws_follow_the_distribution() {
    let probabilities = [0.1f32, 0.4, 0.2, 0.3];
    let logits = probabilities.map(f32::ln);
    let mut scratch = SampleScratch::new(4);
    let mut frequencies = |top_p: f32| {
        let mut counts = [0usize; 4];
        for position in 0..20_000 {
            let random = random_unit(7, 11, position);
            assert!((0.0..1.0).contains(&random));
            counts[sample(&logits, draw(1.0, top_p, random), &mut scratch) as usize] += 1;
        }
        counts.map(|count| count as f32 / 20_000.0)
    };
    for (seen, expected) in frequencies(1.0).into_iter().zip(probabilities) {
        assert!((seen - expected).abs() < 0.015, "{seen} {expected}");
    }
    // 0.4 + 0.3 reaches 0.65, so only those two remain.
    let nucleus = frequencies(0.65);
    assert_eq!((nucleus[0], nucleus[2]), (0.0, 0.0));
    assert!((nucleus[1] - 4.0 / 7.0).abs() < 0.015, "{}", nucleus[1]);
}

/// Returns the weights that `top_k` and the nucleus keep, by definition: everything sorted, taken
/// until the sum is reached.
fn sorted_kept(weights: &[f32], top_k: u32, top_p: f32) -> Vec<u32> {
    let mut order: Vec<u32> =
        (0..weights.len() as u32).filter(|t| weights[*t as usize] > 0.0).collect();
    order.sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b)));
    if top_k > 0 {
        order.truncate(top_k as usize);
    }
    let sum: f64 = order.iter().map(|token| f64::from(weights[*token as usize])).sum();
    let target = f64::from(top_p) * sum;
    let (mut total, mut kept) = (0.0, 0);
    while kept < order.len() && (kept == 0 || total < target) {
        total += f64::from(weights[order[kept] as usize]);
        kept += 1;
    }
    order.truncate(kept);
    order.sort_unstable();
    order
}

#[test]
fn what_is_left_is_that_of_the_sorted_vocabulary() {
    let mut edge = Vec::new();
    for seed in 0..200u32 {
        // Weights from 1 down to the subnormal, every third seed with many ties; sums of powers of
        // two are exact, so both methods agree to the last token.
        let spread = 1 + seed % 40;
        let weights: Vec<f32> = std::iter::once(1.0)
            .chain((1..300).map(|token| {
                let random = (random_unit(u64::from(seed), 5, token) * 1e6) as i32;
                if seed % 3 == 0 && token % 5 == 0 {
                    0.0
                } else {
                    2f32.powi(-(random % spread as i32))
                }
            }))
            .collect();
        for (top_k, top_p) in [0, 1, 2, 7, 100, 299, 400]
            .into_iter()
            .flat_map(|k| [0.0, 0.001, 0.25, 0.5, 0.9, 0.999, 1.0].map(|p| (k, p)))
        {
            let sampling = Sampling { temperature: 1.0, top_p, top_k, ..Sampling::GREEDY };
            let last = last_kept(&weights, sampling, &mut edge);
            let kept: Vec<u32> = (0u32..)
                .zip(&weights)
                .filter(|(t, w)| last.keeps(*t, **w))
                .map(|(t, _)| t)
                .collect();
            let expected = sorted_kept(&weights, top_k, top_p);
            assert_eq!(kept, expected, "seed {seed} top_k {top_k} top_p {top_p}");
        }
    }
}

#[test]
fn min_p_leaves_what_is_likely_beside_the_most_likely() {
    let logits = [0.1f32, 0.4, 0.19, 0.31].map(f32::ln);
    let mut scratch = SampleScratch::new(4);
    let mut drawn = |sampling: Sampling| {
        let mut drawn: Vec<u32> = (0..400)
            .map(|i| {
                sample(
                    &logits,
                    SampleDraw { sampling, random: random_unit(1, 2, i), ..SampleDraw::GREEDY },
                    &mut scratch,
                )
            })
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        drawn
    };
    let hot = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    assert_eq!(drawn(hot), [0, 1, 2, 3]);
    assert_eq!(drawn(Sampling { min_p: 0.3, ..hot }), [1, 2, 3], "0.1 is a quarter of 0.4");
    assert_eq!(drawn(Sampling { min_p: 0.5, ..hot }), [1, 3], "0.19 is less than half of it");
    assert_eq!(drawn(Sampling { min_p: 1.0, ..hot }), [1]);
    // The logits have a standard deviation of 0.529: 0.31 is 0.48 of it below 0.4, 0.19 is 1.41.
    for temperature in [0.5, 1.0, 2.0] {
        let within = |sigmas| Sampling { temperature, top_n_sigma: sigmas, ..hot };
        assert_eq!(drawn(within(0.4)), [1]);
        assert_eq!(drawn(within(0.6)), [1, 3]);
        assert_eq!(drawn(within(1.5)), [1, 2, 3]);
    }
    // At a higher temperature 0.19 has a larger share: weights are square roots.
    assert_eq!(drawn(Sampling { temperature: 2.0, min_p: 0.5, ..hot }), [0, 1, 2, 3]);
    // 0.4 / (0.4 + 0.31) reaches 0.55, which it would not among all four.
    assert_eq!(drawn(Sampling { min_p: 0.5, top_p: 0.55, ..hot }), [1]);
    assert_eq!(drawn(Sampling { top_p: 0.55, ..hot }), [1, 3]);
    assert_eq!(drawn(Sampling { top_k: 2, ..hot }), [1, 3]);
    assert_eq!(drawn(Sampling { top_k: 1, ..hot }), [1]);
}

#[test]
fn nan_is_never_drawn_and_nothing_where_the_largest_is_not_finite() {
    let mut scratch = SampleScratch::new(3);
    for step in 0..50 {
        let random = step as f32 / 50.0;
        assert_ne!(sample(&[1.0, f32::NAN, 1.0], draw(1.0, 1.0, random), &mut scratch), 1);
        assert_ne!(sample(&[1.0, f32::NAN, 1.0], draw(1.0, 0.99, random), &mut scratch), 1);
        for bad in [[1.0, f32::INFINITY, 1.0], [f32::NAN; 3], [f32::NEG_INFINITY; 3]] {
            assert_eq!(sample(&bad, draw(1.0, 0.9, random), &mut scratch), NO_TOKEN);
            assert_eq!(sample(&bad, SampleDraw::GREEDY, &mut scratch), NO_TOKEN);
        }
    }
}

#[test]
fn rows_are_sampled_as_if_alone() {
    let limits =
        crate::ScratchLimits { rows: 1, linear_inputs: 1, positions: 1, group: 1, head_dim: 2 };
    let (rows, vocab) = (37, 3_001);
    let unit = |i: usize| random_unit(3, 4, i as u32);
    let logits: Vec<f32> = (0..rows * vocab).map(|i| unit(i) * 9.0).collect();
    let draws: Vec<SampleDraw> = (0..rows)
        .map(|row| if row % 2 == 0 { SampleDraw::GREEDY } else { draw(0.8, 0.9, unit(row)) })
        .map(|draw| SampleDraw { masked: draw.random > 0.5 || draw.random == 0.0, ..draw })
        .zip(0u32..)
        .map(|(draw, row)| SampleDraw { changes: (row * 2 / 3, row * 2 / 3 + row % 3), ..draw })
        .collect();
    let changed = |i: u32| (i * 83 % vocab as u32, 0.5 + i as f32 / 9.0, i as f32 / 7.0);
    let change = |(token, repetition, subtracted)| LogitChange { token, repetition, subtracted };
    let changes: Vec<LogitChange> = (0..rows as u32).map(changed).map(change).collect();
    let words = vocab.div_ceil(32);
    // Two tokens in three, with or without the last of all.
    let masks: Vec<u32> = (0..rows * words).map(|i| 0xb6db_6db6u32.rotate_left(i as u32)).collect();
    for threads in [1, 3] {
        let kernels = Kernels::new(crate::Variant::Scalar, threads, limits).unwrap();
        let mut scratch: Vec<_> = (0..threads).map(|_| SampleScratch::new(vocab)).collect();
        let mut tokens = vec![u32::MAX; rows];
        kernels.sample_rows(&logits, &draws, &masks, &changes, &mut scratch, &mut tokens);
        for row in 0..rows {
            let mut own = logits[row * vocab..][..vocab].to_vec();
            let (from, to) = draws[row].changes;
            for change in &changes[from as usize..to as usize] {
                let logit = &mut own[change.token as usize];
                *logit = change.apply(*logit);
            }
            if draws[row].masked {
                let bit = |i: usize| masks[row * words + i / 32] >> (i % 32) & 1 == 1;
                (0..vocab).filter(|i| !bit(*i)).for_each(|i| own[i] = f32::NEG_INFINITY);
                assert!(bit(tokens[row] as usize), "row {row}");
            }
            let alone = sample(&own, draws[row], &mut scratch[0]);
            assert_eq!(tokens[row], alone, "row {row} of {threads} threads");
        }
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

#[test]
fn what_was_said_becomes_less_likely() {
    let penalties = Penalties { repetition: 2.0, presence: 0.5, frequency: 0.25 };
    // Occurs only in the prompt, once, and three times.
    assert_eq!(penalties.change(7, 0).apply(3.0), 1.5);
    assert_eq!(penalties.change(7, 0).apply(-3.0), -6.0);
    assert_eq!(penalties.change(7, 1).apply(3.0), 0.75);
    assert_eq!(penalties.change(7, 3).apply(3.0), 0.25);
    assert_eq!(Penalties::NONE.change(7, 9).apply(3.0), 3.0);
    assert_eq!(LogitChange::exclude(7).apply(3.0), f32::NEG_INFINITY);
    let limits =
        crate::ScratchLimits { rows: 1, linear_inputs: 1, positions: 1, group: 1, head_dim: 2 };
    let kernels = Kernels::new(crate::Variant::Scalar, 1, limits).unwrap();
    let (mut scratch, mut tokens) = ([SampleScratch::new(3)], [0; 2]);
    let draws = [SampleDraw::GREEDY, SampleDraw { changes: (1, 3), ..SampleDraw::GREEDY }];
    let changes = [LogitChange::exclude(0), LogitChange::exclude(1), penalties.change(2, 1)];
    let logits = [1.0, 3.0, 2.0, 1.0, 3.0, 2.0];
    kernels.sample_rows(&logits, &draws, &[], &changes, &mut scratch, &mut tokens);
    assert_eq!(tokens, [1, 0], "2 / 2 - 0.75 is less than 1");
}
