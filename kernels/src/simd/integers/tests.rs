//! Tests that all variants compute the same integers.

use half::f16;

use crate::simd::Simd;
use crate::variant::{SimdTask, Variant, dispatch};

/// Runs every operation on the same bytes, with lanes as consecutive bytes.
struct Every<'a> {
    a: &'a [u8; 64],
    b: &'a [u8; 64],
    out: &'a mut Vec<u32>,
}

impl SimdTask for Every<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut of_part = |part: usize| {
            // SAFETY: a part of the arrays is a vector.
            let (a, b) = unsafe {
                let at = part * 4 * S::LANES;
                (s.load_dwords(self.a.as_ptr().add(at)), s.load_dwords(self.b.as_ptr().add(at)))
            };
            let low = s.nibble_bytes(a, false);
            let high = s.nibble_bytes(a, true);
            let acc = s.splat_dword(7);
            let rows = [a, b, high, low];
            let [first, second] = s.interleave_bytes(rows, 0);
            let [third, fourth] = s.interleave_bytes(rows, 1);
            let zero = s.splat_dword(0);
            let [of_a, _] = s.interleave_bytes([a, zero, zero, zero], 0);
            let mut stored = [0u8; 16];
            // SAFETY: the arrays have space for the widest vector; the stored values are bytes.
            let stored = unsafe {
                s.store_bytes(stored.as_mut_ptr(), of_a);
                s.load_dwords(stored.map(u32::from).as_ptr().cast())
            };
            let mut vectors = vec![low, high, first, second, third, fourth, stored];
            // Either operand may be the one that is small.
            vectors.extend([s.dot_bytes::<false>(acc, low, b), s.dot_bytes::<false>(acc, b, low)]);
            if s.has_fast_dots() {
                let fast = [s.dot_bytes::<true>(acc, low, b), s.dot_bytes::<true>(acc, b, low)];
                vectors.extend(fast);
            }
            let mut dwords = [0u32; 16];
            for (index, vector) in vectors.into_iter().enumerate() {
                // SAFETY: the array has space for the widest vector.
                unsafe { s.store(dwords.as_mut_ptr().cast(), s.bits(vector)) };
                for dword in &dwords[..S::LANES] {
                    self.out.push(*dword ^ index as u32);
                }
            }
        };
        for part in 0..16 / S::LANES {
            of_part(part);
        }
    }
}

fn every(variant: Variant, a: &[u8; 64], b: &[u8; 64]) -> Vec<Vec<u32>> {
    let mut out = Vec::new();
    // SAFETY: the callers name variants of this machine.
    unsafe { dispatch(variant, Every { a, b, out: &mut out }) };
    let lanes = if variant <= Variant::Avx2 { 8 } else { 16 };
    let operations = out.len() / 16;
    // Compares operation by operation, regardless of the width of the vectors.
    let vectors: Vec<&[u32]> = out.chunks(lanes).collect();
    (0..operations)
        .map(|operation| {
            let parts = 16 / lanes;
            let part = |part: usize| vectors[part * operations + operation].to_vec();
            (0..parts).flat_map(part).collect()
        })
        .collect()
}

#[test]
fn every_variant_computes_the_same_integers() {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for _ in 0..100 {
        let a: [u8; 64] = std::array::from_fn(|_| byte());
        let b: [u8; 64] = std::array::from_fn(|_| byte());
        let expected = every(Variant::Scalar, &a, &b);
        for variant in Variant::available() {
            let actual = every(variant, &a, &b);
            assert_eq!(actual[..9], expected[..], "{variant:?}");
            // The fast versions of the last two follow them.
            for (fast, index) in actual[9..].iter().zip([9, 10]) {
                let plain = |values: &[u32], index: usize| -> Vec<u32> {
                    values.iter().map(|value| value ^ index as u32).collect()
                };
                let slow = plain(&actual[index - 2], index - 2);
                assert_eq!(plain(fast, index), slow, "{variant:?}");
            }
        }
    }
}

/// Operations whose lanes come from that number of rows, or from both halves.
struct Across<'a> {
    bytes: &'a [u8; 1024],
    /// Two f16 each.
    halves: &'a [u32; 16],
    out: &'a mut Vec<Vec<u32>>,
}

/// Distance in bytes from one row to the next.
const STRIDE: usize = 37;

impl SimdTask for Across<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let from = self.bytes.as_ptr();
        // SAFETY: sixteen rows of eight dwords are within the bytes.
        let mut vectors = unsafe {
            let (a, b) = (s.load_halves(from.add(5), from.add(77)), s.load_dwords(from.add(200)));
            vec![a, s.fold_halves(a, b)]
        };
        // SAFETY: there are sixteen dwords.
        let [low, high] = s.halves_f16(unsafe { s.load_dwords(self.halves.as_ptr().cast()) });
        // SAFETY: as above.
        vectors.extend(unsafe { s.transpose_eight(from.add(3), STRIDE) });
        for vector in vectors.into_iter().map(|dwords| s.bits(dwords)).chain([low, high]) {
            let mut dwords = vec![0u32; 16];
            // SAFETY: there is space for the widest vector.
            unsafe { s.store(dwords.as_mut_ptr().cast(), vector) };
            dwords.truncate(S::LANES);
            self.out.push(dwords);
        }
    }
}

#[test]
fn lanes_come_from_the_rows_and_halves_that_they_should() {
    let bytes: [u8; 1024] = std::array::from_fn(|i| (i * i / 7 + 3 * i) as u8);
    let dword = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    // Finite values of both signs.
    let halves: [u32; 16] = std::array::from_fn(|i| {
        ((i * 977) as u32 & 0x3bff) | ((i * 1409 + 5) as u32 & 0xbbff) << 16
    });
    for variant in Variant::available() {
        let lanes = if variant <= Variant::Avx2 { 8 } else { 16 };
        let half = lanes / 2;
        let loaded: Vec<u32> =
            [5, 77].iter().flat_map(|at| (0..half).map(move |lane| dword(at + 4 * lane))).collect();
        let other: Vec<u32> = (0..lanes).map(|lane| dword(200 + 4 * lane)).collect();
        let fold = |from: &[u32]| -> Vec<u32> {
            (0..half).map(|lane| from[lane].wrapping_add(from[lane + half])).collect()
        };
        let mut expected = vec![loaded.clone(), [fold(&loaded), fold(&other)].concat()];
        for column in 0..8 {
            let of_row = |row: usize| dword(3 + row * STRIDE + 4 * column);
            expected.push((0..lanes).map(of_row).collect());
        }
        for from in [0, 16] {
            let widened = |dword: &u32| f16::from_bits((dword >> from) as u16).to_f32().to_bits();
            expected.push(halves[..lanes].iter().map(widened).collect());
        }
        let mut out = Vec::new();
        // SAFETY: the variant is one of this machine.
        unsafe { dispatch(variant, Across { bytes: &bytes, halves: &halves, out: &mut out }) };
        assert_eq!(out, expected, "{variant:?}");
    }
}
