//! Tests of norms and embedding against the reference, and of their independence of batch and
//! threads.

use std::time::Duration;

use crate::common::{Random, assert_close, bits, kernels, poison, tolerance, variants};
use half::bf16;
use kernels::quant::{decode_row, quantise};
use kernels::{Element, Kernels, Variant, reference};
use model::quantized_format::Grouped;

const WIDTHS: [usize; 12] = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 65, 576];

/// Returns kernels that distribute small work too: with spinning threads a hand-over costs little.
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

/// Checks norms of every head in place; one wide head is a row.
fn check_head_norm<T: Element>(variant: Variant) {
    for (rows, heads, width) in
        [(1, 1, 1), (3, 5, 6), (2, 3, 31), (9, 4, 64), (130, 8, 128), (5, 1, 1000)]
    {
        let context = format!("{variant:?} {rows} {heads} {width}");
        let mut random = Random::new(width as u64);
        let before: Vec<T> = random.vector(rows * heads * width);
        let gain: Vec<f32> = random.vector(width);
        let mut x = before.clone();
        sharing(variant, 3).head_norm(rows, heads, &gain, 1e-6, &mut x);
        let wide: Vec<f32> = before.iter().map(|value| value.to_f32()).collect();
        let heads_of = |x: &[f32]| -> Vec<f64> {
            x.chunks(width).flat_map(|head| reference::rms_norm(head, &gain, 1e-6)).collect()
        };
        assert_close(&x, &heads_of(&wide), (width, 0.5), tolerance(), &context);
        let one = kernels(variant, 1);
        let row_elements = heads * width;
        for row in [0, rows / 2, rows - 1] {
            let mut alone = before[row * row_elements..][..row_elements].to_vec();
            one.head_norm(1, heads, &gain, 1e-6, &mut alone);
            assert_eq!(bits(&alone), bits(&x[row * row_elements..][..row_elements]), "{context}");
        }
        // Its order of sums is that of the residual stream.
        let mut normed = poison::<T>(wide.len());
        one.rms_norm(rows * heads, width, &wide, &gain, 1e-6, None, &mut normed);
        assert_eq!(bits(&normed), bits(&x), "{context}");
    }
}

/// Checks norms that are added to the residual stream.
fn check_added_norm<T: Element>(variant: Variant) {
    for (rows, hidden) in [(1, 1), (3, 7), (5, 33), (67, 576), (2, 4100)] {
        let context = format!("{variant:?} {rows} {hidden}");
        let mut random = Random::new(hidden as u64);
        let x: Vec<T> = random.vector(rows * hidden);
        let (gain, before): (Vec<f32>, Vec<f32>) =
            (random.vector(hidden), random.vector(rows * hidden));
        let mut out = before.clone();
        sharing(variant, 3).add_rms_norm(rows, &x, &gain, 1e-5, &mut out);
        let wide: Vec<f32> = x.iter().map(|value| value.to_f32()).collect();
        let normed = wide.chunks(hidden).flat_map(|row| reference::rms_norm(row, &gain, 1e-5));
        let expected: Vec<f64> =
            normed.zip(&before).map(|(normed, before)| normed + f64::from(*before)).collect();
        assert_close(&out, &expected, (hidden, 0.5), tolerance(), &context);
        for row in [0, rows / 2, rows - 1] {
            let at = row * hidden..(row + 1) * hidden;
            let mut alone = before[at.clone()].to_vec();
            kernels(variant, 1).add_rms_norm(1, &x[at.clone()], &gain, 1e-5, &mut alone);
            assert_eq!(bits(&alone), bits(&out[at]), "{context}");
        }
    }
}

#[test]
fn norms_in_place_and_added_agree_with_the_reference() {
    for variant in variants("norms_in_place_and_added_agree_with_the_reference") {
        check_head_norm::<bf16>(variant);
        check_head_norm::<f32>(variant);
        check_added_norm::<bf16>(variant);
        check_added_norm::<f32>(variant);
    }
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
        kernels.embed(&tokens, &table, None, 1.0, &mut plain);
        let mut placed = poison::<f32>(45 * hidden);
        let places = Some((&positions[..], &position_table[..], 2));
        kernels.embed(&tokens, &table, places, 1.0, &mut placed);
        let (mut scaled, mut scaled_placed) = (plain.clone(), plain.clone());
        kernels.embed(&tokens, &table, None, 6.1, &mut scaled);
        kernels.embed(&tokens, &table, places, 6.1, &mut scaled_placed);
        for row in 0..45 {
            for column in 0..hidden {
                let token = table[tokens[row] as usize * hidden + column].to_f32();
                let position =
                    position_table[(positions[row] as usize + 2) * hidden + column].to_f32();
                assert_eq!(plain[row * hidden + column], token);
                assert_eq!(placed[row * hidden + column], token + position);
                assert_eq!(scaled[row * hidden + column], token * 6.1);
                assert_eq!(scaled_placed[row * hidden + column], token * 6.1 + position);
            }
        }
    }
}

#[test]
fn embedding_of_a_grouped_table_is_its_rows_times_the_factor() {
    let mut random = Random::new(2);
    for (format, hidden) in [(Grouped::W4, 64), (Grouped::W4, 100), (Grouped::GGUF_Q4, 33)] {
        let table: Vec<f32> = random.vector(40 * hidden);
        let mut records = vec![0; format.size_bytes(40, hidden)];
        quantise(Variant::Scalar, format, &table, hidden, &mut records);
        let tokens = [39u32, 0, 17, 39];
        for factor in [1.0, 7.3] {
            let mut out = poison::<f32>(tokens.len() * hidden);
            kernels(Variant::Scalar, 2).embed_grouped(&tokens, format, &records, factor, &mut out);
            let mut row = vec![0.0; hidden];
            for (out, token) in out.chunks(hidden).zip(tokens) {
                decode_row(format, &records, hidden, token as usize, &mut row);
                let expected: Vec<f32> = row.iter().map(|value| value * factor).collect();
                assert_eq!(bits(out), bits(&expected), "{format:?} {hidden} {factor}");
            }
        }
    }
}
