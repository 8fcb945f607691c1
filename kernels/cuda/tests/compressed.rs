//! Tests that the compressed formats are equal byte for byte to the CPU's.

#[path = "../../tests/common/mod.rs"]
mod common;
mod device;

use common::Random;
use common::records::random_records;
use cuda_kernels::{quantise_kv, widen};
use device::{Half, dtype, of, of_mut, run};
use kernels::{Element, Variant};
use model::quantized_format::{Bits, Grouped, KvRecordFormat, kv4_position_bytes};

#[test]
fn widened_records_are_those_of_the_cpu() {
    let mut random = Random::new(1);
    let mut cases = vec![(Grouped::W4, 16, 64), (Grouped::W4, 33, 200), (Grouped::GGUF_Q4, 50, 96)];
    for format in Grouped::STORED.into_iter().filter(|format| format.bits != Bits::Eight) {
        cases.extend([(format, 16, 512), (format, 33, 200), (format, 3, 32)]);
    }
    for (format, n, k) in cases {
        let mut records = random_records(&mut random, format, n, k);
        if format == Grouped::GGUF_MXFP4 {
            // Every power of two, including subnormal ones.
            records[..16].copy_from_slice(&std::array::from_fn::<u8, 16, _>(|i| 120 + i as u8));
        }
        let wide = format.widened();
        let mut out = vec![0xaa; wide.size_bytes(n, k) + 64];
        run(&[widen(format, n as u32, k as u32, of(&records), of_mut(&mut out))]);
        let guard = out.split_off(wide.size_bytes(n, k));
        assert!(guard.iter().all(|byte| *byte == 0xaa), "written behind the records");
        let mut expected = vec![0; out.len()];
        kernels::quant::widen(Variant::Scalar, format, k, &records, &mut expected);
        assert!(out == expected, "{format:?} {n} x {k}");
    }
}

fn quantises<T: Element>() {
    let mut random = Random::new(2);
    for (positions, head_dim) in [(1, 2), (9, 6), (17, 64), (5, 66), (3, 80), (20, 128), (2, 256)] {
        let mut x = random.vector::<T>(positions * head_dim);
        for special in [f32::NAN, f32::INFINITY, -1e30, 0.0, -0.0, 1e-8, 65504.0] {
            let at = random.below(x.len());
            x[at] = T::from_f32(special);
        }
        if positions > 8 {
            // Groups of one value, of a tiny range, of zeros.
            x[..head_dim].fill(T::from_f32(0.1));
            x[head_dim..2 * head_dim].fill(T::from_f32(-0.0));
            x[2 * head_dim] = T::from_f32(1.0 + 1.0 / 128.0);
            x[2 * head_dim + 1..3 * head_dim].fill(T::from_f32(1.0));
        }
        let bytes = kv4_position_bytes(head_dim).expect("an even head");
        let mut out = vec![0xaa; positions * bytes + 64];
        let (count, to) = (positions as u32, of_mut(&mut out));
        run(&[quantise_kv(dtype::<T>(), count, head_dim as u32, of(&x), to)]);
        let guard = out.split_off(positions * bytes);
        assert!(guard.iter().all(|byte| *byte == 0xaa), "written behind the records");
        let mut expected = vec![0; positions * bytes];
        kernels::quant::quantise_kv(
            Variant::Scalar,
            KvRecordFormat::Four,
            &x,
            head_dim,
            &mut expected,
        );
        assert_eq!(out, expected, "{:?} {positions} positions of {head_dim}", dtype::<T>());
    }
}

#[test]
fn quantised_positions_are_those_of_the_cpu() {
    quantises::<Half>();
    quantises::<f32>();
}
