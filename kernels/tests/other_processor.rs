//! Tests of the paths that other processors with the same instructions take for few rows of a
//! linear. Many rows take the same path everywhere, which defines the expected bits.

mod common;

use common::{Random, bits, kernels, poison};
use half::bf16;
use kernels::{Kernels, Linear, LinearOut, Variant};

#[test]
fn few_rows_have_the_same_bits_on_every_processor() {
    let variant = Variant::Avx512Bf16;
    if !variant.is_available() {
        let name = variant.name();
        println!(
            "SKIP few_rows_have_the_same_bits_on_every_processor ({name}): this processor lacks it"
        );
        return;
    }
    kernels::assume_other_processor();
    let mut random = Random::new(77);
    // Short x, and x of four and of three rows larger than L1.
    for (n, k) in [(87, 97), (99, 1100), (99, 3301), (53, 4419)] {
        let weight: Vec<bf16> = random.vector(n * k);
        let x: Vec<bf16> = random.vector(25 * k);
        let run = |kernels: &Kernels, rows: usize| {
            let mut out = poison::<f32>(rows * n);
            kernels.linear(Linear {
                rows,
                n,
                k,
                x: &x[..rows * k],
                weight: &weight,
                bias: None,
                out: LinearOut::StoreF32(&mut out),
            });
            bits(&out)
        };
        for threads in [1, 2] {
            let kernels = kernels(variant, threads);
            let all = run(&kernels, 25);
            for rows in 1..=8 {
                assert!(
                    run(&kernels, rows) == all[..rows * n],
                    "{rows}x{n}x{k}, {threads} threads"
                );
            }
        }
    }
}
