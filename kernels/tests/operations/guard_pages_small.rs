//! Tests that norms, rope and embedding read and write nothing beyond an operand; see
//! `guard_pages`.

use crate::common::{Random, bits, poison, variants};
use crate::guarded::{Guarded, SIDES, set_case};
use half::bf16;
use kernels::{Element, Kernels, RopeTables};

fn check_norms<T: Element>(kernels: &Kernels) {
    for hidden in [1usize, 2, 15, 16, 17, 31, 33, 65, 577] {
        let mut random = Random::new(hidden as u64);
        let rows = 3;
        let x: Vec<f32> = random.vector(rows * hidden);
        let (gain, bias): (Vec<f32>, Vec<f32>) = (random.vector(hidden), random.vector(hidden));
        let index = [2u32, 0, 2];
        for layer in [false, true] {
            set_case(format!("norm {:?} hidden {hidden} layer {layer}", kernels.variant()));
            let run = |x: &[f32], gain: &[f32], bias: &[f32], index: &[u32], out: &mut [T]| {
                let index = Some(index);
                if layer {
                    kernels.layer_norm(rows, hidden, x, gain, bias, 1e-5, index, out);
                } else {
                    kernels.rms_norm(rows, hidden, x, gain, 1e-5, index, out);
                }
            };
            let mut expected = poison::<T>(rows * hidden);
            run(&x, &gain, &bias, &index, &mut expected);
            for side in SIDES {
                let x = Guarded::new("x", side, &x);
                let gain = Guarded::new("gain", side, &gain);
                let bias = Guarded::new("bias", side, &bias);
                let index = Guarded::new("row_index", side, &index);
                let mut out = Guarded::new("out", side, &poison::<T>(rows * hidden));
                run(x.slice(), gain.slice(), bias.slice(), index.slice(), out.slice_mut());
                assert_eq!(bits(out.slice()), bits(&expected), "{side:?} {hidden}");
            }
        }
    }
}

fn check_rms_rows<T: Element>(kernels: &Kernels) {
    for (rows, heads, width) in [(3, 1, 1), (1, 3, 15), (2, 2, 33), (3, 5, 64), (2, 1, 577)] {
        set_case(format!("rms rows {:?} {rows}x{heads}x{width}", kernels.variant()));
        let mut random = Random::new(width as u64);
        let (x, gain): (Vec<T>, Vec<f32>) =
            (random.vector(rows * heads * width), random.vector(width));
        let residual: Vec<f32> = random.vector(rows * heads * width);
        let (mut normed, mut added) = (x.clone(), residual.clone());
        kernels.head_norm(rows, heads, &gain, 1e-5, &mut normed);
        kernels.add_rms_norm(rows * heads, &x, &gain, 1e-5, &mut added);
        for side in SIDES {
            let gain = Guarded::new("gain", side, &gain);
            let mut own = Guarded::new("x in place", side, &x);
            kernels.head_norm(rows, heads, gain.slice(), 1e-5, own.slice_mut());
            assert_eq!(bits(own.slice()), bits(&normed), "{side:?} {width}");
            let x = Guarded::new("x", side, &x);
            let mut out = Guarded::new("out", side, &residual);
            kernels.add_rms_norm(rows * heads, x.slice(), gain.slice(), 1e-5, out.slice_mut());
            assert_eq!(bits(out.slice()), bits(&added), "{side:?} {width}");
        }
    }
}

#[test]
fn norms_stay_within_their_operands() {
    for variant in variants("norms_stay_within_their_operands") {
        let kernels = crate::common::kernels(variant, 1);
        check_rms_rows::<bf16>(&kernels);
        check_rms_rows::<f32>(&kernels);
        check_norms::<bf16>(&kernels);
        check_norms::<f32>(&kernels);
    }
}

fn check_rope<T: Element>(kernels: &Kernels) {
    for (rows, heads, head_dim, rotary_dim) in
        [(1, 1, 2, 2), (3, 5, 6, 6), (2, 3, 62, 62), (5, 1, 66, 66), (1, 3, 96, 96), (3, 2, 66, 34)]
    {
        set_case(format!("rope {:?} {rows}x{heads}x{head_dim}", kernels.variant()));
        let mut random = Random::new(head_dim as u64);
        // Two tables; the last row uses the last one.
        let frequencies: Vec<f32> = (0..rotary_dim).map(|i| 0.9f32.powi(i as i32)).collect();
        let table_of_row: Vec<u32> = (0..rows as u32).map(|row| (row + rows as u32) % 2).collect();
        let positions: Vec<u32> = (0..rows as u32).map(|row| 7 * row + 3).collect();
        let before: Vec<T> = random.vector(rows * heads * head_dim);
        let mut expected = before.clone();
        let run = |frequencies: &[f32], table_of_row: &[u32], positions: &[u32], x: &mut [T]| {
            let tables = RopeTables {
                inverse_frequencies: frequencies,
                rotary_dim,
                attention_factor: 1.1,
                table_of_row: Some(table_of_row),
            };
            kernels.rope(rows, heads, head_dim, positions, &tables, x);
        };
        run(&frequencies, &table_of_row, &positions, &mut expected);
        for side in SIDES {
            let frequencies = Guarded::new("inverse_frequencies", side, &frequencies);
            let positions = Guarded::new("positions", side, &positions);
            let mut x = Guarded::new("x", side, &before);
            let table_of_row = Guarded::new("table_of_row", side, &table_of_row);
            let indices = (table_of_row.slice(), positions.slice());
            run(frequencies.slice(), indices.0, indices.1, x.slice_mut());
            assert_eq!(bits(x.slice()), bits(&expected), "{side:?} {head_dim}");
        }
    }
}

#[test]
fn rope_stays_within_its_operands() {
    for variant in variants("rope_stays_within_its_operands") {
        let kernels = crate::common::kernels(variant, 1);
        check_rope::<bf16>(&kernels);
        check_rope::<f32>(&kernels);
    }
}

fn check_embed<T: Element>(kernels: &Kernels) {
    for hidden in [1usize, 15, 17, 33, 65] {
        set_case(format!("embed {:?} hidden {hidden}", kernels.variant()));
        let mut random = Random::new(hidden as u64);
        let (table, places): (Vec<T>, Vec<T>) =
            (random.vector(5 * hidden), random.vector(6 * hidden));
        // The first and the last entry of each table.
        let (tokens, positions) = ([4u32, 0, 4], [0u32, 4, 2]);
        let mut expected = poison::<f32>(3 * hidden);
        kernels.embed(&tokens, &table, Some((&positions, &places, 1)), 2.5, &mut expected);
        for side in SIDES {
            let table = Guarded::new("table", side, &table);
            let places = Guarded::new("position_table", side, &places);
            let tokens = Guarded::new("tokens", side, &tokens);
            let positions = Guarded::new("positions", side, &positions);
            let mut out = Guarded::new("out", side, &poison::<f32>(3 * hidden));
            let added = Some((positions.slice(), places.slice(), 1));
            kernels.embed(tokens.slice(), table.slice(), added, 2.5, out.slice_mut());
            assert_eq!(bits(out.slice()), bits(&expected), "{side:?} {hidden}");
        }
    }
}

#[test]
fn embedding_stays_within_its_operands() {
    for variant in variants("embedding_stays_within_its_operands") {
        let kernels = crate::common::kernels(variant, 1);
        check_embed::<bf16>(&kernels);
        check_embed::<f32>(&kernels);
    }
}
