//! Norms, rope and embedding against the reference, and their independence of batch and threads.

mod common;

use std::time::Duration;

use common::{Random, assert_close, bits, kernels, poison, tolerance, variants};
use half::bf16;
use kernels::{Element, Kernels, Variant, reference};

const WIDTHS: [usize; 12] = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 65, 576];

/// Kernels that share out small work, too: with spinning threads a hand-over costs little.
fn sharing(variant: Variant, threads: usize) -> Kernels {
    let kernels = kernels(variant, threads);
    kernels.set_spin(Duration::from_micros(20));
    kernels
}

fn norm<T: Element>(
    kernels: &Kernels,
    layer: bool,
    (x, gain, bias): (&[f32], &[f32], &[f32]),
    row_index: Option<&[u32]>,
) -> Vec<T> {
    let hidden = gain.len();
    let rows = row_index.map_or(x.len() / hidden, <[u32]>::len);
    let mut out = poison::<T>(rows * hidden);
    if layer {
        kernels.layer_norm(rows, hidden, x, gain, bias, 1e-5, row_index, &mut out);
    } else {
        kernels.rms_norm(rows, hidden, x, gain, 1e-5, row_index, &mut out);
    }
    out
}

fn check_norms<T: Element>(name: &str) {
    for variant in variants(name) {
        let kernels = kernels(variant, 2);
        for layer in [false, true] {
            for hidden in WIDTHS {
                let seed = hidden as u64;
                let context = format!("seed {seed} {variant:?} layer {layer} hidden {hidden}");
                let mut random = Random::new(seed);
                let rows = 6;
                let x: Vec<f32> =
                    random.vector::<f32>(rows * hidden).iter().map(|x| x * 3.0 + 0.7).collect();
                let (gain, bias): (Vec<f32>, Vec<f32>) =
                    (random.vector(hidden), random.vector(hidden));
                let out = norm::<T>(&kernels, layer, (&x, &gain, &bias), None);
                let expected: Vec<f64> = x
                    .chunks(hidden)
                    .flat_map(|row| {
                        if layer {
                            reference::layer_norm(row, &gain, &bias, 1e-5)
                        } else {
                            reference::rms_norm(row, &gain, 1e-5)
                        }
                    })
                    .collect();
                assert_close(&out, &expected, (hidden, 0.5), tolerance(), &context);

                let index = [4u32, 0, 4];
                let picked = norm::<T>(&kernels, layer, (&x, &gain, &bias), Some(&index));
                for (slot, &row) in index.iter().enumerate() {
                    let expected = &out[row as usize * hidden..][..hidden];
                    assert_eq!(
                        bits(&picked[slot * hidden..][..hidden]),
                        bits(expected),
                        "{context}"
                    );
                }
            }
        }
    }
}

#[test]
fn norms_agree_with_the_reference_and_pick_rows() {
    check_norms::<bf16>("norms_agree_with_the_reference_and_pick_rows");
    check_norms::<f32>("norms_agree_with_the_reference_and_pick_rows");
}

#[test]
fn norm_rows_do_not_depend_on_batch_or_threads() {
    for variant in variants("norm_rows_do_not_depend_on_batch_or_threads") {
        let hidden = 1000;
        let mut random = Random::new(8);
        let x: Vec<f32> = random.vector(67 * hidden);
        let (gain, bias): (Vec<f32>, Vec<f32>) = (random.vector(hidden), random.vector(hidden));
        for layer in [false, true] {
            let one = kernels(variant, 1);
            let batch = norm::<bf16>(&sharing(variant, 3), layer, (&x, &gain, &bias), None);
            for row in 0..67 {
                let alone =
                    norm::<bf16>(&one, layer, (&x[row * hidden..][..hidden], &gain, &bias), None);
                assert_eq!(
                    bits(&alone),
                    bits(&batch[row * hidden..][..hidden]),
                    "{variant:?} {row}"
                );
            }
        }
    }
}

fn check_rope<T: Element>(name: &str) {
    for variant in variants(name) {
        for (rows, heads, head_dim) in [(1, 1, 2), (3, 5, 6), (9, 3, 64), (70, 9, 80), (2, 1, 128)]
        {
            let context = format!("{variant:?} {rows} {heads} {head_dim}");
            let mut random = Random::new(rows as u64);
            let frequencies: Vec<f32> = (0..head_dim / 2)
                .map(|i| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32))
                .collect();
            let positions: Vec<u32> = (0..rows).map(|_| random.below(5_000) as u32).collect();
            let before: Vec<T> = random.vector(rows * heads * head_dim);
            let mut x = before.clone();
            sharing(variant, 2).rope(rows, heads, head_dim, &positions, &frequencies, &mut x);
            let expected: Vec<f64> = before
                .chunks(head_dim)
                .enumerate()
                .flat_map(|(index, head)| {
                    let head: Vec<f64> = head.iter().map(|x| f64::from(x.to_f32())).collect();
                    reference::rope(&head, positions[index / heads], &frequencies)
                })
                .collect();
            assert_close(&x, &expected, (head_dim, 1.0), tolerance(), &context);

            let row = rows - 1;
            let row_elements = heads * head_dim;
            let mut alone = before[row * row_elements..].to_vec();
            kernels(variant, 1).rope(
                1,
                heads,
                head_dim,
                &positions[row..],
                &frequencies,
                &mut alone,
            );
            assert_eq!(bits(&alone), bits(&x[row * row_elements..]), "{context}");
        }
    }
}

#[test]
fn rope_agrees_with_the_reference() {
    check_rope::<bf16>("rope_agrees_with_the_reference");
    check_rope::<f32>("rope_agrees_with_the_reference");
}

#[test]
fn embedding_is_exact() {
    let mut random = Random::new(1);
    let (vocab, hidden) = (50, 37);
    let table: Vec<bf16> = random.vector(vocab * hidden);
    let position_table: Vec<bf16> = random.vector(20 * hidden);
    let tokens: Vec<u32> = (0..45).map(|_| random.below(vocab) as u32).collect();
    let positions: Vec<u32> = (0..45).map(|_| random.below(18) as u32).collect();
    for variant in variants("embedding_is_exact") {
        let kernels = sharing(variant, 3);
        let mut plain = poison::<f32>(45 * hidden);
        kernels.embed(&tokens, &table, None, &mut plain);
        let mut placed = poison::<f32>(45 * hidden);
        kernels.embed(&tokens, &table, Some((&positions, &position_table, 2)), &mut placed);
        for row in 0..45 {
            for column in 0..hidden {
                let token = table[tokens[row] as usize * hidden + column].to_f32();
                let position =
                    position_table[(positions[row] as usize + 2) * hidden + column].to_f32();
                assert_eq!(plain[row * hidden + column], token);
                assert_eq!(placed[row * hidden + column], token + position);
            }
        }
    }
}
